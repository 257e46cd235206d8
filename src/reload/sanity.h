// Sanity: whether weights hold only values that arithmetic can use. Integer tests on whole words,
// so that a check costs about what reading the bytes costs. Pure; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/lanes.h"
#include "tensor/dtype.h"

namespace holdfast::reload {

// What a tensor's elements must not be.
enum class Insanity : std::uint8_t {
  kNone,  // every bit pattern is a value (integers, packed 4-bit blocks)
  kF32NotFinite,
  kF16NotFinite,
  kBF16NotFinite,
  kF8E4M3Nan,  // e4m3fn has no infinity
  kF8E5M2NotFinite,
  kE8M0Nan,  // 0xFF
  // Of scales: not finite, or negative (whose sign some kernels drop and others keep). Zero is one.
  kF32Scale,
  kF16Scale,
  kBF16Scale,
  kF8E4M3Scale,
};

// By dtype, and for scales by the name's end: "scales", "weight_scale", "weight_scale_inv", ... A
// u8 tensor of such a name holds e8m0 exponents.
Insanity insanity_of(std::string_view name, tensor::DType dtype);
// What an insane element is and what it must be: "-0.5; a scale is finite and not negative", "the
// e8m0 NaN 0xFF", ... `element` is one of `dtype`.
std::string insanity_text(Insanity insanity, tensor::DType dtype, const std::byte* element);

// The same as tests that a device can make: an element is insane that one of them hits.
std::vector<device::LaneTest> lane_tests_of(Insanity insanity);

// The index of the first element of `bytes` that is insane. `bytes` starts at an element; a last
// incomplete element is ignored.
std::optional<std::size_t> find_insane(std::span<const std::byte> bytes, Insanity insanity);

}  // namespace holdfast::reload
