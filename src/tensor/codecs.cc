#include "tensor/codecs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/assert.h"
#include "base/error.h"

namespace holdfast::tensor {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint32_t kF32Exponent = 0x7F800000u;
constexpr std::uint32_t kF32Magnitude = 0x7FFFFFFFu;
constexpr int kScaleBias = 127;
constexpr std::uint8_t kScaleNaN = 0xFF;

// A small binary format: sign, exponent, mantissa; subnormals below 2^(1 - bias).
struct Format {
  int mantissa_bits;
  int bias;
};
constexpr Format kF16Format{10, 15};
constexpr Format kE4M3Format{3, 7};
constexpr Format kE5M2Format{2, 15};
constexpr Format kE2M1Format{1, 1};

// 2^exponent, of a normal float32.
float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// The value of a finite magnitude code (no sign bit).
float decode_magnitude(std::uint32_t code, Format format) {
  const std::uint32_t mantissa_range = 1u << format.mantissa_bits;
  const auto exponent = static_cast<int>(code >> format.mantissa_bits);
  const std::uint32_t mantissa = code & (mantissa_range - 1);
  const std::uint32_t quanta = exponent == 0 ? mantissa : mantissa + mantissa_range;
  // Exact: no format's quantum is a subnormal float32.
  const int scale = std::max(exponent, 1) - format.bias - format.mantissa_bits;
  return static_cast<float>(quanta) * power_of_two(scale);
}

// The magnitude code nearest to |value|, ties to even, as if the exponent had no upper end: callers
// compare it with the format's largest code. `value` must be finite.
std::uint32_t encode_magnitude(float value, Format format) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) & kF32Magnitude;
  const int raw_exponent = static_cast<int>(bits >> 23);
  if (raw_exponent == 0) return 0;  // float32 subnormals lie far below half of any format's quantum
  const int exponent = raw_exponent - 127;
  const std::uint32_t significand = (bits & 0x7FFFFFu) | 0x800000u;
  const int min_exponent = 1 - format.bias;
  const int used_exponent = std::max(exponent, min_exponent);
  const int shift = 23 - format.mantissa_bits + (used_exponent - exponent);
  if (shift > 24) return 0;  // below half a quantum
  const std::uint32_t half = 1u << (shift - 1);
  const std::uint32_t rest = significand & ((1u << shift) - 1);
  std::uint32_t quanta = significand >> shift;
  if (rest > half || (rest == half && (quanta & 1u) != 0)) ++quanta;
  // A carry out of the mantissa moves into the exponent by itself.
  const auto step = static_cast<std::uint32_t>(used_exponent - min_exponent);
  return (step << format.mantissa_bits) + quanta;
}

float with_sign(float magnitude, bool negative) { return negative ? -magnitude : magnitude; }

}  // namespace

float bf16_to_f32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  const std::uint32_t odd = (bits >> 16) & 1u;
  return static_cast<std::uint16_t>((bits + 0x7FFFu + odd) >> 16);
}

float f16_to_f32(std::uint16_t bits) {
  const bool negative = (bits & 0x8000u) != 0;
  const std::uint32_t code = bits & 0x7FFFu;
  if (code > 0x7C00u) {
    // The payload is kept, as IEEE conversions do.
    const std::uint32_t payload = (code & 0x3FFu) << 13;
    return std::bit_cast<float>((negative ? 0x80000000u : 0u) | kF32Exponent | payload);
  }
  if (code == 0x7C00u) return with_sign(std::numeric_limits<float>::infinity(), negative);
  return with_sign(decode_magnitude(code, kF16Format), negative);
}

std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | 0x7E00u | ((bits >> 13) & 0x3FFu));
  }
  constexpr std::uint32_t kInfinity = 0x7C00u;
  const std::uint32_t code = std::isinf(value) ? kInfinity : encode_magnitude(value, kF16Format);
  return static_cast<std::uint16_t>(sign | std::min(code, kInfinity));
}

float f8_e4m3_to_f32(std::uint8_t bits) {
  const std::uint32_t code = bits & 0x7Fu;
  if (code == 0x7Fu) return kNaN;
  return with_sign(decode_magnitude(code, kE4M3Format), (bits & 0x80u) != 0);
}

std::uint8_t f32_to_f8_e4m3(float value) {
  if (std::isnan(value)) return 0x7F;
  constexpr std::uint32_t kMax = 0x7Eu;
  const std::uint32_t code = std::isinf(value) ? kMax : encode_magnitude(value, kE4M3Format);
  return static_cast<std::uint8_t>((std::signbit(value) ? 0x80u : 0u) | std::min(code, kMax));
}

