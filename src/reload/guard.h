// StageGuard: the reasons to stop a transaction early, asked at every stage and between any two
// chunks. A value; one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"

namespace holdfast::reload {

struct StageGuard {
  std::string_view source;
  const std::atomic<bool>* cancel = nullptr;  // may be null
  const base::Clock* clock = nullptr;
  std::int64_t deadline_ns = 0;  // of the clock; 0 means none

  // `doing`: "staging". Errors: kCancelled, kDeadlineExceeded saying by how much.
  Status check(std::string_view doing) const {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return make_error(ErrorCode::kCancelled, "cancelled while {} {}", doing, source);
    }
    if (deadline_ns == 0) return {};
    const std::int64_t now_ns = clock->now_ns();
    if (now_ns <= deadline_ns) return {};
    return make_error(ErrorCode::kDeadlineExceeded, "{} {} is {:.3f} ms past its deadline", doing,
                      source, static_cast<double>(now_ns - deadline_ns) / 1e6);
  }
};

}  // namespace holdfast::reload
