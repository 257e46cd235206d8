// The vectorised encoders against the scalar codecs, bit for bit, on every instruction set that
// this machine has: all scales' edges, every exponent, ties, damage; every layout of the source.
#include "tensor/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "hwy/targets.h"
#include "tensor/codecs.h"
#include "tensor/mx_codecs.h"
#include "tensor/row_encoders.h"
#include "tensor/span_checks.h"

namespace holdfast::tensor {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

Status on_every_target(const std::function<Status(const std::string&)>& run) {
  Status status;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    status = run(hwy::TargetName(target));
    if (!status.ok()) break;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return status;
}

float of_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Runs of 32 around one exponent each, from the smallest to the largest: ties of all formats, their
// neighbours, zeros of both signs, subnormals; one run in 64 has an infinity or a NaN.
Floats mixed_values(std::size_t count, std::uint32_t seed, bool damaged = true) {
  std::mt19937 engine(seed);
  const auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
  Floats out(count);
  std::uint32_t base = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 32 == 0) base = random() % 255;
    const std::uint32_t kind = random() % 16;
    std::uint32_t exponent = static_cast<std::uint32_t>(
        std::clamp<int>(static_cast<int>(base) - static_cast<int>(random() % 12), 0, 254));
    std::uint32_t mantissa = random() & 0x7FFFFFu;
    if (kind < 6) mantissa &= 0x7FFFFFu << (random() % 24);  // few bits: ties
    if (kind == 6) mantissa = (mantissa & 0x780000u) | 0x3FFFFu;
    if (kind == 7) mantissa = (mantissa & 0x780000u) | 1u;
    if (kind == 8) exponent = mantissa = 0;
    out[i] = of_bits(((random() & 1u) << 31) | (exponent << 23) | mantissa);
    if (damaged && i % 2048 == 5) {
      out[i] = of_bits(0x7F800000u | ((random() & 1u) << 31) | (random() & 1u ? 0x12345u : 0u));
    }
  }
  return out;
}

struct Encoded {
  Bytes codes, scales, zeros;
  friend bool operator==(const Encoded&, const Encoded&) = default;
};

// All of a matrix, in ranges of kQuantizeUnit rows, the last ones first.
Result<Encoded> quantize(const QuantizeRule& rule, const MatrixValues& values) {
  HF_ASSIGN(const QuantizedBytes bytes, quantized_bytes(rule, values.size));
  Encoded out{Bytes(bytes.codes, 0xEE), Bytes(bytes.scales, 0xEE), Bytes(bytes.zeros, 0xEE)};
  const auto span = [](Bytes& of) { return std::as_writable_bytes(std::span(of)); };
  const QuantizedMatrix to{span(out.codes), span(out.scales), span(out.zeros)};
  std::int64_t begin = (values.size.rows - 1) / kQuantizeUnit * kQuantizeUnit;
  for (; begin >= 0; begin -= kQuantizeUnit) {
    HF_TRY(quantize_rows(rule, values, {begin, std::min(begin + kQuantizeUnit, values.size.rows)},
                         to));
  }
  return out;
}

void append_scale(DType dtype, float scale, Bytes& out) {
  const std::uint32_t wide = std::bit_cast<std::uint32_t>(scale);
  const std::uint16_t narrow = dtype == DType::kBF16 ? f32_to_bf16(scale) : f32_to_f16(scale);
  const std::size_t width = dtype == DType::kF32 ? 4 : 2;
  out.resize(out.size() + width);
  std::memcpy(out.data() + out.size() - width, dtype == DType::kF32
                  ? static_cast<const void*>(&wide) : static_cast<const void*>(&narrow), width);
}

Bytes pack_nibbles(const Bytes& codes) {
  Bytes out(codes.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
  }
  return out;
}

