#include "tensor/span_checks.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"

namespace holdfast::tensor {

Status check_count(std::string_view what, std::size_t have, std::int64_t want,
                   std::string_view why) {
  if (want >= 0 && have == static_cast<std::size_t>(want)) return {};
  return make_error(ErrorCode::kMismatch, "{}: {} elements, expected {}: {}", what, have, want,
                    why);
}

float finite_amax(std::span<const float> values) {
  constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu;
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  std::uint32_t largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & kMagnitude);
  }
  if (largest >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(largest);
}

}  // namespace holdfast::tensor
