// Log: lines on stderr, as text or as JSON objects, written by a thread of their own so that no
// thread that serves waits for a slow reader. Any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace holdfast::serve {

enum class LogLevel : int { kDebug, kInfo, kWarning, kError };

class Log {
 public:
  // Names and values of what happened. A value is text; numbers are written as such.
  using Fields = std::vector<std::pair<std::string_view, std::string>>;

  // `level` and `format` as in ServeOptions.
  Log(const std::string& level, const std::string& format);
  // Writes what is queued.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  bool wants(LogLevel level) const { return level >= least_; }
  // "2026-11-30T23:22:55.123Z info  reload state=committed version=v7". A line too many, while the
  // reader is slow, takes the place of the oldest one.
  void write(LogLevel level, std::string_view event, const Fields& fields) const;

 private:
  struct Sink;
  LogLevel least_;
  bool json_;
  std::unique_ptr<Sink> sink_;
};

// The line itself, without its end. `now_ms`: Unix time.
std::string log_line(bool json, LogLevel level, std::string_view event, const Log::Fields& fields,
                     std::int64_t now_ms);

}  // namespace holdfast::serve