// The scalar codecs' answer.
Encoded scalar_fp8(const QuantizeRule& rule, MatrixSize size, const Floats& values) {
  const Fp8Layout layout{size, rule.group};
  const MatrixSize grid = layout.scales();
  Floats scales(static_cast<std::size_t>(grid.rows * grid.cols));
  Encoded out{Bytes(values.size()), {}, {}};
  EXPECT_TRUE(encode_fp8(layout, Fp8ScaleRule::kWeight, values, {out.codes, scales}).ok());
  for (float& scale : scales) {
    append_scale(rule.dtype, scale, out.scales);
    if (rule.dtype == DType::kBF16) scale = bf16_to_f32(f32_to_bf16(scale));
    if (rule.dtype == DType::kF16) scale = f16_to_f32(f32_to_f16(scale));
  }
  for (std::int64_t row = 0; row < size.rows; ++row) {
    for (std::int64_t col = 0; col < size.cols; ++col) {
      const auto at = static_cast<std::size_t>(row * size.cols + col);
      const float scale = scales[static_cast<std::size_t>(layout.scale_index(row, col))];
      out.codes[at] = f32_to_f8_e4m3(values[at] / scale);
    }
  }
  return out;
}

Encoded scalar_int4(const QuantizeRule& rule, MatrixSize size, const Floats& values) {
  const Int4Size int4{size.rows, size.cols, rule.group.cols};
  const auto groups = static_cast<std::size_t>(size.rows * int4.groups());
  Bytes codes(values.size());
  Floats scales(groups);
  Encoded out{{}, {}, Bytes(groups)};
  EXPECT_TRUE(encode_int4(int4, {rule.zeros, rule.dtype}, values, {}, {codes, scales, out.zeros})
                  .ok());
  for (const float scale : scales) append_scale(rule.dtype, scale, out.scales);
  if (rule.zeros == Int4Zeros::kSymmetric) out.zeros.clear();
  out.codes = pack_nibbles(codes);
  return out;
}

Encoded scalar_cast(const QuantizeRule& rule, const Floats& values) {
  Encoded out;
  for (const float value : values) append_scale(rule.dtype, value, out.codes);
  return out;
}

Encoded scalar(const QuantizeRule& rule, MatrixSize size, const Floats& values) {
  const std::size_t n = values.size();
  switch (rule.code) {
    case MatrixCode::kCast: return scalar_cast(rule, values);
    case MatrixCode::kMxfp4: {
      Encoded out{Bytes(n / 2), Bytes(n / 32), {}};
      EXPECT_TRUE(encode_mxfp4(E8m0Rule::kFloor, values, out.codes, out.scales).ok());
      return out;
    }
    case MatrixCode::kMxfp8: {
      Encoded out{Bytes(n), Bytes(n / 32), {}};
      EXPECT_TRUE(encode_mxfp8(E8m0Rule::kCeil, values, out.codes, out.scales).ok());
      return out;
    }
    case MatrixCode::kNvfp4: {
      Encoded out{Bytes(n / 2), Bytes(n / 16), {}};
      EXPECT_TRUE(encode_nvfp4(rule.whole, values, {out.codes, out.scales}).ok());
      return out;
    }
    case MatrixCode::kInt4: return scalar_int4(rule, size, values);
    case MatrixCode::kFp8: break;
  }
  return scalar_fp8(rule, size, values);
}

