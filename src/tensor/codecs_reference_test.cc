// The codecs against tools/make_fixture, which computes the same values in numpy float64 and stores
// digests: every code and about a million random values a scheme, bit for bit.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tensor/codecs.h"
#include "tensor/fp8_codecs.h"
#include "tensor/int4_codecs.h"
#include "tensor/mx_codecs.h"
#include "tensor/nvfp4_codecs.h"
#include "tensor/span_checks.h"

namespace holdfast::tensor {
namespace {

constexpr std::size_t kMillion = 1u << 20;
using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;
using Digests = std::map<std::string, std::string>;

// tools/fixtures/streams.py ----------------------------------------------------------------------

std::uint64_t splitmix64(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t state = seed + (counter + 1) * 0x9E3779B97F4A7C15u;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
  return state ^ (state >> 31);
}

float raw_value(std::uint64_t seed, std::uint64_t counter) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(splitmix64(seed, counter) >> 32));
}

struct Spread {
  std::uint64_t seed;
  std::uint64_t low;  // biased exponents of the runs of 128
  std::uint64_t high;

  float value(std::uint64_t counter) const {
    const std::uint64_t h = splitmix64(seed, counter);
    const std::uint64_t run = splitmix64(seed ^ 0xD1B54A32D192ED03u, counter / 128);
    const auto base = static_cast<std::int64_t>(low + run % (high - low + 1));
    const std::uint64_t kind = h >> 56;
    std::uint64_t mantissa = h & 0x7FFFFF;
    auto exponent = static_cast<std::uint64_t>(
        std::clamp<std::int64_t>(base + static_cast<std::int64_t>((h >> 23) & 15) - 12, 1, 254));
    if (kind <= 1) exponent = 0;
    if (kind == 0) mantissa = 0;
    if (kind >= 2 && kind <= 33) mantissa &= 0x780000;
    if (kind == 34 && ((h >> 40) & 0x7F) == 0) {
      exponent = 255;
      mantissa = ((h >> 47) & 1) != 0 ? mantissa | 1 : 0;
    }
    const std::uint64_t sign = (h >> 55) & 1;
    return std::bit_cast<float>(
        static_cast<std::uint32_t>((sign << 31) | (exponent << 23) | mantissa));
  }

  Floats values(std::size_t count) const {
    Floats out(count);
    for (std::size_t i = 0; i < count; ++i) out[i] = value(i);
    return out;
  }
};

// Digests ----------------------------------------------------------------------------------------

std::string crc32(std::span<const std::uint8_t> bytes) {
  static const auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) * 0xEDB88320u);
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t state = 0xFFFFFFFFu;
  for (const std::uint8_t byte : bytes) state = kTable[(state ^ byte) & 0xFF] ^ (state >> 8);
  std::array<char, 9> text{};
  std::snprintf(text.data(), text.size(), "%08x", ~state);
  return text.data();
}

template <typename T>
std::string digest(const std::vector<T>& values) {
  return crc32({reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(T)});
}

std::string digest(const Floats& values) {
  std::vector<std::uint32_t> bits(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    bits[i] = std::isnan(values[i]) ? 0x7FC00000u : std::bit_cast<std::uint32_t>(values[i]);
  }
  return digest(bits);
}

void check(const Status& status) {
  ASSERT_TRUE(status.ok()) << status.error().to_string();
}

// The cases, by the names of the golden file -----------------------------------------------------

template <typename Code>
Digests element(Code (*encode)(float), const std::function<float(std::uint64_t)>& value) {
  std::vector<Code> codes(kMillion);
  for (std::size_t i = 0; i < kMillion; ++i) codes[i] = encode(value(i));
  return {{"codes", digest(codes)}};
}

template <typename Code>
Digests every_code(float (*decode)(Code), std::size_t count) {
  Floats values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = decode(static_cast<Code>(i));
  return {{"decoded", digest(values)}};
}

Digests every_mx_code(MxElement element) {
  const bool nibbles = element == MxElement::kE2M1;
  Floats out(256 * 256);
  Bytes codes(nibbles ? out.size() / 2 : out.size());
  Bytes scales(out.size() / kMxBlock);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::size_t low = 2 * i % 16;
    codes[i] = static_cast<std::uint8_t>(nibbles ? low | ((low + 1) << 4) : i % 256);
  }
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(i / 8);
  check(nibbles ? decode_mxfp4(codes, scales, out) : decode_mxfp8(codes, scales, out));
  return {{"decoded", digest(out)}};
}

