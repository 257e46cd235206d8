#include "reload/sanity.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "tensor/codecs.h"

namespace holdfast::reload {
namespace {

constexpr std::uint64_t spread(std::uint64_t lane, int bits) {
  std::uint64_t word = 0;
  for (int at = 0; at < 64; at += bits) word |= lane << at;
  return word;
}
constexpr device::LaneTest lane_test(std::uint64_t mask, std::size_t width,
                                     bool whole_byte = false) {
  const int bits = static_cast<int>(width) * 8;
  const std::uint64_t top = spread(std::uint64_t{1} << (bits - 1), bits);
  return {spread(mask, bits), spread(mask & (~mask + 1), bits), top, whole_byte ? top : 0, width};
}

// gpt-oss, OpenAI's own gpt-oss and GPTQ; one tensor for each expert or projection.
bool is_scale(std::string_view name) {
  for (const std::string_view end :
       {"_scales", ".scales", ".weight_scale", ".weight_scale_inv", ".weight_scale_2",
        ".weight_global_scale", ".input_scale", ".input_global_scale"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

// The sign bit.
constexpr device::LaneTest sign_test(std::size_t width) {
  const int bits = static_cast<int>(width) * 8;
  const std::uint64_t top = spread(std::uint64_t{1} << (bits - 1), bits);
  return {top, 0, top, 0, width};
}

}  // namespace

Insanity insanity_of(std::string_view name, tensor::DType dtype) {
  const bool scale = is_scale(name);
  switch (dtype) {
    case tensor::DType::kF32: return scale ? Insanity::kF32Scale : Insanity::kF32NotFinite;
    case tensor::DType::kF16: return scale ? Insanity::kF16Scale : Insanity::kF16NotFinite;
    case tensor::DType::kBF16: return scale ? Insanity::kBF16Scale : Insanity::kBF16NotFinite;
    case tensor::DType::kF8E4M3: return scale ? Insanity::kF8E4M3Scale : Insanity::kF8E4M3Nan;
    case tensor::DType::kF8E5M2: return Insanity::kF8E5M2NotFinite;
    case tensor::DType::kF8E8M0: return Insanity::kE8M0Nan;
    case tensor::DType::kU8: return scale ? Insanity::kE8M0Nan : Insanity::kNone;
    case tensor::DType::kF4E2M1:
    case tensor::DType::kI32:
    case tensor::DType::kI64: break;
  }
  return Insanity::kNone;
}

std::string insanity_text(Insanity insanity, tensor::DType dtype, const std::byte* element) {
  if (insanity == Insanity::kE8M0Nan) return "the e8m0 NaN 0xFF";
  const bool scale = insanity == Insanity::kF32Scale || insanity == Insanity::kF16Scale ||
                     insanity == Insanity::kBF16Scale || insanity == Insanity::kF8E4M3Scale;
  float value = 0;
  tensor::decode_to_f32(dtype, element, 1, &value).value();
  return fmt::format("{}; a {} is finite{}",
                     std::isnan(value) ? std::string("NaN") : fmt::format("{}", value),
                     scale ? "scale" : "weight", scale ? " and not negative" : "");
}

std::vector<device::LaneTest> lane_tests_of(Insanity insanity) {
  switch (insanity) {
    case Insanity::kF32NotFinite: return {lane_test(0x7F800000, 4)};
    case Insanity::kF16NotFinite: return {lane_test(0x7C00, 2)};
    case Insanity::kBF16NotFinite: return {lane_test(0x7F80, 2)};
    case Insanity::kF8E4M3Nan: return {lane_test(0x7F, 1)};
    case Insanity::kF8E5M2NotFinite: return {lane_test(0x7C, 1)};
    // The sign bit is an exponent bit there.
    case Insanity::kE8M0Nan: return {lane_test(0x7F, 1, true)};
    case Insanity::kF32Scale: return {lane_test(0x7F800000, 4), sign_test(4)};
    case Insanity::kF16Scale: return {lane_test(0x7C00, 2), sign_test(2)};
    case Insanity::kBF16Scale: return {lane_test(0x7F80, 2), sign_test(2)};
    case Insanity::kF8E4M3Scale: return {lane_test(0x7F, 1), sign_test(1)};
    case Insanity::kNone: break;
  }
  return {};
}

std::optional<std::size_t> find_insane(std::span<const std::byte> bytes, Insanity insanity) {
  std::optional<std::size_t> first;
  for (const device::LaneTest& test : lane_tests_of(insanity)) {
    const auto found = device::find_lane(bytes, test);
    if (found && (!first || *found < *first)) first = found;
  }
  return first;
}

}  // namespace holdfast::reload
