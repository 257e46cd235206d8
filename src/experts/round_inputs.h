// What an activation scheme does to the inputs of a product: each value becomes one that the format
// can hold. One row at a time, so that a row's bits never depend on the batch. Pure functions; any
// thread, no allocation.
#pragma once

#include <cstdint>
#include <span>

#include "config/expert_format.h"

namespace holdfast::experts {

// Whether the scheme reads a scale from the checkpoint (input_scale, a multiplier).
bool has_input_scale(config::ActivationScheme scheme);

// Whether rounded values are multiplied back by the checkpoint's scale. Where they are not, the
// product has to be: the field's backends fold it into an alpha.
enum class InputScale : std::uint8_t { kMultipliedBack, kLeftOut };

// out[i] = code(x[i]) * scale, as the scalar codecs round (encode_mxfp8 with kCeil, encode_fp8 with
// kToken or kTokenGroup, encode_fp8_static, encode_nvfp4); a last group may be shorter. `out` may
// be `x`. `input_scale` is read by kFp8Static and kNvfp4 alone. A group with a NaN or an infinity
// becomes NaN (kFp8Static: only its NaN, infinities saturate).
struct RoundRule {
  config::ActivationScheme scheme = config::ActivationScheme::kNone;
  InputScale input_scale = InputScale::kMultipliedBack;
};
void round_row(const RoundRule& rule, float input_scale, std::span<const float> x, float* out);

}  // namespace holdfast::experts
