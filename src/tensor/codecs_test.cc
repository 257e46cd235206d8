#include "tensor/codecs.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace holdfast::tensor {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string golden(const char* name) {
  return std::string(HF_SOURCE_DIR "/tests/golden/codecs/") + name;
}

// Equal as bits, so that -0 and 0 differ; all NaNs are alike.
void expect_same(float got, float want, int code) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << "code " << code << " gave " << got;
  } else {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want))
        << "code " << code << ": " << got << ", expected " << want;
  }
}

// For neighbouring codes a < b of one sign, the values between them round to the nearer one and the
// midpoint to the even code. `last` is the largest finite magnitude code.
template <typename Code>
void expect_rounding(Code (*encode)(float), float (*decode)(Code), int last) {
  for (int code = 0; code < last; ++code) {
    const float low = decode(static_cast<Code>(code));
    const float high = decode(static_cast<Code>(code + 1));
    const float middle = 0.5f * low + 0.5f * high;
    const int even = code % 2 == 0 ? code : code + 1;
    ASSERT_EQ(encode(middle), even) << "the tie between " << low << " and " << high;
    ASSERT_EQ(encode(std::nextafterf(middle, 0.0f)), code) << "just below " << middle;
    ASSERT_EQ(encode(std::nextafterf(middle, kInf)), code + 1) << "just above " << middle;
    const int sign = (last >= 256 ? 0x8000 : last >= 16 ? 0x80 : 8);
    ASSERT_EQ(encode(-middle), sign | even) << "the tie at " << -middle;
  }
}

TEST(Codecs, E2M1HasItsSixteenValues) {
  const std::array<float, 8> magnitudes = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 16; ++code) {
    const float magnitude = magnitudes[static_cast<std::size_t>(code & 7)];
    const auto byte = static_cast<std::uint8_t>(code);
    expect_same(f4_e2m1_to_f32(byte), code < 8 ? magnitude : -magnitude, code);
    EXPECT_EQ(f32_to_f4_e2m1(f4_e2m1_to_f32(byte)), code);
    EXPECT_EQ(f4_e2m1_to_f32(static_cast<std::uint8_t>(code | 0xF0)), f4_e2m1_to_f32(byte));
  }
}

TEST(Codecs, E2M1RoundsTiesToEvenAndSaturatesAtSix) {
  expect_rounding<std::uint8_t>(f32_to_f4_e2m1, f4_e2m1_to_f32, 7);
  for (const float value : {6.5f, 7.0f, 8.0f, 1e30f, kInf}) {
    EXPECT_EQ(f32_to_f4_e2m1(value), 7) << value;
    EXPECT_EQ(f32_to_f4_e2m1(-value), 15) << value;
  }
  EXPECT_EQ(f32_to_f4_e2m1(kNaN), 7);
  EXPECT_EQ(f32_to_f4_e2m1(0.25f), 0);
  EXPECT_EQ(f32_to_f4_e2m1(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Codecs, E4M3EqualsTheIndependentTableOnEveryCode) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  ASSERT_FALSE(parser.load(golden("fp8_e4m3fn_table.json")).get(root));
  simdjson::dom::array values;
  ASSERT_FALSE(root["values"].get(values));
  ASSERT_EQ(values.size(), 256u);
  int code = 0;
  for (const simdjson::dom::element element : values) {
    double want = std::numeric_limits<double>::quiet_NaN();
    if (!element.is_null()) {
      ASSERT_FALSE(element.get(want));
    }
    const auto byte = static_cast<std::uint8_t>(code);
    expect_same(f8_e4m3_to_f32(byte), static_cast<float>(want), code);
    if (element.is_null()) {
      EXPECT_EQ(f32_to_f8_e4m3(f8_e4m3_to_f32(byte)), 0x7F);
    } else {
      EXPECT_EQ(f32_to_f8_e4m3(static_cast<float>(want)), code);
    }
    ++code;
  }
}

TEST(Codecs, E4M3RoundsTiesToEvenAndSaturatesAt448) {
  expect_rounding<std::uint8_t>(f32_to_f8_e4m3, f8_e4m3_to_f32, 0x7E);
  for (const float value : {448.0f, 449.0f, 464.0f, 465.0f, 1e30f, kInf}) {
    EXPECT_EQ(f32_to_f8_e4m3(value), 0x7E) << value;
    EXPECT_EQ(f32_to_f8_e4m3(-value), 0xFE) << value;
  }
}

// The value that the standard's formula gives, in double: an independent second way.
float by_formula(int code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int sign = (code >> (exponent_bits + mantissa_bits)) & 1;
  const int exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double fraction = (code & ((1 << mantissa_bits) - 1)) / std::exp2(mantissa_bits);
  double magnitude = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = fraction * std::exp2(1 - bias);
  } else {
    magnitude = (1 + fraction) * std::exp2(exponent - bias);
  }
  return static_cast<float>(sign != 0 ? -magnitude : magnitude);
}