struct Case {
  const char* name;
  QuantizeRule rule;
};
// Every kind; `amax` is the matrix's.
std::vector<Case> cases(MatrixSize size, float amax) {
  using enum MatrixCode;
  const auto fp8 = [](MatrixSize group, DType dtype, float whole = 1.0f) {
    return QuantizeRule{.code = kFp8, .dtype = dtype, .group = group, .whole = whole};
  };
  const auto int4 = [](std::int64_t group, DType dtype, Int4Zeros zeros) {
    return QuantizeRule{.code = kInt4, .dtype = dtype, .group = {1, group}, .zeros = zeros};
  };
  return {{"bf16", {.code = kCast, .dtype = DType::kBF16}},
          {"f16", {.code = kCast, .dtype = DType::kF16}},
          {"f32", {.code = kCast, .dtype = DType::kF32}},
          {"mxfp4", {.code = kMxfp4}},
          {"mxfp8", {.code = kMxfp8}},
          {"nvfp4", {.code = kNvfp4, .whole = 1.0f}},
          {"nvfp4 of its amax", {.code = kNvfp4, .whole = nvfp4_global(amax)}},
          {"nvfp4 with a tiny multiplier", {.code = kNvfp4, .whole = 1e-38f}},
          {"nvfp4 with a huge multiplier", {.code = kNvfp4, .whole = 3e38f}},
          {"fp8 tensor", fp8(size, DType::kF32, amax)},
          {"fp8 channel", fp8({1, size.cols}, DType::kF32)},
          {"fp8 channel, bf16 scales", fp8({1, size.cols}, DType::kBF16)},
          {"fp8 block", fp8({128, 128}, DType::kF32)},
          {"fp8 block, bf16 scales", fp8({128, 128}, DType::kBF16)},
          {"int4", int4(32, DType::kBF16, Int4Zeros::kSymmetric)},
          {"int4, f16 scales", int4(32, DType::kF16, Int4Zeros::kSymmetric)},
          {"int4 with zeros", int4(96, DType::kBF16, Int4Zeros::kAsymmetric)},
          {"int4 with zeros, a whole row", int4(size.cols, DType::kF32, Int4Zeros::kAsymmetric)}};
}

// Values that survive `dtype`, and how they lie.
struct Source {
  Floats values;      // row-major
  std::vector<std::byte> stored;
  MatrixValues view;
};
enum class Lie { kRows, kInputMajor, kInterleaved };
Source make_source(MatrixSize size, DType dtype, Lie lie, Floats values) {
  Source out{std::move(values), {}, {dtype, nullptr, size, size.cols, 1}};
  const std::size_t width = dtype == DType::kF32 ? 4 : 2;
  if (lie == Lie::kInputMajor) out.view.row_stride = 1, out.view.col_stride = size.rows;
  if (lie == Lie::kInterleaved) out.view.row_stride = 2, out.view.col_stride = 2 * size.rows;
  out.stored.assign(2 * out.values.size() * width, std::byte{0xAA});
  for (std::int64_t row = 0; row < size.rows; ++row) {
    for (std::int64_t col = 0; col < size.cols; ++col) {
      float& value = out.values[static_cast<std::size_t>(row * size.cols + col)];
      const std::uint16_t bits = dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
      if (dtype == DType::kBF16) value = bf16_to_f32(bits);
      if (dtype == DType::kF16) value = f16_to_f32(bits);
      const auto at = static_cast<std::size_t>(row * out.view.row_stride +
                                               col * out.view.col_stride) * width;
      std::memcpy(out.stored.data() + at, dtype == DType::kF32
                      ? static_cast<const void*>(&value) : static_cast<const void*>(&bits), width);
    }
  }
  out.view.data = out.stored.data();
  return out;
}

float finite_part_amax(const Floats& values) {
  float amax = 0.0f;
  for (const float value : values) {
    if (std::isfinite(value)) amax = std::max(amax, std::fabs(value));
  }
  return amax;
}

void expect_as_scalar(MatrixSize size, const Source& source) {
  for (const Case& test : cases(size, finite_part_amax(source.values))) {
    const Encoded want = scalar(test.rule, size, source.values);
    const Status done = on_every_target([&](const std::string& target) -> Status {
      HF_ASSIGN(const Encoded have, quantize(test.rule, source.view));
      EXPECT_TRUE(have.codes == want.codes) << test.name << ": codes on " << target;
      EXPECT_TRUE(have.scales == want.scales) << test.name << ": scales on " << target;
      EXPECT_TRUE(have.zeros == want.zeros) << test.name << ": zeros on " << target;
      return {};
    });
    EXPECT_TRUE(done.ok()) << test.name << ": " << done.error().to_string();
  }
}

TEST(Quantize, GivesTheScalarCodecsBitsOnEveryInstructionSet) {
  const MatrixSize size{160, 288};
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    expect_as_scalar(size, make_source(size, DType::kF32, Lie::kRows,
                                       mixed_values(160 * 288, seed, false)));
  }
}

