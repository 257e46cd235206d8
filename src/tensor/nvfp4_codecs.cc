#include "tensor/nvfp4_codecs.h"

#include <cmath>

#include "base/error.h"
#include "tensor/codecs.h"
#include "tensor/span_checks.h"

namespace holdfast::tensor {
namespace {

constexpr std::size_t kBlock = kNvfp4Block;
constexpr float kSmallestGlobal = 0x1p-126f;
constexpr std::uint8_t kScaleNaN = 0x7F;

bool usable(float scale) { return std::isfinite(scale) && scale > 0.0f; }

Status check_blocks(float global, std::size_t values, std::size_t codes, std::size_t scales) {
  if (!usable(global)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "nvfp4: the global scale is {}; it is finite and positive", global);
  }
  if (values % kBlock != 0) {
    return make_error(ErrorCode::kMismatch, "nvfp4: {} values are no whole blocks of {}", values,
                      kBlock);
  }
  const auto count = static_cast<std::int64_t>(values);
  HF_TRY(check_count("nvfp4 codes", codes, count / 2, "two values to a byte"));
  return check_count("nvfp4 scales", scales, count / kNvfp4Block, "one for each 16 values");
}

std::uint8_t encode_value(float value, float step) {
  if (step == 0.0f) return std::signbit(value) ? 8 : 0;
  return f32_to_f4_e2m1(value / step);
}

}  // namespace

Result<float> nvfp4_multiplier(GlobalScale kind, float stored, std::string_view name) {
  const float multiplier = kind == GlobalScale::kMultiplier ? stored : 1.0f / stored;
  if (usable(stored) && usable(multiplier)) return multiplier;
  if (kind == GlobalScale::kMultiplier) {
    return make_error(ErrorCode::kCorrupt, "{} is {}; it must be finite and positive", name,
                      stored);
  }
  return make_error(ErrorCode::kCorrupt,
                    "{} is {}, a multiplier of {}; both must be finite and positive", name, stored,
                    multiplier);
}

float nvfp4_global(float amax) {
  const float global = amax / kNvfp4Largest;
  return global < kSmallestGlobal ? 1.0f : global;
}

float nvfp4_alpha(float weight_multiplier, float input_multiplier) {
  return weight_multiplier * input_multiplier;
}

Status encode_nvfp4(float global, std::span<const float> values, Nvfp4Encoded out) {
  HF_TRY(check_blocks(global, values.size(), out.codes.size(), out.scales.size()));
  for (std::size_t block = 0; block < out.scales.size(); ++block) {
    const float amax = finite_amax(values.subspan(block * kBlock, kBlock));
    const bool damaged = std::isnan(amax);
    const std::uint8_t scale = damaged ? kScaleNaN : f32_to_f8_e4m3(amax / (6.0f * global));
    const float step = f8_e4m3_to_f32(scale) * global;
    out.scales[block] = scale;
    for (std::size_t i = block * kBlock; i < (block + 1) * kBlock; i += 2) {
      const unsigned low = damaged ? 0u : encode_value(values[i], step);
      const unsigned high = damaged ? 0u : encode_value(values[i + 1], step);
      out.codes[i / 2] = static_cast<std::uint8_t>(low | (high << 4));
    }
  }
  return {};
}

Status decode_nvfp4(float global, std::span<const std::uint8_t> codes,
                    std::span<const std::uint8_t> scales, std::span<float> out) {
  HF_TRY(check_blocks(global, out.size(), codes.size(), scales.size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint8_t pair = codes[i / 2];
    const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? pair & 0xF : pair >> 4);
    out[i] = f4_e2m1_to_f32(code) * f8_e4m3_to_f32(scales[i / kBlock]) * global;
  }
  return {};
}

}  // namespace holdfast::tensor
