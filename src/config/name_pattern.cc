#include "config/name_pattern.h"

#include <cctype>
#include <utility>

#include "base/error.h"

namespace holdfast::config {
namespace {

constexpr std::string_view kExpressionMark = "re:";
constexpr std::string_view kSpecial = "()[]{}|^";

bool is_quantifier(char c) { return c == '*' || c == '+' || c == '?'; }

}  // namespace

Status NamePattern::parse_expression(std::string_view text) {
  const auto refuse = [&](std::string_view what) {
    return make_error(ErrorCode::kUnsupported,
                      "pattern \"{}\" has {}; this engine knows literals, . \\d \\SIGN * + ? and a "
                      "final $",
                      text_, what);
  };
  to_the_end_ = false;
  std::size_t i = text.starts_with('^') ? 1 : 0;
  while (i < text.size()) {
    Atom atom{.what = Atom::What::kLiteral, .literal = text[i]};
    if (text[i] == '$') {
      if (i + 1 != text.size()) return refuse("a $ before its end");
      to_the_end_ = true;
      return {};
    }
    if (is_quantifier(text[i])) return refuse(fmt::format("a {} after nothing", text[i]));
    if (kSpecial.find(text[i]) != kSpecial.npos) return refuse(fmt::format("a {}", text[i]));
    if (text[i] == '.') {
      atom.what = Atom::What::kAny;
    } else if (text[i] == '\\') {
      if (++i == text.size()) return refuse("a \\ at its end");
      const bool letter = std::isalnum(static_cast<unsigned char>(text[i])) != 0;
      if (letter && text[i] != 'd') return refuse(fmt::format("a \\{}", text[i]));
      atom.what = letter ? Atom::What::kDigit : Atom::What::kLiteral;
      atom.literal = text[i];
    }
    ++i;
    if (i < text.size() && is_quantifier(text[i])) {
      atom.may_lack = text[i] != '+';
      atom.may_repeat = text[i] != '?';
      ++i;
    }
    atoms_.push_back(atom);
  }
  return {};
}

void NamePattern::add_glob(std::string_view text) {
  for (const char c : text) {
    const bool any = c == '*' || c == '?';
    atoms_.push_back({.what = any ? Atom::What::kAny : Atom::What::kLiteral,
                      .literal = c,
                      .may_lack = c == '*',
                      .may_repeat = c == '*'});
  }
}

Result<NamePattern> NamePattern::parse(std::string_view text) {
  if (text.empty() || text.size() > kMaxPatternBytes) {
    return make_error(ErrorCode::kUnsupported, "a pattern of {} bytes; known are 1 to {}",
                      text.size(), kMaxPatternBytes);
  }
  NamePattern pattern;
  pattern.text_ = std::string(text);
  if (text.starts_with(kExpressionMark)) {
    pattern.kind_ = Kind::kExpression;
    HF_TRY(pattern.parse_expression(text.substr(kExpressionMark.size())));
  } else if (text.find_first_of("*?") != text.npos) {
    pattern.kind_ = Kind::kGlob;
    pattern.add_glob(text);
  } else {
    pattern.add_glob("*." + pattern.text_ + ".*");  // of the name between two dots
  }
  return pattern;
}

bool NamePattern::accepts(const Atom& atom, char c) {
  switch (atom.what) {
    case Atom::What::kAny: return true;
    case Atom::What::kDigit: return c >= '0' && c <= '9';
    case Atom::What::kLiteral: return c == atom.literal;
  }
  return false;
}

void NamePattern::skip_lacking(Places& places) const {
  for (std::size_t i = 0; i < atoms_.size(); ++i) {
    if (places[i] && atoms_[i].may_lack) places[i + 1] = true;
  }
}

// All places that the name so far may have led to, a character at a time: no pattern makes it slow.
NamePattern::Places NamePattern::after(const Places& places, std::string_view text) const {
  Places at = places;
  for (const char c : text) {
    if (!to_the_end_ && at.back()) return at;
    Places next(at.size(), false);
    for (std::size_t i = 0; i < atoms_.size(); ++i) {
      if (!at[i] || !accepts(atoms_[i], c)) continue;
      next[i + 1] = true;
      if (atoms_[i].may_repeat) next[i] = true;
    }
    skip_lacking(next);
    at = std::move(next);
  }
  return at;
}

bool NamePattern::matches(std::string_view name) const {
  if (kind_ == Kind::kName) {
    const std::string dotted = "." + std::string(name) + ".";
    return dotted.find("." + text_ + ".") != std::string::npos;
  }
  Places at(atoms_.size() + 1, false);
  at[0] = true;
  skip_lacking(at);
  return after(at, name).back();
}

// Texts that lead to the same places are one: the names of thousands of experts are a few.
bool NamePattern::search(const NameFamily& family, const Places& places, Seen& seen,
                         std::string& name, std::size_t part) const {
  if (part == family.size()) {
    return kind_ == Kind::kName ? after(places, ".").back() : places.back();
  }
  if (!seen.emplace(part, places).second) return false;
  const std::size_t length = name.size();
  for (const std::string& text : family[part]) {
    name += text;
    if (search(family, after(places, text), seen, name, part + 1)) return true;
    name.resize(length);
  }
  return false;
}

std::optional<std::string> NamePattern::match_of(const NameFamily& family) const {
  Places at(atoms_.size() + 1, false);
  at[0] = true;
  skip_lacking(at);
  if (kind_ == Kind::kName) at = after(at, ".");
  Seen seen;
  std::string name;
  if (search(family, at, seen, name, 0)) return name;
  return std::nullopt;
}

}  // namespace holdfast::config
