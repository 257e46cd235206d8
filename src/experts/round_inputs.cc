#include "experts/round_inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/codecs.h"
#include "tensor/fp8_codecs.h"
#include "tensor/mx_codecs.h"
#include "tensor/nvfp4_codecs.h"
#include "tensor/span_checks.h"

namespace holdfast::experts {
namespace {

using config::ActivationScheme;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float to_e4m3(float value) { return tensor::f8_e4m3_to_f32(tensor::f32_to_f8_e4m3(value)); }

void round_fp8(float scale, float factor, std::span<const float> x, float* out) {
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = to_e4m3(x[i] / scale) * factor;
}

void round_mxfp8(std::span<const float> block, float* out) {
  const float amax = tensor::finite_amax(block);
  if (std::isnan(amax)) {
    std::fill_n(out, block.size(), kNaN);
    return;
  }
  const std::uint8_t bits =
      tensor::e8m0_scale(tensor::MxElement::kE4M3, tensor::E8m0Rule::kCeil, amax);
  const int exponent = int{bits} - 127;
  // Both exact: powers of two, applied to what has room for them.
  for (std::size_t i = 0; i < block.size(); ++i) {
    out[i] = std::ldexp(to_e4m3(std::ldexp(block[i], -exponent)), exponent);
  }
}

void round_nvfp4(float global, float factor, std::span<const float> block, float* out) {
  const float amax = tensor::finite_amax(block);
  if (std::isnan(amax)) {
    std::fill_n(out, block.size(), kNaN);
    return;
  }
  const float scale = to_e4m3(amax / (6.0f * global));
  const float step = scale * global;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const float steps = step == 0.0f ? std::copysign(0.0f, block[i]) : block[i] / step;
    out[i] = tensor::f4_e2m1_to_f32(tensor::f32_to_f4_e2m1(steps)) * scale * factor;
  }
}

void round_group(const RoundRule& rule, float input_scale, std::span<const float> group,
                 float* out) {
  const float factor = rule.input_scale == InputScale::kLeftOut ? 1.0f : input_scale;
  const auto dynamic = [&](tensor::Fp8ScaleRule fp8) {
    const float scale = tensor::fp8_scale(fp8, tensor::finite_amax(group));
    round_fp8(scale, scale, group, out);
  };
  switch (rule.scheme) {
    case ActivationScheme::kNone: std::ranges::copy(group, out); return;
    case ActivationScheme::kMxfp8: return round_mxfp8(group, out);
    case ActivationScheme::kFp8Static: return round_fp8(input_scale, factor, group, out);
    case ActivationScheme::kFp8Token: return dynamic(tensor::Fp8ScaleRule::kToken);
    case ActivationScheme::kFp8TokenGroup: return dynamic(tensor::Fp8ScaleRule::kTokenGroup);
    case ActivationScheme::kNvfp4: return round_nvfp4(input_scale, factor, group, out);
  }
}

std::size_t group_size(ActivationScheme scheme, std::size_t row) {
  switch (scheme) {
    case ActivationScheme::kMxfp8: return tensor::kMxBlock;
    case ActivationScheme::kFp8TokenGroup: return tensor::kFp8Block;
    case ActivationScheme::kNvfp4: return tensor::kNvfp4Block;
    default: return row;
  }
}

}  // namespace

bool has_input_scale(ActivationScheme scheme) {
  return scheme == ActivationScheme::kFp8Static || scheme == ActivationScheme::kNvfp4;
}

void round_row(const RoundRule& rule, float input_scale, std::span<const float> x, float* out) {
  const std::size_t size = std::max<std::size_t>(group_size(rule.scheme, x.size()), 1);
  for (std::size_t begin = 0; begin < x.size(); begin += size) {
    round_group(rule, input_scale, x.subspan(begin, std::min(size, x.size() - begin)),
                out + begin);
  }
}

}  // namespace holdfast::experts