Digests every_nvfp4_code() {
  Floats out(256 * 16);
  Bytes codes(out.size() / 2);
  Bytes scales(256);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::size_t low = 2 * i % 16;
    codes[i] = static_cast<std::uint8_t>(low | ((low + 1) << 4));
  }
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(i);
  check(decode_nvfp4(0.0123f, codes, scales, out));
  return {{"decoded", digest(out)}};
}

Digests fp8(const Fp8Layout& layout, Fp8ScaleRule rule, std::uint64_t seed) {
  const auto count = static_cast<std::size_t>(layout.size.rows * layout.size.cols);
  const Floats values = Spread{seed, 1, 254}.values(count);
  Bytes codes(count);
  Floats scales(static_cast<std::size_t>(layout.scales().rows * layout.scales().cols));
  Floats decoded(count);
  check(encode_fp8(layout, rule, values, {codes, scales}));
  check(decode_fp8(layout, codes, scales, decoded));
  return {{"codes", digest(codes)}, {"scales", digest(scales)}, {"decoded", digest(decoded)}};
}

Digests fp8_static() {
  const Fp8Layout layout = fp8_per_tensor({1024, 1024});
  const Floats values = Spread{310, 100, 140}.values(kMillion);
  const Floats scales = {0.0371f};
  Bytes codes(kMillion);
  Floats decoded(kMillion);
  check(encode_fp8_static(layout, values, scales, codes));
  check(decode_fp8(layout, codes, scales, decoded));
  return {{"codes", digest(codes)}, {"scales", digest(scales)}, {"decoded", digest(decoded)}};
}

Digests mx(MxElement element, E8m0Rule rule, std::uint64_t seed) {
  const bool nibbles = element == MxElement::kE2M1;
  const Floats values = Spread{seed, 1, 254}.values(kMillion);
  Bytes codes(nibbles ? kMillion / 2 : kMillion);
  Bytes scales(kMillion / kMxBlock);
  Floats decoded(kMillion);
  check(nibbles ? encode_mxfp4(rule, values, codes, scales)
                : encode_mxfp8(rule, values, codes, scales));
  check(nibbles ? decode_mxfp4(codes, scales, decoded) : decode_mxfp8(codes, scales, decoded));
  return {{"codes", digest(codes)}, {"scales", digest(scales)}, {"decoded", digest(decoded)}};
}

// `tensor` values share a global scale: their own, or `fixed` when it is given.
Digests nvfp4(const Spread& spread, std::size_t tensor, float fixed) {
  const Floats values = spread.values(kMillion);
  Bytes codes(kMillion / 2);
  Bytes scales(kMillion / kNvfp4Block);
  Floats decoded(kMillion);
  Floats globals;
  for (std::size_t begin = 0; begin < kMillion; begin += tensor) {
    const std::span part = std::span(values).subspan(begin, tensor);
    const float own = nvfp4_global(finite_amax(part));
    const float global = fixed != 0.0f ? fixed : std::isnan(own) ? 1.0f : own;
    globals.push_back(global);
    const Nvfp4Encoded out{std::span(codes).subspan(begin / 2, tensor / 2),
                           std::span(scales).subspan(begin / kNvfp4Block, tensor / kNvfp4Block)};
    check(encode_nvfp4(global, part, out));
    check(decode_nvfp4(global, out.codes, out.scales, std::span(decoded).subspan(begin, tensor)));
  }
  return {{"codes", digest(codes)}, {"scales", digest(scales)}, {"global", digest(globals)},
          {"decoded", digest(decoded)}};
}

Digests int4(const Int4Rule& rule, std::int64_t group, const Spread& spread, bool act_order) {
  const Int4Size size{1024, 1024, group};
  std::vector<std::int32_t> index;
  for (std::int32_t col = 0; act_order && col < 1024; ++col) {
    index.push_back(static_cast<std::int32_t>(col * 37 % 1024 / group));
  }
  const Floats values = spread.values(kMillion);
  Bytes codes(kMillion);
  Bytes zeros(static_cast<std::size_t>(1024 * size.groups()));
  Floats scales(zeros.size());
  Floats decoded(kMillion);
  check(encode_int4(size, rule, values, index, {codes, scales, zeros}));
  check(decode_int4(size, {codes, scales, zeros, index}, decoded));
  return {{"codes", digest(codes)}, {"scales", digest(scales)}, {"zeros", digest(zeros)},
          {"decoded", digest(decoded)}};
}

