// What the group codecs promise besides the values: guards, damage that stays visible, the packings
// by hand, and errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "tensor/codecs.h"
#include "tensor/fp8_codecs.h"
#include "tensor/int4_codecs.h"
#include "tensor/mx_codecs.h"
#include "tensor/nvfp4_codecs.h"

namespace holdfast::tensor {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;
using Words = std::vector<std::int32_t>;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

void expect_code(const Status& status, ErrorCode code) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), code) << status.error().to_string();
}

TEST(Fp8Codecs, AGroupOfZerosHasAScaleThatIsNotZero) {
  EXPECT_EQ(fp8_scale(Fp8ScaleRule::kWeight, 0.0f), 1.0f);
  EXPECT_EQ(fp8_scale(Fp8ScaleRule::kWeight, 1e-40f), 1.0f);  // its scale would be subnormal
  EXPECT_EQ(fp8_scale(Fp8ScaleRule::kWeight, 896.0f), 2.0f);
  EXPECT_EQ(fp8_scale(Fp8ScaleRule::kToken, 0.0f), 1.0f / (448.0f * 512.0f));
  EXPECT_EQ(fp8_scale(Fp8ScaleRule::kTokenGroup, 0.0f), 1e-10f * (1.0f / 448.0f));
  EXPECT_TRUE(std::isnan(fp8_scale(Fp8ScaleRule::kTokenGroup, kNaN)));
}

TEST(Fp8Codecs, BlocksAtTheEdgesAreSmallerAndHaveTheirOwnScale) {
  const Fp8Layout layout = fp8_blocks({129, 130});
  EXPECT_EQ(layout.scales(), (MatrixSize{2, 2}));
  EXPECT_EQ(layout.scale_index(127, 129), 1);
  EXPECT_EQ(layout.scale_index(128, 0), 2);
  Floats values(129 * 130, 0.0f);
  values[0] = 448.0f;
  values[129] = -224.0f;   // row 0, col 129
  values.back() = 896.0f;  // row 128, col 129
  Bytes codes(values.size());
  Floats scales(4);
  ASSERT_TRUE(encode_fp8(layout, Fp8ScaleRule::kWeight, values, {codes, scales}).ok());
  EXPECT_EQ(scales, (Floats{1.0f, 0.5f, 1.0f, 2.0f}));
  EXPECT_EQ(codes[129], 0xFE);
  EXPECT_EQ(codes.back(), 0x7E);
}

TEST(Fp8Codecs, ANaNOrAnInfinityMakesItsGroupNaNAndNoOther) {
  for (const float damage : {kNaN, kInf, -kInf}) {
    const Floats values = {1.0f, damage, 2.0f, 3.0f};
    Bytes codes(4);
    Floats scales(2);
    Floats out(4);
    const Fp8Layout layout = fp8_per_row({2, 2});
    ASSERT_TRUE(encode_fp8(layout, Fp8ScaleRule::kWeight, values, {codes, scales}).ok());
    ASSERT_TRUE(decode_fp8(layout, codes, scales, out).ok());
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
    EXPECT_EQ(out[3], 3.0f);
  }
}

TEST(Fp8Codecs, StaticScalesSaturateAndMustBeUsable) {
  const Fp8Layout layout = fp8_per_tensor({1, 3});
  const Floats values = {1000.0f, -kInf, kNaN};
  Bytes codes(3);
  ASSERT_TRUE(encode_fp8_static(layout, values, Floats{1.0f}, codes).ok());
  EXPECT_EQ(codes, (Bytes{0x7E, 0xFE, 0x7F}));
  for (const float scale : {0.0f, -1.0f, kNaN, kInf}) {
    expect_code(encode_fp8_static(layout, values, Floats{scale}, codes), ErrorCode::kCorrupt);
  }
}

TEST(Fp8Codecs, SpansOfOtherSizesAreRefused) {
  const Fp8Layout layout = fp8_blocks({128, 128});
  Floats values(128 * 128);
  Bytes codes(values.size());
  Floats scales(2);
  expect_code(decode_fp8(layout, codes, scales, values), ErrorCode::kMismatch);
  scales.resize(1);
  codes.pop_back();
  expect_code(decode_fp8(layout, codes, scales, values), ErrorCode::kMismatch);
  const Fp8Layout no_group{{1, 1}, {0, 1}};
  expect_code(decode_fp8(no_group, codes, scales, values), ErrorCode::kInvalidArgument);
  expect_code(decode_fp8(fp8_per_row({-1, 1}), codes, scales, values),
              ErrorCode::kInvalidArgument);
}

