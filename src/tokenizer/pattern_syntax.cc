// translate_pattern: from the part of Oniguruma's syntax that tokenizer.json files use to PCRE2's.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tokenizer/pattern.h"

namespace holdfast::tokenizer {
namespace {

// White_Space. A range stands at the end so that a '-' after it stays a literal.
constexpr std::string_view kWhiteSpace =
    R"( \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\t-\r)";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

class Translator {
 public:
  explicit Translator(std::string_view source) : source_(source) {}

  Result<std::string> run() {
    while (at_ < source_.size()) HF_TRY(step());
    if (open_groups_ != 0) {
      return make_error(ErrorCode::kCorrupt, "pattern \"{}\": a group does not end", source_);
    }
    return std::move(out_);
  }

 private:
  Error refuse(std::string_view what) const {
    return make_error(ErrorCode::kUnsupported,
                      "pattern \"{}\": {} at byte {} is not supported (known: literals, classes, "
                      "\\p{{..}}, \\s, \\d, groups, look-around, |, and * + ? {{n,m}})",
                      source_, what, at_);
  }
  std::string_view rest() const { return source_.substr(at_); }
  // Copies the next `count` bytes.
  void copy(std::size_t count) {
    out_.append(rest().substr(0, count));
    at_ += count;
  }

  Status step() {
    switch (source_[at_]) {
      case '\\': return escape(false);
      case '[': return character_class();
      case '(': return group();
      case '{': return interval();
      case '^': case '$': return refuse("a line anchor");
      case '.':
        out_.append("[^\\n]");
        ++at_;
        return {};
      case ')':
        if (open_groups_ == 0) return refuse("an unopened ')'");
        --open_groups_;
        copy(1);
        return {};
      default: copy(1); return {};
    }
  }

  Status group() {
    static constexpr std::array<std::string_view, 7> kHeads = {"(?:",  "(?=", "(?!", "(?<=",
                                                               "(?<!", "(?>", "(?i:"};
    ++open_groups_;
    for (const std::string_view head : kHeads) {
      if (rest().starts_with(head)) {
        copy(head.size());
        return {};
      }
    }
    if (rest().starts_with("(?") || rest().starts_with("(*")) {
      return refuse(fmt::format("group \"{}\"", rest().substr(0, 3)));
    }
    out_.append("(?:");  // nothing refers back to a group, so none needs to capture
    ++at_;
    return {};
  }

  // {n}, {n,} or {n,m}. After it Oniguruma reads '+' as a second repeat and PCRE2 as possessive.
  Status interval() {
    const std::size_t close = rest().find('}');
    if (close == std::string_view::npos || close < 2) return refuse("'{'");
    const std::string_view body = rest().substr(1, close - 1);
    const auto is_body = [](char c) { return is_digit(c) || c == ','; };
    if (!is_digit(body[0]) || !std::all_of(body.begin(), body.end(), is_body) ||
        std::count(body.begin(), body.end(), ',') > 1) {
      return refuse(fmt::format("interval \"{{{}}}\"", body));
    }
    const std::string_view after = rest().substr(close + 1);
    if (after.starts_with('+') || (after.starts_with('?') && body.find(',') == body.npos)) {
      return refuse(fmt::format("interval \"{{{}}}{}\"", body, after[0]));
    }
    copy(close + 1);
    return {};
  }

  Status character_class() {
    copy(1);
    if (rest().starts_with('^')) copy(1);
    if (rest().starts_with(']')) return refuse("an empty class");
    bool first = true;
    while (at_ < source_.size() && source_[at_] != ']') {
      if (source_[at_] == '[') return refuse("a class in a class");
      if (rest().starts_with("&&")) return refuse("a class intersection");
      const bool after_hyphen = !first && out_.ends_with('-') && !out_.ends_with("\\-");
      first = false;
      if (source_[at_] != '\\') {
        copy(1);
        continue;
      }
      const char name = at_ + 1 < source_.size() ? source_[at_ + 1] : '\0';
      constexpr std::string_view kSets = "sdDpP";
      if (after_hyphen && kSets.find(name) != kSets.npos) {
        return refuse("a range that ends in a set");
      }
      HF_TRY(escape(true));
    }
    if (at_ == source_.size()) {
      return make_error(ErrorCode::kCorrupt, "pattern \"{}\": a class does not end", source_);
    }
    copy(1);
    return {};
  }

  Status escape(bool in_class) {
    if (at_ + 1 >= source_.size()) return refuse("a trailing '\\'");
    const char name = source_[at_ + 1];
    switch (name) {
      case 'r': case 'n': case 't': case 'f': case 'v': copy(2); return {};
      case 'p': case 'P': return property();
      case 'd': out_.append("\\p{Nd}"); at_ += 2; return {};
      case 'D': out_.append("\\P{Nd}"); at_ += 2; return {};
      case 's': case 'S': return white_space(name == 'S', in_class);
      case 'x': case 'u': return code_point(name);
      default: break;
    }
    const bool punctuation = static_cast<unsigned char>(name) < 0x80 && !is_letter(name) &&
                             !is_digit(name);
    if (!punctuation) return refuse(fmt::format("escape \"\\{}\"", name));
    copy(2);
    return {};
  }

  Status white_space(bool negated, bool in_class) {
    if (in_class && negated) return refuse("\\S in a class");
    if (in_class) {
      out_.append(kWhiteSpace);
    } else {
      out_.append(negated ? "[^" : "[").append(kWhiteSpace).append("]");
    }
    at_ += 2;
    return {};
  }

  // \p{Name}: names of one or two letters are general categories; longer ones are scripts.
  Status property() {
    const std::size_t close = rest().find('}');
    if (!rest().substr(2).starts_with('{') || close == std::string_view::npos) {
      return refuse("a property without braces");
    }
    std::string_view name = rest().substr(3, close - 3);
    bool negated = source_[at_ + 1] == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const auto is_name = [](char c) { return is_letter(c) || c == '_'; };
    if (name.empty() || !std::all_of(name.begin(), name.end(), is_name)) {
      return refuse(fmt::format("property \"{}\"", name));
    }
    // PCRE2 reads a bare script name as Script_Extensions, Oniguruma as Script.
    out_.append(negated ? "\\P{" : "\\p{").append(name.size() > 2 ? "sc:" : "");
    out_.append(name).append("}");
    at_ += close + 1;
    return {};
  }

  // \x{H..H} and \uHHHH.
  Status code_point(char kind) {
    std::string_view digits = rest().substr(2, 4);
    std::size_t length = 6;
    if (kind == 'x') {
      const std::size_t close = rest().find('}');
      if (!rest().substr(2).starts_with('{') || close == std::string_view::npos) {
        return refuse("\\x without braces");
      }
      digits = rest().substr(3, close - 3);
      length = close + 1;
    }
    const bool good = !digits.empty() && digits.size() <= 6 &&
                      std::all_of(digits.begin(), digits.end(), is_hex) &&
                      (kind == 'x' || digits.size() == 4);
    if (!good) return refuse(fmt::format("code point \"{}\"", digits));
    out_.append("\\x{").append(digits).append("}");
    at_ += length;
    return {};
  }

  std::string_view source_;
  std::size_t at_ = 0;
  int open_groups_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> translate_pattern(std::string_view oniguruma) {
  return Translator(oniguruma).run();
}

}  // namespace holdfast::tokenizer
