// Clock: the only source of time. A value of time is nanoseconds since an arbitrary start.
#pragma once

#include <cstdint>

namespace holdfast::base {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::int64_t now_ns() const = 0;
};

// The machine's monotonic clock. Any thread.
class SteadyClock final : public Clock {
 public:
  std::int64_t now_ns() const override;
};

// A clock that moves only when told to. For tests and simulation; one thread.
class ManualClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return now_ns_; }
  void advance_ns(std::int64_t delta_ns) { now_ns_ += delta_ns; }

 private:
  std::int64_t now_ns_ = 0;
};

}  // namespace holdfast::base
