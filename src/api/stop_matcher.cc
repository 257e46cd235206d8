#include "api/stop_matcher.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace holdfast::api {
namespace {

std::vector<std::uint16_t> borders_of(const std::string& text) {
  std::vector<std::uint16_t> border(text.size(), 0);
  std::size_t length = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length - 1];
    if (text[i] == text[length]) ++length;
    border[i] = static_cast<std::uint16_t>(length);
  }
  return border;
}

}  // namespace

Status check_stop_strings(const std::vector<std::string>& stop) {
  if (stop.size() > kMaxStopStrings) {
    return make_error(ErrorCode::kInvalidArgument,
                      "request field stop holds {} strings, at most {} are allowed", stop.size(),
                      kMaxStopStrings);
  }
  for (std::size_t i = 0; i < stop.size(); ++i) {
    if (stop[i].empty() || stop[i].size() > kMaxStopStringBytes) {
      return make_error(ErrorCode::kInvalidArgument,
                        "request field stop[{}] has {} bytes, expected 1 to {}", i,
                        stop[i].size(), kMaxStopStringBytes);
    }
    if (const std::size_t bad = tokenizer::find_invalid_utf8(stop[i]); bad != std::string::npos) {
      return make_error(ErrorCode::kInvalidArgument,
                        "request field stop[{}] is not UTF-8 at byte {}", i, bad);
    }
  }
  return {};
}

StopMatcher::StopMatcher(const std::vector<std::string>& stop) {
  strings_.reserve(stop.size());
  for (const std::string& text : stop) {
    strings_.push_back({.text = text, .border = borders_of(text)});
  }
}

std::optional<std::size_t> StopMatcher::push(char byte) {
  std::optional<std::size_t> found;
  held_bytes_ = 0;
  for (std::size_t i = 0; i < strings_.size(); ++i) {
    String& string = strings_[i];
    std::size_t matched = string.matched;
    while (matched > 0 && string.text[matched] != byte) matched = string.border[matched - 1];
    if (string.text[matched] == byte) ++matched;
    if (matched == string.text.size()) {
      if (!found || stop(*found).size() < matched) found = i;
      matched = string.border[matched - 1];
    }
    string.matched = matched;
    held_bytes_ = std::max(held_bytes_, matched);
  }
  return found;
}

void StopMatcher::reset() {
  for (String& string : strings_) string.matched = 0;
  held_bytes_ = 0;
}

}  // namespace holdfast::api