float f8_e5m2_to_f32(std::uint8_t bits) {
  const bool negative = (bits & 0x80u) != 0;
  const std::uint32_t code = bits & 0x7Fu;
  if (code > 0x7Cu) return kNaN;
  if (code == 0x7Cu) return with_sign(std::numeric_limits<float>::infinity(), negative);
  return with_sign(decode_magnitude(code, kE5M2Format), negative);
}

std::uint8_t f32_to_f8_e5m2(float value) {
  const std::uint32_t sign = std::signbit(value) ? 0x80u : 0u;
  if (std::isnan(value)) return static_cast<std::uint8_t>(sign | 0x7Eu);
  constexpr std::uint32_t kInfinity = 0x7Cu;
  const std::uint32_t code = std::isinf(value) ? kInfinity : encode_magnitude(value, kE5M2Format);
  return static_cast<std::uint8_t>(sign | std::min(code, kInfinity));
}

float f8_e8m0_to_f32(std::uint8_t bits) {
  if (bits == 0) return std::ldexp(1.0f, -kScaleBias);  // a subnormal
  return bits == kScaleNaN ? kNaN : power_of_two(bits - kScaleBias);
}

float f4_e2m1_to_f32(std::uint8_t code) {
  return with_sign(decode_magnitude(code & 7u, kE2M1Format), (code & 8u) != 0);
}

std::uint8_t f32_to_f4_e2m1(float value) {
  constexpr std::uint32_t kMax = 7;
  const std::uint32_t code =
      std::isfinite(value) ? encode_magnitude(value, kE2M1Format) : kMax;
  return static_cast<std::uint8_t>((std::signbit(value) ? 8u : 0u) | std::min(code, kMax));
}

void decode_mxfp4_block(std::span<const std::uint8_t, 16> codes, std::uint8_t scale,
                        std::span<float, 32> out) {
  const float factor = f8_e8m0_to_f32(scale);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    out[2 * i] = f4_e2m1_to_f32(codes[i] & 0xF) * factor;
    out[2 * i + 1] = f4_e2m1_to_f32(codes[i] >> 4) * factor;
  }
}

void encode_mxfp4_block(std::span<const float, 32> values, std::span<std::uint8_t, 16> codes,
                        std::uint8_t* scale) {
  HF_ASSERT(scale != nullptr, "encode_mxfp4_block needs a place for the scale");
  float amax = 0.0f;
  bool finite = true;
  for (const float value : values) {
    finite = finite && std::isfinite(value);
    amax = std::max(amax, std::fabs(value));
  }
  if (!finite || amax == 0.0f) {
    std::fill(codes.begin(), codes.end(), std::uint8_t{0});
    *scale = finite ? 0 : kScaleNaN;
    return;
  }
  constexpr int kLargestExponent = 2;  // of 6 = 1.5 * 2^2
  // A finite float32 has an exponent of at most 127, so the byte stays below 0xFF.
  const int byte = std::max(0, std::ilogb(amax) - kLargestExponent + kScaleBias);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto low = f32_to_f4_e2m1(std::ldexp(values[2 * i], kScaleBias - byte));
    const auto high = f32_to_f4_e2m1(std::ldexp(values[2 * i + 1], kScaleBias - byte));
    codes[i] = static_cast<std::uint8_t>(low | (high << 4));
  }
  *scale = static_cast<std::uint8_t>(byte);
}

namespace {

template <typename Bits, typename Decode>
void decode_each(const std::byte* from, std::int64_t count, float* to, Decode decode) {
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, from + static_cast<std::size_t>(i) * sizeof(Bits), sizeof(Bits));
    to[i] = decode(bits);
  }
}

void decode_nibbles(const std::byte* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto pair = std::to_integer<std::uint8_t>(from[i / 2]);
    to[i] = f4_e2m1_to_f32(i % 2 == 0 ? pair & 0xF : pair >> 4);
  }
}

}  // namespace

Status decode_to_f32(DType dtype, const std::byte* from, std::int64_t count, float* to) {
  switch (dtype) {
    case DType::kF32:
      if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      return {};
    case DType::kF16: decode_each<std::uint16_t>(from, count, to, f16_to_f32); return {};
    case DType::kBF16: decode_each<std::uint16_t>(from, count, to, bf16_to_f32); return {};
    case DType::kF8E4M3: decode_each<std::uint8_t>(from, count, to, f8_e4m3_to_f32); return {};
    case DType::kF8E5M2: decode_each<std::uint8_t>(from, count, to, f8_e5m2_to_f32); return {};
    case DType::kF8E8M0: decode_each<std::uint8_t>(from, count, to, f8_e8m0_to_f32); return {};
    case DType::kF4E2M1: decode_nibbles(from, count, to); return {};
    case DType::kU8:
    case DType::kI32:
    case DType::kI64: break;
  }
  return make_error(ErrorCode::kInvalidArgument, "{} is an integer dtype; no float32 decoding",
                    dtype_name(dtype));
}

}  // namespace holdfast::tensor
