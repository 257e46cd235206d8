// Quantising experts: which format a model's experts are given when they are quantised to a scheme,
// and one expert's matrix into the tensors that this format publishes. `holdfast quantize` and
// quantising on arrival both stand on it, so that they give the same bytes. Pure functions; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "config/expert_tensors.h"
#include "config/model_config.h"
#include "holdfast/result.h"
#include "tensor/quantize.h"

namespace holdfast::config {

struct QuantizeTarget {
  ExpertScheme scheme = ExpertScheme::kMxfp4;
  std::int64_t group_size = 128;  // kInt4
  bool zero_points = false;       // kInt4: asymmetric
};

// The format as the scheme's most usual publisher has it: gpt-oss MXFP4 as on the hub; FP8 blocks
// as Qwen3-MoE's FP8 releases; MXFP8 as ModelOpt; all else as compressed-tensors (llm-compressor),
// weights alone for 4 bits, activations quantised by token for FP8 (no scheme here needs calibrated
// activations). A plain scheme is the architecture's own layout.
// Errors: kUnsupported when `source` has quantised experts already, or its architecture none of the
// scheme; kInvalidArgument for dimensions that the scheme cannot hold, naming them.
Result<ExpertFormat> quantized_format(const ModelConfig& source, const QuantizeTarget& target);

// config.json's quantization_config for experts in `config`'s format, which is one that
// quantized_format gives and not a plain one; all other modules are listed as kept.
std::string quantization_config_json(const ModelConfig& config);

// Whether gate and up of an expert have one global scale, so that both must be seen first.
bool shares_global_scale(const ExpertFormat& format);

// The published tensors of one matrix, each whole; empty where the format has none.
struct MatrixTensors {
  std::span<std::byte> weight, scale, global_scale, zeros, shape;

  std::span<std::byte>* find(TensorRole role);  // nullptr: not of a matrix's values
};
// What is needed of a matrix besides its values: matrix_amax of it, and the largest one of all
// matrices that share a global scale with it (its own where it shares none). Both are finite.
struct MatrixAmax {
  float own = 0.0f;
  float shared = 0.0f;
};
// Fills `out` from one expert's values [rows, cols], outputs by inputs, in the caller's thread.
// Errors: those of tensor::quantize_rows; kMismatch when the tensors' bytes are not the format's.
Status quantize_matrix(const ExpertFormat& format, const tensor::MatrixValues& values,
                       const MatrixAmax& amax, const MatrixTensors& out);

// Bytes that quantize_matrix holds besides: rows as float32, and unpacked zero points.
std::uint64_t quantize_scratch_bytes(const ExpertFormat& format, tensor::MatrixSize size);

// How `tensor`, a plain format's kWeight, holds one expert's matrix at `data`.
tensor::MatrixValues matrix_values(const ExpertTensor& tensor, const std::byte* data);

}  // namespace holdfast::config