TEST(MxCodecs, TheRulesDifferWhereTheLargestValueWouldSaturate) {
  Floats values(32, 0.0f);
  values[0] = 460.0f;  // over 448: floor saturates it, ceil takes the next power
  Bytes codes(32);
  Bytes scale(1);
  Floats out(32);
  ASSERT_TRUE(encode_mxfp8(E8m0Rule::kFloor, values, codes, scale).ok());
  ASSERT_TRUE(decode_mxfp8(codes, scale, out).ok());
  EXPECT_EQ(scale[0], 127);
  EXPECT_EQ(out[0], 448.0f);
  ASSERT_TRUE(encode_mxfp8(E8m0Rule::kCeil, values, codes, scale).ok());
  ASSERT_TRUE(decode_mxfp8(codes, scale, out).ok());
  EXPECT_EQ(scale[0], 128);
  EXPECT_EQ(out[0], 448.0f);  // 460 / 2 = 230 is nearer to 224 than to 240
  EXPECT_EQ(e8m0_scale(MxElement::kE2M1, E8m0Rule::kEven, 7.0f), 128);
  EXPECT_EQ(e8m0_scale(MxElement::kE2M1, E8m0Rule::kFloor, 7.0f), 127);
}

TEST(MxCodecs, ADamagedBlockDecodesToNaNAndAZeroBlockToZeros) {
  Floats values(64, 0.0f);
  values[40] = kInf;
  Bytes codes(64);
  Bytes scales(2);
  Floats out(64);
  ASSERT_TRUE(encode_mxfp8(E8m0Rule::kCeil, values, codes, scales).ok());
  ASSERT_TRUE(decode_mxfp8(codes, scales, out).ok());
  EXPECT_EQ(scales, (Bytes{0, 0xFF}));
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_TRUE(std::isnan(out[32]));
}

TEST(MxCodecs, TheFloorRuleIsThatOfTheBlockFunction) {
  Floats values(32);
  for (std::size_t i = 0; i < 32; ++i) values[i] = std::sin(static_cast<float>(i)) * 100.0f;
  Bytes codes(16);
  Bytes scale(1);
  ASSERT_TRUE(encode_mxfp4(E8m0Rule::kFloor, values, codes, scale).ok());
  std::array<std::uint8_t, 16> block{};
  std::uint8_t block_scale = 0;
  encode_mxfp4_block(std::span(values).first<32>(), block, &block_scale);
  EXPECT_EQ(scale[0], block_scale);
  EXPECT_TRUE(std::equal(block.begin(), block.end(), codes.begin()));
}

TEST(MxCodecs, SpansThatAreNoWholeBlocksAreRefused) {
  Floats values(33);
  Bytes codes(33);
  Bytes scales(1);
  expect_code(encode_mxfp8(E8m0Rule::kCeil, values, codes, scales), ErrorCode::kMismatch);
  values.resize(32);
  expect_code(encode_mxfp8(E8m0Rule::kCeil, values, codes, scales), ErrorCode::kMismatch);
  codes.resize(32);
  expect_code(decode_mxfp4(codes, scales, values), ErrorCode::kMismatch);
}

TEST(Nvfp4Codecs, BothConventionsOfAGlobalScaleGiveOneMultiplier) {
  EXPECT_EQ(nvfp4_multiplier(GlobalScale::kMultiplier, 0.25f, "weight_scale_2").value(), 0.25f);
  EXPECT_EQ(nvfp4_multiplier(GlobalScale::kDivisor, 4.0f, "weight_global_scale").value(), 0.25f);
  EXPECT_EQ(nvfp4_alpha(0.25f, 0.5f), 0.125f);
  for (const float stored : {0.0f, -1.0f, kNaN, kInf, 1e-40f}) {
    const auto result = nvfp4_multiplier(GlobalScale::kDivisor, stored, "weight_global_scale");
    ASSERT_FALSE(result.ok()) << stored;
    EXPECT_EQ(result.error().code(), ErrorCode::kCorrupt);
    EXPECT_NE(result.error().message().find("weight_global_scale"), std::string::npos);
  }
  EXPECT_EQ(nvfp4_multiplier(GlobalScale::kMultiplier, 0.0f, "weight_scale").error().message(),
            "weight_scale is 0; it must be finite and positive");
}

