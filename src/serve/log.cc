#include "serve/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "base/error.h"
#include "serve/http_format.h"

namespace holdfast::serve {
namespace {

constexpr std::size_t kQueuedLines = 8192;

std::string_view level_name(LogLevel level) {
  static constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};
  return kNames[static_cast<int>(level)];
}

LogLevel level_of(const std::string& name) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kWarning, LogLevel::kError}) {
    if (name == level_name(level)) return level;
  }
  return LogLevel::kInfo;
}

std::string timestamp(std::int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                     unix_ms % 1000);
}

// Plain where it can be; a line stays one line.
std::string text_value(const std::string& value) {
  const bool plain = !value.empty() && value.find_first_of(" \"\\=") == std::string::npos &&
                     std::none_of(value.begin(), value.end(), [](char c) {
                       return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
                     });
  return plain ? value : json_quoted(value);
}

}  // namespace

std::string log_line(bool json, LogLevel level, std::string_view event, const Log::Fields& fields,
                     std::int64_t now_ms) {
  std::string line;
  if (!json) {
    line = fmt::format("{} {:<7} {}", timestamp(now_ms), level_name(level), event);
    for (const auto& [name, value] : fields) {
      line += fmt::format(" {}={}", name, text_value(value));
    }
    return line;
  }
  line = fmt::format(R"({{"time":"{}","level":"{}","event":{})", timestamp(now_ms),
                     level_name(level), json_quoted(event));
  for (const auto& [name, value] : fields) {
    line += fmt::format(",{}:{}", json_quoted(name), json_quoted(value));
  }
  return line + "}";
}

struct Log::Sink {
  std::shared_ptr<spdlog::details::thread_pool> pool =
      std::make_shared<spdlog::details::thread_pool>(kQueuedLines, 1);
  std::shared_ptr<spdlog::async_logger> logger = std::make_shared<spdlog::async_logger>(
      "holdfast", std::make_shared<spdlog::sinks::stderr_sink_mt>(), pool,
      spdlog::async_overflow_policy::overrun_oldest);
};

Log::Log(const std::string& level, const std::string& format)
    : least_(level_of(level)), json_(format == "json"), sink_(std::make_unique<Sink>()) {
  sink_->logger->set_pattern("%v");
  sink_->logger->set_level(spdlog::level::trace);
}

Log::~Log() = default;

void Log::write(LogLevel level, std::string_view event, const Fields& fields) const {
  if (!wants(level)) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  sink_->logger->log(spdlog::level::info, log_line(json_, level, event, fields, now_ms));
}

}  // namespace holdfast::serve