TEST(Codecs, E5M2FollowsIeeeOnEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const float value = f8_e5m2_to_f32(byte);
    expect_same(value, by_formula(code, 5, 2), code);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f8_e5m2_to_f32(f32_to_f8_e5m2(value))));
    } else {
      EXPECT_EQ(f32_to_f8_e5m2(value), code);
    }
  }
  expect_rounding<std::uint8_t>(f32_to_f8_e5m2, f8_e5m2_to_f32, 0x7B);
  EXPECT_EQ(f32_to_f8_e5m2(61439.0f), 0x7B);  // below the middle of 57344 and 65536
  EXPECT_EQ(f32_to_f8_e5m2(61440.0f), 0x7C);
  EXPECT_EQ(f32_to_f8_e5m2(-1e30f), 0xFC);
}

TEST(Codecs, E8M0IsAPowerOfTwoOnEveryCode) {
  for (int code = 0; code < 255; ++code) {
    expect_same(f8_e8m0_to_f32(static_cast<std::uint8_t>(code)),
                static_cast<float>(std::exp2(code - 127)), code);
  }
  EXPECT_TRUE(std::isnan(f8_e8m0_to_f32(255)));
  EXPECT_EQ(f8_e8m0_to_f32(0), 0x1p-127f);
}

TEST(Codecs, F16FollowsIeeeOnEveryCode) {
  for (int code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const float value = f16_to_f32(bits);
    expect_same(value, by_formula(code, 5, 10), code);
    const std::uint16_t back = f32_to_f16(value);
    if (std::isnan(value)) {
      ASSERT_EQ(back, code | 0x0200);  // the same NaN, quiet
    } else {
      ASSERT_EQ(back, code);
    }
  }
}

TEST(Codecs, F16RoundsTiesToEvenAndOverflowsToInfinity) {
  expect_rounding<std::uint16_t>(f32_to_f16, f16_to_f32, 0x7BFF);
  EXPECT_EQ(f32_to_f16(65519.99f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(-kInf), 0xFC00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0);  // the tie between 0 and the least subnormal
  EXPECT_EQ(f32_to_f16(std::nextafterf(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(f32_to_f16(-0x1p-26f), 0x8000);
}

TEST(Codecs, BF16IsTheUpperHalfOfF32OnEveryCode) {
  for (int code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const float value = bf16_to_f32(bits);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(value), static_cast<std::uint32_t>(code) << 16);
    ASSERT_EQ(f32_to_bf16(value), std::isnan(value) ? code | 0x40 : code);
  }
}

TEST(Codecs, BF16RoundsTiesToEven) {
  const auto from_bits = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
  for (std::uint32_t code = 0; code < 0x7F80u; ++code) {
    const std::uint32_t middle = (code << 16) | 0x8000u;
    ASSERT_EQ(f32_to_bf16(from_bits(middle)), code + (code & 1u));
    ASSERT_EQ(f32_to_bf16(from_bits(middle - 1)), code);
    ASSERT_EQ(f32_to_bf16(from_bits(middle + 1)), code + 1);
  }
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(from_bits(0x7F800001u)))));  // no NaN to infinity
}

TEST(Codecs, Mxfp4BlocksEqualTheIndependentVectors) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  ASSERT_FALSE(parser.load(golden("mxfp4_vectors.json")).get(root));
  for (std::size_t block = 0; block < 12; ++block) {
    std::array<std::uint8_t, 16> codes{};
    for (std::size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<std::uint8_t>(root["blocks"].at(block).at(i).get_uint64().value());
    }
    const auto scale = static_cast<std::uint8_t>(root["scales"].at(block).get_uint64().value());
    std::array<float, 32> out{};
    decode_mxfp4_block(codes, scale, out);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const char* text = root["values"].at(block).at(i).get_c_str().value();
      const double want = std::strtod(text, nullptr);
      // Scale 254 passes float32's range for 2 and more: infinity.
      const bool fits = std::fabs(want) <= std::numeric_limits<float>::max();
      const float infinity = want > 0 ? kInf : -kInf;
      const float want32 = fits ? static_cast<float>(want) : infinity;
      expect_same(out[i], want32, static_cast<int>(block * 32 + i));
    }
  }
}

