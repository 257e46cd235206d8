// decode_matrix: one quantised matrix of a checkpoint to bf16. Every value is what the scalar
// codecs (tensor/*_codecs.h) decode it to, rounded once, to nearest even. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "config/expert_format.h"
#include "config/expert_tensors.h"
#include "holdfast/result.h"
#include "tensor/fp8_codecs.h"
#include "tensor/tensor_view.h"

namespace holdfast::model {

// Its published tensors; those that the format has not, or that came unquantised, have no address.
struct PublishedMatrix {
  std::string name;  // for messages: "model.layers.0.self_attn.q_proj"
  tensor::MatrixSize size;
  tensor::TensorView weight = {}, scale = {}, global_scale = {}, input_scale = {}, zeros = {},
                     group_index = {}, shape = {};

  // Asserts that a linear layer has tensors of this role.
  tensor::TensorView& of(config::TensorRole role);
};

// `out` [rows, cols]. A weight that is bf16 itself is copied. `input_scale` is checked and not
// used: activations are not quantised here. Errors: kCorrupt for a scalar scale that is not finite
// and positive, a group index that cannot be, and a value beyond bf16; kMismatch for a stated shape
// that is another, and for groups out of order without act-order; all naming the matrix.
Status decode_matrix(const config::ExpertFormat& format, const PublishedMatrix& matrix,
                     std::uint16_t* out);

// Bytes that it holds besides.
std::uint64_t decode_scratch_bytes(const config::ExpertFormat& format, tensor::MatrixSize size);

}  // namespace holdfast::model
