// What the group codecs share: sizes of spans checked against a layout, and the largest magnitude
// of a group. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "holdfast/result.h"

namespace holdfast::tensor {

// kMismatch "`what` has `have` elements, expected `want`: `why`" when they differ.
Status check_count(std::string_view what, std::size_t have, std::int64_t want,
                   std::string_view why);

// The largest magnitude; NaN when any value is a NaN or an infinity, 0 for no values. It is the
// largest of the magnitudes' bit patterns, which is how a kernel gets both with one integer
// maximum.
float finite_amax(std::span<const float> values);

}  // namespace holdfast::tensor