Digests int4_packing(Int4Packing packing) {
  const Int4Size size{256, 512, 32};
  Bytes codes(256 * 512);
  Bytes zeros(256 * 16);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::uint8_t>(splitmix64(700, i) >> 60);
  }
  const unsigned offset = packing == Int4Packing::kGptqV1 ? 1 : 0;
  for (std::size_t i = 0; i < zeros.size(); ++i) {
    zeros[i] = static_cast<std::uint8_t>((splitmix64(701, i) >> 60) + offset);
  }
  std::vector<std::int32_t> words(codes.size() / 8);
  std::vector<std::int32_t> zero_words(zeros.size() / 8);
  check(pack_int4_weight(packing, size, codes, words));
  check(pack_int4_zeros(packing, size, zeros, zero_words));
  Bytes codes_again(codes.size());
  Bytes zeros_again(zeros.size());
  check(unpack_int4_weight(packing, size, words, codes_again));
  check(unpack_int4_zeros(packing, size, zero_words, zeros_again));
  EXPECT_EQ(codes_again, codes);
  EXPECT_EQ(zeros_again, zeros);
  return {{"codes", digest(words)}, {"zeros", digest(zero_words)}};
}

using Cases = std::map<std::string, std::function<Digests()>>;

template <typename Code>
void add_element(Cases& cases, const std::string& name, Code (*encode)(float), Spread spread) {
  const std::uint64_t raw_seed = spread.seed - 100;
  cases["element." + name + ".raw"] = [=] {
    return element(encode, [=](std::uint64_t i) { return raw_value(raw_seed, i); });
  };
  cases["element." + name + ".spread"] = [=] {
    return element(encode, [=](std::uint64_t i) { return spread.value(i); });
  };
}

Cases format_cases() {
  Cases cases;
  add_element(cases, "e2m1", f32_to_f4_e2m1, {200, 120, 132});
  add_element(cases, "e4m3", f32_to_f8_e4m3, {201, 112, 138});
  add_element(cases, "e5m2", f32_to_f8_e5m2, {202, 105, 145});
  add_element(cases, "f16", f32_to_f16, {203, 100, 145});
  add_element(cases, "bf16", f32_to_bf16, {204, 1, 254});
  cases["every_code.e2m1"] = [] { return every_code(f4_e2m1_to_f32, 16); };
  cases["every_code.e4m3"] = [] { return every_code(f8_e4m3_to_f32, 256); };
  cases["every_code.e5m2"] = [] { return every_code(f8_e5m2_to_f32, 256); };
  cases["every_code.e8m0"] = [] { return every_code(f8_e8m0_to_f32, 256); };
  cases["every_code.f16"] = [] { return every_code(f16_to_f32, 65536); };
  cases["every_code.bf16"] = [] { return every_code(bf16_to_f32, 65536); };
  cases["every_code.mx.e2m1"] = [] { return every_mx_code(MxElement::kE2M1); };
  cases["every_code.mx.e4m3"] = [] { return every_mx_code(MxElement::kE4M3); };
  cases["every_code.nvfp4"] = every_nvfp4_code;
  return cases;
}

Cases scheme_cases() {
  Cases cases;
  const MatrixSize square{1024, 1024};
  const MatrixSize odd{1100, 950};
  cases["fp8.tensor"] = [] {  // 256 tensors of 64 x 64, one below the other
    return fp8({{256 * 64, 64}, {64, 64}}, Fp8ScaleRule::kWeight, 300);
  };
  cases["fp8.row"] = [=] { return fp8(fp8_per_row(square), Fp8ScaleRule::kWeight, 301); };
  cases["fp8.token"] = [=] { return fp8(fp8_per_row(square), Fp8ScaleRule::kToken, 302); };
  cases["fp8.block"] = [=] { return fp8(fp8_blocks(odd), Fp8ScaleRule::kWeight, 303); };
  cases["fp8.token_group"] = [=] {
    return fp8(fp8_token_groups(odd), Fp8ScaleRule::kTokenGroup, 304);
  };
  cases["fp8.static"] = fp8_static;
  const std::pair<const char*, E8m0Rule> rules[] = {
      {"floor", E8m0Rule::kFloor}, {"ceil", E8m0Rule::kCeil}, {"even", E8m0Rule::kEven}};
  for (const auto& [name, rule] : rules) {
    cases[std::string("mxfp4.") + name] = [=] { return mx(MxElement::kE2M1, rule, 400); };
    cases[std::string("mxfp8.") + name] = [=] { return mx(MxElement::kE4M3, rule, 401); };
  }
  cases["nvfp4.own"] = [] { return nvfp4({500, 120, 132}, 1024, 0.0f); };
  cases["nvfp4.fixed"] = [] { return nvfp4({501, 90, 150}, kMillion, 0.00137f); };
  cases["int4.symmetric.bf16.32"] = [] {
    return int4({Int4Zeros::kSymmetric, DType::kBF16}, 32, {600, 1, 254}, false);
  };
  cases["int4.asymmetric.f16.128"] = [] {
    return int4({Int4Zeros::kAsymmetric, DType::kF16}, 128, {601, 90, 150}, false);
  };
  cases["int4.symmetric.f32.64.act_order"] = [] {
    return int4({Int4Zeros::kSymmetric, DType::kF32}, 64, {602, 100, 140}, true);
  };
  cases["int4.asymmetric.bf16.1024"] = [] {
    return int4({Int4Zeros::kAsymmetric, DType::kBF16}, 1024, {603, 90, 150}, false);
  };
  cases["int4.packing.gptq_v1"] = [] { return int4_packing(Int4Packing::kGptqV1); };
  cases["int4.packing.gptq_v2"] = [] { return int4_packing(Int4Packing::kGptqV2); };
  cases["int4.packing.awq"] = [] { return int4_packing(Int4Packing::kAwq); };
  cases["int4.packing.compressed_tensors"] = [] {
    return int4_packing(Int4Packing::kCompressedTensors);
  };
  return cases;
}