TEST(Quantize, EveryLayoutAndDtypeOfTheSourceGivesTheBitsOfItsValues) {
  const MatrixSize size{200, 96};
  std::uint32_t seed = 10;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Lie lie : {Lie::kRows, Lie::kInputMajor, Lie::kInterleaved}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " lying " << static_cast<int>(lie));
      Floats values = mixed_values(200 * 96, ++seed, false);
      if (dtype == DType::kF16) {  // what f16 can hold
        int exponent = 0;
        for (float& value : values) value = std::ldexp(std::frexp(value, &exponent), exponent % 14);
      }
      expect_as_scalar(size, make_source(size, dtype, lie, std::move(values)));
    }
  }
}

TEST(Quantize, ADamagedGroupIsDamagedAsTheScalarCodecsSayAndNoOther) {
  const MatrixSize size{160, 288};
  const Source source = make_source(size, DType::kF32, Lie::kRows, mixed_values(160 * 288, 8));
  for (const Case& test : cases(size, finite_part_amax(source.values))) {
    QuantizeRule rule = test.rule;  // one scale of all of it is damaged as a whole
    if (rule.code == MatrixCode::kFp8) rule.whole = std::numeric_limits<float>::quiet_NaN();
    const auto have = quantize(rule, source.view);
    ASSERT_TRUE(have.ok()) << test.name;
    EXPECT_TRUE(*have == scalar(rule, size, source.values)) << test.name;
  }
  EXPECT_TRUE(std::isnan(matrix_amax(source.view, {0, 160}).value()));
}

// Every bf16 pattern, and each format's ties between them, through the element encoders.
TEST(Quantize, EveryBf16AndItsNeighboursRoundAsTheScalarCodecs) {
  Floats values;
  for (std::uint32_t bits = 0; bits <= 0xFFFFu; ++bits) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x8000u, 0xFFFFu}) {
      values.push_back(of_bits((bits << 16) | low));
    }
  }
  values.resize(values.size() - 3);  // a tail
  const Status done = on_every_target([&](const std::string& target) -> Status {
    Bytes codes(values.size());
    std::vector<std::uint16_t> bf16(values.size()), f16(values.size());
    encode_e4m3_run(1.0f, values.data(), values.size(), codes.data());
    narrow_to_bf16(values.data(), values.size(), bf16.data());
    narrow_to_f16(values.data(), values.size(), f16.data());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      wrong += codes[i] != f32_to_f8_e4m3(values[i]) || bf16[i] != f32_to_bf16(values[i]) ||
               f16[i] != f32_to_f16(values[i]);
    }
    EXPECT_EQ(wrong, 0u) << target;
    Floats wide(bf16.size());
    widen_bf16(bf16.data(), bf16.size(), wide.data());
    for (std::size_t i = 0; i < wide.size(); ++i) {
      wrong += std::bit_cast<std::uint32_t>(wide[i]) != static_cast<std::uint32_t>(bf16[i]) << 16;
    }
    EXPECT_EQ(wrong, 0u) << target;
    return {};
  });
  EXPECT_TRUE(done.ok());
}

TEST(Quantize, TheAmaxIsTheLargestMagnitudeOfTheRowsAsked) {
  Floats values(4 * 33, 0.0f);
  values[1 * 33 + 32] = -7.0f;
  values[3 * 33 + 1] = 9.0f;
  const MatrixValues view{DType::kF32, std::as_bytes(std::span(values)).data(), {4, 33}, 33, 1};
  EXPECT_EQ(matrix_amax(view, {0, 3}).value(), 7.0f);
  EXPECT_EQ(matrix_amax(view, {0, 4}).value(), 9.0f);
  EXPECT_EQ(matrix_amax(view, {2, 3}).value(), 0.0f);
  EXPECT_FALSE(matrix_amax(view, {2, 5}).ok());
}