TEST(Codecs, Mxfp4EncodingInvertsDecoding) {
  // The block's largest magnitude decides the scale, so put a 4 into each block.
  for (int scale = 0; scale <= 252; ++scale) {
    std::array<std::uint8_t, 16> codes{};
    for (std::size_t i = 0; i < 8; ++i) {
      codes[i] = static_cast<std::uint8_t>((2 * i) | ((2 * i + 1) << 4));
    }
    std::array<float, 32> values{};
    decode_mxfp4_block(codes, static_cast<std::uint8_t>(scale), values);
    std::array<std::uint8_t, 16> again{};
    std::uint8_t scale_again = 0;
    encode_mxfp4_block(values, again, &scale_again);
    EXPECT_EQ(scale_again, scale);
    EXPECT_EQ(again, codes) << "scale " << scale;
  }
}

TEST(Codecs, Mxfp4EncodingTakesTheScaleFromTheLargestMagnitude) {
  std::array<float, 32> values{};
  std::array<std::uint8_t, 16> codes{};
  std::uint8_t scale = 99;
  encode_mxfp4_block(values, codes, &scale);
  EXPECT_EQ(scale, 0);
  values[3] = -7.9f;  // floor(log2) is 2: scale 1, and 7.9 saturates at 6
  encode_mxfp4_block(values, codes, &scale);
  EXPECT_EQ(scale, 127);
  EXPECT_EQ(codes[1], 0xF0);
  values[4] = 8.0f;  // scale 2: 8 is 4, -7.9 is -3.95, nearest -4
  encode_mxfp4_block(values, codes, &scale);
  EXPECT_EQ(scale, 128);
  EXPECT_EQ(codes[1], 0xE0);
  EXPECT_EQ(codes[2], 0x06);
  values[0] = kNaN;
  encode_mxfp4_block(values, codes, &scale);
  EXPECT_EQ(scale, 255);
}

TEST(Codecs, DecodeToF32ReadsEveryFloatingDtypeAndRefusesIntegers) {
  // Bytes at an odd address: checkpoints promise no alignment to a decoder.
  const std::array<std::uint8_t, 9> raw = {0xEE, 0x21, 0x40, 0x80, 0x3F, 0x00, 0x00, 0x80, 0x3F};
  const auto* bytes = reinterpret_cast<const std::byte*>(raw.data()) + 1;
  std::array<float, 8> out{};
  ASSERT_TRUE(decode_to_f32(DType::kF4E2M1, bytes, 3, out.data()).ok());
  EXPECT_EQ(out[0], 0.5f);
  EXPECT_EQ(out[1], 1.0f);
  EXPECT_EQ(out[2], 0.0f);
  ASSERT_TRUE(decode_to_f32(DType::kF32, bytes + 4, 1, out.data()).ok());
  EXPECT_EQ(out[0], 1.0f);
  ASSERT_TRUE(decode_to_f32(DType::kBF16, bytes + 2, 1, out.data()).ok());
  EXPECT_EQ(out[0], 1.0f);
  ASSERT_TRUE(decode_to_f32(DType::kF16, bytes + 2, 1, out.data()).ok());
  EXPECT_EQ(out[0], 1.875f);
  ASSERT_TRUE(decode_to_f32(DType::kF8E4M3, bytes + 1, 1, out.data()).ok());
  EXPECT_EQ(out[0], 2.0f);
  ASSERT_TRUE(decode_to_f32(DType::kF8E5M2, bytes + 1, 1, out.data()).ok());
  EXPECT_EQ(out[0], 2.0f);
  ASSERT_TRUE(decode_to_f32(DType::kF8E8M0, bytes + 2, 1, out.data()).ok());
  EXPECT_EQ(out[0], 2.0f);
  for (const DType dtype : {DType::kU8, DType::kI32, DType::kI64}) {
    const auto status = decode_to_f32(dtype, bytes, 1, out.data());
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace holdfast::tensor