std::map<std::string, Digests> golden_digests() {
  simdjson::dom::parser parser;
  std::map<std::string, Digests> golden;
  const simdjson::dom::object cases =
      parser.load(HF_SOURCE_DIR "/tests/golden/codecs/digests.json")["cases"].get_object();
  for (const auto& [name, parts] : cases) {
    for (const auto& [part, text] : parts.get_object()) {
      golden[std::string(name)][std::string(part)] = std::string(text.get_c_str());
    }
  }
  return golden;
}

TEST(CodecsReference, FormatsAgreeWithNumpyOnEveryCodeAndAMillionValues) {
  const auto golden = golden_digests();
  for (const auto& [name, compute] : format_cases()) {
    ASSERT_TRUE(golden.contains(name)) << name << " is not in the golden file";
    EXPECT_EQ(compute(), golden.at(name)) << name;
  }
}

TEST(CodecsReference, SchemesAgreeWithNumpyOnAMillionValues) {
  const auto golden = golden_digests();
  for (const auto& [name, compute] : scheme_cases()) {
    ASSERT_TRUE(golden.contains(name)) << name << " is not in the golden file";
    EXPECT_EQ(compute(), golden.at(name)) << name;
  }
}

TEST(CodecsReference, EveryGoldenCaseIsTested) {
  const Cases formats = format_cases();
  const Cases schemes = scheme_cases();
  for (const auto& [name, parts] : golden_digests()) {
    EXPECT_TRUE(formats.contains(name) || schemes.contains(name)) << name;
  }
}

using Pairs = std::vector<std::pair<float, std::uint8_t>>;

Pairs edges(const char* table, const char* name) {
  simdjson::dom::parser parser;
  Pairs pairs;
  const simdjson::dom::array rows =
      parser.load(HF_SOURCE_DIR "/tests/golden/codecs/edges.json")[table][name].get_array();
  for (const simdjson::dom::element row : rows) {
    const auto bits = static_cast<std::uint32_t>(row.at(0).get_uint64().value());
    pairs.emplace_back(std::bit_cast<float>(bits),
                       static_cast<std::uint8_t>(row.at(1).get_uint64().value()));
  }
  return pairs;
}

TEST(CodecsReference, TiesAndTheirNeighboursRoundAsNumpyFinds) {
  const std::pair<const char*, std::uint8_t (*)(float)> formats[] = {
      {"e2m1", f32_to_f4_e2m1}, {"e4m3", f32_to_f8_e4m3}, {"e5m2", f32_to_f8_e5m2}};
  for (const auto& [name, encode] : formats) {
    const Pairs pairs = edges("scalars", name);
    ASSERT_GT(pairs.size(), 60u);
    for (const auto& [value, code] : pairs) EXPECT_EQ(encode(value), code) << name << " " << value;
  }
}

TEST(CodecsReference, ScaleBytesFollowEachRule) {
  for (const auto& [element, prefix] :
       {std::pair(MxElement::kE2M1, "e2m1."), std::pair(MxElement::kE4M3, "e4m3.")}) {
    for (const auto& [rule, name] :
         {std::pair(E8m0Rule::kFloor, "floor"), std::pair(E8m0Rule::kCeil, "ceil"),
          std::pair(E8m0Rule::kEven, "even")}) {
      const std::string key = std::string(prefix) + name;
      const Pairs pairs = edges("e8m0", key.c_str());
      ASSERT_GT(pairs.size(), 20u);
      for (const auto& [amax, byte] : pairs) {
        EXPECT_EQ(e8m0_scale(element, rule, amax), byte) << key << " " << amax;
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::tensor
