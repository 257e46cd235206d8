#include "serve/http_target.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include "base/error.h"

namespace holdfast::serve {
namespace {

constexpr std::size_t kMaxRequestIdBytes = 128;

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool starts_with_any_case(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), text.begin(),
                    [](char a, char b) { return lower(a) == lower(b); });
}

// "http://host:80/path?x" without the scheme and the authority.
Result<std::string_view> to_origin_form(std::string_view target) {
  if (target.starts_with('/')) return target;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!starts_with_any_case(target, scheme)) continue;
    const std::string_view rest = target.substr(scheme.size());
    const std::size_t end = rest.find_first_of("/?");
    if (end == 0) break;  // no authority
    return end == std::string_view::npos ? std::string_view("/") : rest.substr(end);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "the request's target starts with \"{}\", not with a slash",
                    target.substr(0, std::min<std::size_t>(target.size(), 1)));
}

Status parse_query(std::string_view text, std::multimap<std::string, std::string>& query) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('&'), text.size());
    const std::string_view pair = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (pair.empty()) continue;
    if (query.size() == kMaxQueryPairs) {
      return make_error(ErrorCode::kInvalidArgument, "the query has more than {} parameters",
                        kMaxQueryPairs);
    }
    const std::size_t equals = std::min(pair.find('='), pair.size());
    HF_ASSIGN(std::string name, percent_decode(pair.substr(0, equals), true));
    HF_ASSIGN(std::string value,
              percent_decode(pair.substr(std::min(equals + 1, pair.size())), true));
    query.emplace(std::move(name), std::move(value));
  }
  return {};
}

}  // namespace

Result<std::string> percent_decode(std::string_view text, bool plus_is_blank) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '+' && plus_is_blank) c = ' ';
    if (c == '%') {
      const int high = i + 1 < text.size() ? hex_value(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
      if (high < 0 || low < 0) {
        return make_error(ErrorCode::kInvalidArgument,
                          "\"%\" at byte {} of \"{}\" is not followed by two hex digits", i,
                          text.substr(0, 64));
      }
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (is_control(c)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "a control character (code {}) stands in the request's target",
                        static_cast<int>(static_cast<unsigned char>(c)));
    }
    decoded += c;
  }
  return decoded;
}

Result<Target> parse_target(std::string_view text) {
  HF_ASSIGN(const std::string_view origin, to_origin_form(text));
  if (origin.find('#') != std::string_view::npos) {
    return make_error(ErrorCode::kInvalidArgument, "the request's target holds a fragment (#)");
  }
  const std::size_t question = std::min(origin.find('?'), origin.size());
  Target target;
  HF_ASSIGN(target.path, percent_decode(origin.substr(0, question), false));
  if (target.path.empty()) target.path.push_back('/');  // "http://host?x"
  while (target.path.size() > 1 && target.path.back() == '/') target.path.pop_back();
  HF_TRY(parse_query(origin.substr(std::min(question + 1, origin.size())), target.query));
  return target;
}

bool bearer_matches(std::string_view authorization, std::string_view expected) {
  constexpr std::string_view kScheme = "bearer ";
  if (!starts_with_any_case(authorization, kScheme)) return false;
  std::string_view given = authorization.substr(kScheme.size());
  while (given.starts_with(' ')) given.remove_prefix(1);
  while (given.ends_with(' ')) given.remove_suffix(1);
  // No early end: how long it takes tells nothing about where the two differ.
  unsigned difference = given.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = expected.empty() ? '\0' : expected[i % expected.size()];
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(other);
  }
  return difference == 0 && !expected.empty();
}

std::string accepted_request_id(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-:/").find(c) != std::string_view::npos;
  };
  if (text.size() > kMaxRequestIdBytes || !std::all_of(text.begin(), text.end(), fits)) return {};
  return std::string(text);
}

std::string make_request_id() {
  // 64 random bits of this process, and a number within it.
  static const std::uint64_t process = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }();
  static std::atomic<std::uint64_t> next{1};
  return fmt::format("{:016x}{:016x}", process, next.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace holdfast::serve
