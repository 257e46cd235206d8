// ExpertFormat: how the experts of a model are stored and served: the weights' scheme, what is done
// to activations, and the publisher's way to name and lay out tensors. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace holdfast::config {

// How the experts' weights are stored and served (tensor/*_codecs.h have the formulas).
enum class ExpertScheme : std::uint8_t {
  kBF16,
  kF16,
  kF32,
  kMxfp4,
  kMxfp8,
  kFp8Tensor,   // e4m3, one f32 scale for each expert's matrix
  kFp8Channel,  // one for each output row
  kFp8Block,    // one for each 128 x 128 block
  kNvfp4,
  kInt4,        // groups of inputs, f16 or bf16 scales, with or without zeros and act-order
};
inline constexpr int kExpertSchemeCount = 10;
// "bf16", "mxfp4", "fp8-block", ...
std::string_view expert_scheme_name(ExpertScheme scheme);
std::optional<ExpertScheme> expert_scheme_from_name(std::string_view name);

// What the experts do to their inputs before each of the two products. A value is rounded to the
// format and multiplied back, so that every product is of what the format can hold.
enum class ActivationScheme : std::uint8_t {
  kNone,           // as they are
  kMxfp8,          // blocks of 32
  kFp8Static,      // one scale from the checkpoint (input_scale)
  kFp8Token,       // one scale for each row, from the row
  kFp8TokenGroup,  // one for each 128 of a row
  kNvfp4,          // blocks of 16 under the checkpoint's input_scale
};
// "none", "mxfp8", "fp8-static", "fp8-token", "fp8-token-group", "nvfp4".
std::string_view activation_scheme_name(ActivationScheme scheme);

// How a publisher names and lays out the experts' tensors (semantics.md 3.10).
enum class ExpertDialect : std::uint8_t {
  kGptOssHub,         // fused and interleaved: gate_up_proj(_blocks, _scales), down_proj, biases
  kGptOssOriginal,    // OpenAI's own names: mlp1_weight.blocks, ...
  kHub,               // one tensor for each expert and projection: NAME.weight
  kFp8Block,          // kHub and weight_scale_inv
  kFp8,               // kHub, weight_scale, perhaps input_scale (Mixtral FP8, ModelOpt, Quark,
                      // compressed-tensors); e8m0 weight_scale u8 for kMxfp8
  kModelOptNvfp4,     // weight u8, weight_scale, weight_scale_2, input_scale
  kCompressedNvfp4,   // weight_packed, weight_scale, weight_global_scale, input_global_scale
  kCompressedInt4,    // weight_packed i32, weight_scale, weight_shape, perhaps g_idx and zeros
  kMxfp4PerExpert,    // weight or weight_packed u8 and weight_scale u8 (Quark, INC)
  kGptq,              // qweight, qzeros, scales, g_idx
  kAwq,               // qweight, qzeros, scales
};
std::string_view expert_dialect_name(ExpertDialect dialect);

struct ExpertFormat {
  ExpertScheme scheme = ExpertScheme::kBF16;
  ActivationScheme activations = ActivationScheme::kNone;
  ExpertDialect dialect = ExpertDialect::kGptOssHub;
  std::int64_t group_size = 0;  // kInt4: inputs to a scale
  bool zero_points = false;     // kInt4
  bool act_order = false;       // kInt4: g_idx decides the group of an input
  // kMxfp4PerExpert: the suffix of the codes, "weight" or "weight_packed"; kGptq: zeros are stored
  // minus one ("v1") or as they are.
  std::string packed_name = "weight";
  bool gptq_v1 = true;
  // What config.json does not say and the files do (checkpoint/observed_format.h): dtypes of the
  // scales that are plain floats (kScale; kGlobalScale and kInputScale), and whether a scalar is
  // stored with shape [1] instead of [].
  tensor::DType scale_dtype = tensor::DType::kF32;
  tensor::DType scalar_dtype = tensor::DType::kF32;
  bool scalars_have_axis = false;

  friend bool operator==(const ExpertFormat&, const ExpertFormat&) = default;
};
// "int4 group 128 zeros act-order, scales f16, activations none, as gptq": for messages, reports,
// and comparisons: formats that need other storage differ in it.
std::string to_text(const ExpertFormat& format);

}  // namespace holdfast::config
