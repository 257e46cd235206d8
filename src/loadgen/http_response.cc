#include "loadgen/http_response.h"

#include <algorithm>
#include <charconv>
#include <cctype>

#include "base/error.h"

namespace holdfast::loadgen {
namespace {

constexpr std::size_t kMaxLineBytes = 16u << 10;  // a chunk's size with extensions; a trailer

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  return text;
}

template <typename Number>
bool parse_number(std::string_view text, Number& value, int base) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value, base);
  return !text.empty() && parsed.ec == std::errc() && parsed.ptr == end;
}

}  // namespace

const std::string& ResponseParser::header(const std::string& name) const {
  static const std::string none;
  const auto at = headers_.find(name);
  return at == headers_.end() ? none : at->second;
}

Result<std::size_t> ResponseParser::push(
    std::string_view bytes, const std::function<void(std::string_view part)>& body) {
  std::size_t used = 0;
  while (used < bytes.size() && state_ != State::kComplete) {
    begun_ = true;
    const std::string_view rest = bytes.substr(used);
    switch (state_) {
      case State::kHeader: {
        HF_ASSIGN(const std::size_t taken, push_header(rest));
        used += taken;
        break;
      }
      case State::kLength:
      case State::kChunk: {
        const std::size_t taken =
            static_cast<std::size_t>(std::min<std::uint64_t>(left_, rest.size()));
        left_ -= taken;
        used += taken;
        if (left_ == 0) state_ = state_ == State::kLength ? State::kComplete : State::kChunkEnd;
        body(rest.substr(0, taken));
        break;
      }
      case State::kToEnd:
        used = bytes.size();
        body(rest);
        break;
      default: {
        HF_ASSIGN(const std::size_t taken, push_line(rest));
        used += taken;
      }
    }
  }
  return used;
}

// Up to and with the empty line, which may come cut.
Result<std::size_t> ResponseParser::push_header(std::string_view bytes) {
  const std::size_t before = pending_.size();
  pending_ += bytes.substr(0, kMaxResponseHeaderBytes + 1);
  const std::size_t from = before < 3 ? 0 : before - 3;
  const std::size_t end = pending_.find("\r\n\r\n", from);
  if (end == std::string::npos) {
    if (pending_.size() > kMaxResponseHeaderBytes) {
      return make_error(ErrorCode::kResourceExhausted, "response header of more than {} bytes",
                        kMaxResponseHeaderBytes);
    }
    return bytes.size();
  }
  const std::string header = pending_.substr(0, end);
  pending_.clear();
  HF_TRY(take_header(header));
  return end + 4 - before;
}

Status ResponseParser::take_header(std::string_view text) {
  const std::size_t end = text.find("\r\n");
  const std::string_view line = text.substr(0, end);
  const bool version = line.starts_with("HTTP/1.") && line.size() >= 12 && line[8] == ' ';
  if (!version || !parse_number(line.substr(9, 3), status_, 10) || status_ < 100) {
    return make_error(ErrorCode::kCorrupt, "not an HTTP/1 response: it begins with \"{}\"",
                      line.substr(0, 60));
  }
  keeps_connection_ = line[7] != '0';
  headers_.clear();
  while (end != std::string_view::npos && !text.empty()) {
    const std::size_t next = text.find("\r\n");
    if (next == std::string_view::npos) break;
    text.remove_prefix(next + 2);
    const std::string_view field = text.substr(0, text.find("\r\n"));
    const std::size_t colon = field.find(':');
    if (colon == std::string_view::npos || colon == 0) {
      return make_error(ErrorCode::kCorrupt, "response header field \"{}\" has no name",
                        field.substr(0, 60));
    }
    headers_[lower(field.substr(0, colon))] = std::string(trim(field.substr(colon + 1)));
  }
  return choose_body();
}

// RFC 9112, section 6.3.
Status ResponseParser::choose_body() {
  const std::string connection = lower(header("connection"));
  if (connection == "close") keeps_connection_ = false;
  if (connection == "keep-alive") keeps_connection_ = true;
  if (status_ < 200) return {};  // interim: the next header follows
  const std::string coding = lower(header("transfer-encoding"));
  const std::string& length = header("content-length");
  if (status_ == 204 || status_ == 304) {
    state_ = State::kComplete;
  } else if (!coding.empty()) {
    if (coding != "chunked") {
      return make_error(ErrorCode::kUnsupported,
                        "response with transfer-encoding {}: only chunked is read", coding);
    }
    state_ = State::kChunkSize;
  } else if (!length.empty()) {
    if (!parse_number(std::string_view(length), left_, 10)) {
      return make_error(ErrorCode::kCorrupt, "response with content-length \"{}\"", length);
    }
    state_ = left_ == 0 ? State::kComplete : State::kLength;
  } else {
    state_ = State::kToEnd;
    keeps_connection_ = false;
  }
  return {};
}

Result<std::size_t> ResponseParser::push_line(std::string_view bytes) {
  const std::size_t end = bytes.find('\n');
  pending_ += bytes.substr(0, std::min(end, kMaxLineBytes + 1));
  if (pending_.size() > kMaxLineBytes) {
    return make_error(ErrorCode::kResourceExhausted, "line of a chunked body of more than {} bytes",
                      kMaxLineBytes);
  }
  if (end == std::string_view::npos) return bytes.size();
  const std::string line = std::move(pending_);
  pending_.clear();
  HF_TRY(take_line(trim(line)));
  return end + 1;
}

Status ResponseParser::take_line(std::string_view line) {
  if (state_ == State::kTrailer) {
    if (line.empty()) state_ = State::kComplete;
    return {};
  }
  if (state_ == State::kChunkEnd) {
    if (!line.empty()) return make_error(ErrorCode::kCorrupt, "chunk longer than its size");
    state_ = State::kChunkSize;
    return {};
  }
  const std::string_view size = trim(line.substr(0, line.find(';')));
  if (!parse_number(size, left_, 16)) {
    return make_error(ErrorCode::kCorrupt, "chunk size \"{}\"", line.substr(0, 60));
  }
  state_ = left_ == 0 ? State::kTrailer : State::kChunk;
  return {};
}

Status ResponseParser::end_of_connection() {
  if (state_ == State::kToEnd) state_ = State::kComplete;
  if (state_ == State::kComplete) return {};
  if (!begun_) return Error(ErrorCode::kIo, "the server closed the connection without an answer");
  return Error(ErrorCode::kIo, "the server closed the connection in the middle of its answer");
}

}  // namespace holdfast::loadgen