TEST(Nvfp4Codecs, TheLargestValueOfTheMatrixIsExact) {
  Floats values(32, 0.0f);
  values[3] = 2688.0f;
  values[20] = -6.0f;
  const float global = nvfp4_global(2688.0f);
  EXPECT_EQ(global, 1.0f);
  Bytes codes(16);
  Bytes scales(2);
  Floats out(32);
  ASSERT_TRUE(encode_nvfp4(global, values, {codes, scales}).ok());
  EXPECT_EQ(scales, (Bytes{0x7E, 0x38}));  // 448 and 1
  EXPECT_EQ(codes[1], 0x70);
  ASSERT_TRUE(decode_nvfp4(global, codes, scales, out).ok());
  EXPECT_EQ(out, values);
}

TEST(Nvfp4Codecs, ABlockTooSmallForItsScaleIsZerosAndADamagedOneNaN) {
  Floats values(32, 1e-9f);
  values[1] = -1e-9f;
  values[16] = kNaN;
  Bytes codes(16);
  Bytes scales(2);
  ASSERT_TRUE(encode_nvfp4(1.0f, values, {codes, scales}).ok());
  EXPECT_EQ(scales, (Bytes{0x00, 0x7F}));
  EXPECT_EQ(codes[0], 0x80);
  Floats out(32);
  ASSERT_TRUE(decode_nvfp4(1.0f, codes, scales, out).ok());
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_TRUE(std::isnan(out[17]));
  EXPECT_EQ(nvfp4_global(0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(nvfp4_global(kNaN)));
  expect_code(encode_nvfp4(0.0f, values, {codes, scales}), ErrorCode::kInvalidArgument);
  expect_code(decode_nvfp4(1.0f, codes, Bytes(1), out), ErrorCode::kMismatch);
}

TEST(Int4Codecs, PackingsAreTheirPublishers) {
  const Int4Size size{8, 8, 8};  // eight outputs, eight inputs, one group
  Bytes codes(64);
  for (std::size_t row = 0; row < 8; ++row) {
    for (std::size_t col = 0; col < 8; ++col) {
      codes[row * 8 + col] = static_cast<std::uint8_t>((row + col) % 8);
    }
  }
  Words words(8);
  ASSERT_TRUE(pack_int4_weight(Int4Packing::kGptqV1, size, codes, words).ok());
  EXPECT_EQ(words[0], 0x76543210);  // output 0, inputs 0 ... 7 from the low nibble
  EXPECT_EQ(words[1], 0x07654321);
  ASSERT_TRUE(pack_int4_weight(Int4Packing::kCompressedTensors, size, codes, words).ok());
  EXPECT_EQ(words[1], 0x07654321);
  ASSERT_TRUE(pack_int4_weight(Int4Packing::kAwq, size, codes, words).ok());
  EXPECT_EQ(words[0], 0x75316420);  // input 0, outputs 0 2 4 6 1 3 5 7
  Words zero_word(1);
  ASSERT_TRUE(pack_int4_zeros(Int4Packing::kGptqV1, size, Bytes(8, 8), zero_word).ok());
  EXPECT_EQ(zero_word[0], 0x77777777);
  ASSERT_TRUE(pack_int4_zeros(Int4Packing::kGptqV2, size, Bytes(8, 7), zero_word).ok());
  EXPECT_EQ(zero_word[0], 0x77777777);
  Bytes zeros(8);
  zero_word[0] = -1;
  ASSERT_TRUE(unpack_int4_zeros(Int4Packing::kGptqV1, size, zero_word, zeros).ok());
  EXPECT_EQ(zeros, Bytes(8, 16));
}

TEST(Int4Codecs, ScalesLieAsTheCheckpointHasThem) {
  const Int4Size size{8, 64, 32};
  EXPECT_EQ(int4_scale_index(Int4Packing::kGptqV1, size, 3, 1), 11);
  EXPECT_EQ(int4_scale_index(Int4Packing::kAwq, size, 3, 1), 11);
  EXPECT_EQ(int4_scale_index(Int4Packing::kCompressedTensors, size, 3, 1), 7);
}

TEST(Int4Codecs, ActOrderTakesTheGroupOfEachInput) {
  const Int4Size size{1, 4, 2};
  const Words index = {1, 0, 1, 0};
  const Bytes codes = {9, 9, 7, 0};
  const Bytes zeros = {8, 8};
  const Floats scales = {1.0f, 10.0f};
  Floats out(4);
  ASSERT_TRUE(decode_int4(size, {codes, scales, zeros, index}, out).ok());
  EXPECT_EQ(out, (Floats{10.0f, 1.0f, -10.0f, -8.0f}));
  ASSERT_TRUE(decode_int4(size, {codes, scales, zeros, {}}, out).ok());
  EXPECT_EQ(out, (Floats{1.0f, 1.0f, -10.0f, -80.0f}));
  expect_code(decode_int4(size, {codes, scales, zeros, Words{0, 1, 2, 0}}, out),
              ErrorCode::kCorrupt);
  expect_code(decode_int4(size, {codes, scales, zeros, Words{0, 1}}, out), ErrorCode::kMismatch);
}

TEST(Int4Codecs, AGroupOfZerosDamageAndOverflowHaveTheirRules) {
  const Int4Size size{1, 6, 2};
  const Floats values = {0.0f, 0.0f, kNaN, 1.0f, 1e6f, 1.0f};
  Bytes codes(6);
  Floats scales(3);
  Bytes zeros(3);
  const Int4Rule rule{Int4Zeros::kAsymmetric, DType::kF16};
  ASSERT_TRUE(encode_int4(size, rule, values, {}, {codes, scales, zeros}).ok());
  EXPECT_EQ(scales[0], 1.0f);
  EXPECT_EQ(codes[0], zeros[0]);
  EXPECT_TRUE(std::isnan(scales[1]));
  EXPECT_TRUE(std::isnan(scales[2]));  // 1e6 / 15 is no f16
  Floats out(6);
  ASSERT_TRUE(decode_int4(size, {codes, scales, zeros, {}}, out).ok());
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_TRUE(std::isnan(out[3]) && std::isnan(out[4]));
}

TEST(Int4Codecs, WhatCannotBeIsRefused) {
  Bytes codes(64);
  Words words(8);
  Bytes zeros(8);
  Floats scales(8);
  expect_code(check_int4_size({8, 8, 3}), ErrorCode::kInvalidArgument);
  expect_code(check_int4_size({8, 8, 0}), ErrorCode::kInvalidArgument);
  expect_code(pack_int4_weight(Int4Packing::kAwq, {4, 16, 8}, codes, words),
              ErrorCode::kInvalidArgument);
  expect_code(unpack_int4_weight(Int4Packing::kGptqV1, {8, 16, 8}, words, codes),
              ErrorCode::kMismatch);
  Words zero_word(1);
  expect_code(pack_int4_zeros(Int4Packing::kGptqV1, {8, 8, 8}, zeros, zero_word),
              ErrorCode::kInvalidArgument);  // a zero of 0 cannot be stored minus one
  codes[5] = 16;
  expect_code(pack_int4_weight(Int4Packing::kGptqV1, {8, 8, 8}, codes, words),
              ErrorCode::kInvalidArgument);
  Floats out(64);
  expect_code(decode_int4({8, 8, 8}, {codes, scales, zeros, {}}, out), ErrorCode::kCorrupt);
  codes[5] = 0;
  zeros[0] = 17;
  expect_code(decode_int4({8, 8, 8}, {codes, scales, zeros, {}}, out), ErrorCode::kCorrupt);
  const Int4Rule rule{Int4Zeros::kSymmetric, DType::kF8E4M3};
  expect_code(encode_int4({8, 8, 8}, rule, out, {}, {codes, scales, zeros}),
              ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace holdfast::tensor
