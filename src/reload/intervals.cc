#include "reload/intervals.h"

#include <algorithm>

#include "base/assert.h"

namespace holdfast::reload {

bool Intervals::add(std::uint64_t begin, std::uint64_t end) {
  HF_ASSERT(begin < end, "an interval holds at least one byte");
  // The first recorded interval that ends after `begin`: the only one that could overlap first.
  auto after = sorted_.end();
  if (!sorted_.empty() && sorted_.back().end > begin) {
    after = std::upper_bound(sorted_.begin(), sorted_.end(), begin,
                             [](std::uint64_t at, const Interval& i) { return at < i.end; });
  }
  if (after != sorted_.end() && after->begin < end) return false;
  const bool joins_before = after != sorted_.begin() && std::prev(after)->end == begin;
  const bool joins_after = after != sorted_.end() && after->begin == end;
  if (joins_before && joins_after) {
    std::prev(after)->end = after->end;
    sorted_.erase(after);
  } else if (joins_before) {
    std::prev(after)->end = end;
  } else if (joins_after) {
    after->begin = begin;
  } else {
    sorted_.insert(after, Interval{begin, end});
  }
  return true;
}

void Intervals::cover(std::uint64_t begin, std::uint64_t end) {
  HF_ASSERT(begin < end, "an interval holds at least one byte");
  // All that touch [begin, end) become one with it.
  const auto first =
      std::lower_bound(sorted_.begin(), sorted_.end(), begin,
                       [](const Interval& i, std::uint64_t at) { return i.end < at; });
  auto last = first;
  while (last != sorted_.end() && last->begin <= end) {
    begin = std::min(begin, last->begin);
    end = std::max(end, last->end);
    ++last;
  }
  sorted_.insert(sorted_.erase(first, last), Interval{begin, end});
}

bool Intervals::intersects(std::uint64_t begin, std::uint64_t end) const {
  const auto after =
      std::upper_bound(sorted_.begin(), sorted_.end(), begin,
                       [](std::uint64_t at, const Interval& i) { return at < i.end; });
  return after != sorted_.end() && after->begin < end;
}

std::optional<Interval> Intervals::first_hole_in(std::uint64_t begin, std::uint64_t end) const {
  if (begin >= end) return std::nullopt;
  const auto after =
      std::upper_bound(sorted_.begin(), sorted_.end(), begin,
                       [](std::uint64_t at, const Interval& i) { return at < i.end; });
  if (after == sorted_.end()) return Interval{begin, end};
  if (after->begin > begin) return Interval{begin, std::min(after->begin, end)};
  if (after->end >= end) return std::nullopt;
  const auto next = std::next(after);
  return Interval{after->end, next == sorted_.end() ? end : std::min(next->begin, end)};
}

std::optional<Interval> Intervals::first_hole(std::uint64_t bytes) const {
  if (bytes == 0) return std::nullopt;
  if (sorted_.empty()) return Interval{0, bytes};
  const Interval& first = sorted_.front();
  if (first.begin > 0) return Interval{0, std::min(first.begin, bytes)};
  if (first.end >= bytes) return std::nullopt;
  return Interval{first.end, sorted_.size() > 1 ? std::min(sorted_[1].begin, bytes) : bytes};
}

}  // namespace holdfast::reload
