// Intervals: exactly which bytes of a range have been written, each at most once. A sum of lengths
// would call a range with one byte twice and another never complete. A value; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace holdfast::reload {

struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};

class Intervals {
 public:
  // Records [begin, end), begin < end. False, and nothing recorded, when any byte of it was
  // recorded before. Constant time for pieces that arrive in order.
  bool add(std::uint64_t begin, std::uint64_t end);
  // Records [begin, end) whatever of it was recorded before.
  void cover(std::uint64_t begin, std::uint64_t end);
  bool intersects(std::uint64_t begin, std::uint64_t end) const;
  bool contains(std::uint64_t begin, std::uint64_t end) const {
    return !first_hole_in(begin, end).has_value();
  }
  // The first maximal run of [begin, end) that is not recorded; empty when there is none.
  std::optional<Interval> first_hole_in(std::uint64_t begin, std::uint64_t end) const;
  // The first maximal run of [0, bytes) that is not recorded; empty when there is none.
  std::optional<Interval> first_hole(std::uint64_t bytes) const;
  bool covers(std::uint64_t bytes) const { return !first_hole(bytes).has_value(); }

 private:
  std::vector<Interval> sorted_;  // disjoint and never adjacent
};

}  // namespace holdfast::reload
