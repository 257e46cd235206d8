// SseParser: server-sent events out of bytes that come cut anywhere (WHATWG HTML, section 9.2.6).
// Only the data of events is of use here; names, ids and retry times are read over. One thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "holdfast/result.h"

namespace holdfast::loadgen {

inline constexpr std::size_t kMaxEventBytes = std::size_t{64} << 20;

class SseParser {
 public:
  // Calls `event` with the data of each event that `bytes` completes. Errors: kResourceExhausted
  // when an event or a line is longer than kMaxEventBytes.
  Status push(std::string_view bytes, const std::function<void(std::string_view data)>& event);
  // Whether bytes of an event have come whose end has not.
  bool in_event() const { return !line_.empty() || has_data_; }
  void reset() { *this = SseParser(); }

 private:
  void take_line(std::string_view line, const std::function<void(std::string_view data)>& event);

  std::string line_;  // the part of a line that has come
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;  // a line feed that comes now belongs to the line end before
  bool at_start_ = true;   // a byte order mark may come
};

}  // namespace holdfast::loadgen
