#include "loadgen/sse.h"

#include "base/error.h"

namespace holdfast::loadgen {

Status SseParser::push(std::string_view bytes,
                       const std::function<void(std::string_view data)>& event) {
  while (!bytes.empty()) {
    if (after_cr_) {
      after_cr_ = false;
      if (bytes.front() == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    const std::size_t end = bytes.find_first_of("\r\n");
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + part.size() + data_.size() > kMaxEventBytes) {
      return make_error(ErrorCode::kResourceExhausted,
                        "server-sent event of more than {} bytes: the server sends no event ends",
                        kMaxEventBytes);
    }
    if (end == std::string_view::npos) {
      line_ += part;
      return {};
    }
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (line_.empty()) {
      take_line(part, event);
    } else {
      line_ += part;
      // Moved out first: the callback may call reset().
      const std::string line = std::move(line_);
      line_.clear();
      take_line(line, event);
    }
  }
  return {};
}

void SseParser::take_line(std::string_view line,
                          const std::function<void(std::string_view data)>& event) {
  if (at_start_ && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  at_start_ = false;
  if (line.empty()) {
    if (!has_data_) return;
    const std::string data = std::move(data_);
    data_.clear();
    has_data_ = false;
    event(data);
    return;
  }
  const std::size_t colon = line.find(':');
  if (line.substr(0, colon) != "data") return;
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += value;
  has_data_ = true;
}

}  // namespace holdfast::loadgen