TEST(Quantize, BothConventionsOfAGlobalScaleMeanAlmostTheSameMultiplier) {
  for (const float amax : {1e-30f, 0.02f, 2688.0f, 3e30f}) {
    const Nvfp4Global small = choose_nvfp4_global(GlobalScale::kMultiplier, amax);
    const Nvfp4Global large = choose_nvfp4_global(GlobalScale::kDivisor, amax);
    EXPECT_EQ(small.stored, amax / 2688.0f);
    EXPECT_EQ(small.multiplier, small.stored);
    EXPECT_EQ(large.stored, 2688.0f / amax);
    EXPECT_EQ(large.multiplier, nvfp4_multiplier(GlobalScale::kDivisor, large.stored, "").value());
    EXPECT_NEAR(large.multiplier / small.multiplier, 1.0f, 1e-6f);
  }
  for (const float amax : {0.0f, 1e-40f}) {
    EXPECT_EQ(choose_nvfp4_global(GlobalScale::kDivisor, amax).stored, 1.0f);
    EXPECT_EQ(choose_nvfp4_global(GlobalScale::kMultiplier, amax).stored, 1.0f);
  }
}

TEST(Quantize, SizesThatASchemeCannotHoldAreRefusedWithBothNumbers) {
  const auto error_of = [](const QuantizeRule& rule, MatrixSize size) {
    const auto bytes = quantized_bytes(rule, size);
    EXPECT_FALSE(bytes.ok());
    return bytes.ok() ? std::string() : bytes.error().to_string();
  };
  EXPECT_NE(error_of({.code = MatrixCode::kMxfp4}, {8, 48}).find("[8, 48]"), std::string::npos);
  EXPECT_NE(error_of({.code = MatrixCode::kNvfp4}, {8, 24}).find("16"), std::string::npos);
  EXPECT_NE(error_of({.code = MatrixCode::kInt4, .group = {1, 7}}, {8, 14}).find("even"),
            std::string::npos);
  error_of({.code = MatrixCode::kInt4, .group = {1, 0}}, {8, 14});
  error_of({.code = MatrixCode::kInt4, .dtype = DType::kU8, .group = {1, 2}}, {8, 14});
  error_of({.code = MatrixCode::kCast, .dtype = DType::kI32}, {8, 14});
  error_of({.code = MatrixCode::kFp8, .group = {96, 128}}, {200, 128});
  error_of({.code = MatrixCode::kFp8, .group = {0, 128}}, {200, 128});
  error_of({.code = MatrixCode::kMxfp8}, {0, 32});
  error_of({.code = MatrixCode::kNvfp4, .whole = 0.0f}, {8, 32});
  error_of({.code = MatrixCode::kNvfp4, .whole = std::numeric_limits<float>::quiet_NaN()},
           {8, 32});
}

TEST(Quantize, SpansAndRangesOfOtherSizesAreRefused) {
  Floats values(256 * 32, 1.0f);
  const MatrixValues view{DType::kF32, std::as_bytes(std::span(values)).data(), {256, 32}, 32, 1};
  const QuantizeRule rule{.code = MatrixCode::kMxfp8};
  std::vector<std::byte> codes(256 * 32), scales(256);
  EXPECT_TRUE(quantize_rows(rule, view, {128, 256}, {codes, scales, {}}).ok());
  EXPECT_FALSE(quantize_rows(rule, view, {64, 128}, {codes, scales, {}}).ok());
  EXPECT_FALSE(quantize_rows(rule, view, {0, 100}, {codes, scales, {}}).ok());
  EXPECT_FALSE(quantize_rows(rule, view, {0, 512}, {codes, scales, {}}).ok());
  EXPECT_FALSE(quantize_rows(rule, view, {0, 128}, {codes, codes, {}}).ok());
  EXPECT_FALSE(quantize_rows(rule, view, {0, 128}, {codes, scales, scales}).ok());
  MatrixValues integers = view;
  integers.dtype = DType::kI32;
  EXPECT_FALSE(quantize_rows(rule, integers, {0, 128}, {codes, scales, {}}).ok());
}

}  // namespace
}  // namespace holdfast::tensor
