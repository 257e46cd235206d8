#include "config/name_pattern.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.h"

namespace holdfast::config {
namespace {

constexpr std::string_view kExpressionMark = "re:";
constexpr std::string_view kSpecial = "()[]{}|^";
// What a call costs besides its characters.
constexpr std::uint64_t kStepsOfCall = 32;
// Of each place that is looked for among those that were seen.
constexpr std::uint64_t kStepsOfLook = 8;

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
  }
  pattern.set_prefix();
  return pattern;
}

void NamePattern::set_prefix() {
  for (const Atom& atom : atoms_) {
    if (atom.what != Atom::What::kLiteral || atom.may_lack || atom.may_repeat) return;
    prefix_ += atom.literal;
  }
}

bool NamePattern::accepts(const Atom& atom, char c) {
  switch (atom.what) {
    case Atom::What::kAny: return true;
    case Atom::What::kDigit: return c >= '0' && c <= '9';
    case Atom::What::kLiteral: return c == atom.literal;
  }
  return false;
}

// And those behind it that need no character. Places come ascending, so that one that is not above
// the last is there already, and so is what lies behind it.
void NamePattern::add_place(std::size_t place, Places& places) const {
  if (!places.empty() && place <= places.back()) return;
  places.push_back(static_cast<std::uint16_t>(place));
  while (place < atoms_.size() && atoms_[place].may_lack) {
    places.push_back(static_cast<std::uint16_t>(++place));
  }
}

NamePattern::Places NamePattern::beginning() const {
  Places places;
  add_place(0, places);
  return places;
}

bool NamePattern::at_end(const Places& places) const {
  return !places.empty() && places.back() == atoms_.size();
}

// All places that the name so far may have led to, a character at a time: no way is gone twice.
NamePattern::Places NamePattern::after(Places places, std::string_view text,
                                       MatchWork& work) const {
  if (!work.spend(kStepsOfCall)) return {};
  Places next;
  for (const char c : text) {
    if (places.empty() || (!to_the_end_ && at_end(places))) return places;
    if (!work.spend(places.size())) return {};
    next.clear();
    for (const std::uint16_t place : places) {
      if (place == atoms_.size() || !accepts(atoms_[place], c)) continue;
      if (atoms_[place].may_repeat) add_place(place, next);
      add_place(std::size_t{place} + 1, next);
    }
    std::swap(places, next);
  }
  return places;
}

bool NamePattern::matches(std::string_view name, MatchWork& work) const {
  if (is_name()) {
    const std::string dotted = "." + std::string(name) + ".";
    return dotted.find("." + text_ + ".") != std::string::npos;
  }
  if (!work.spend(1) || !name.starts_with(prefix_)) return false;
  return at_end(after(beginning(), name, work));
}

// Texts that lead to the same places are one: the names of thousands of experts are a few.
bool NamePattern::search(Search& all, const Places& places, std::size_t part) const {
  if (part == all.family.size()) return at_end(places);
  if (places.empty() || !all.work.spend(kStepsOfLook * places.size())) return false;
  if (!all.seen.emplace(part, places).second) return false;
  const std::size_t length = all.name.size();
  const Places begun = part == 0 ? places : after(places, ".", all.work);
  if (part > 0) all.name += '.';
  const std::size_t dotted = all.name.size();
  for (const std::string& text : all.family[part]) {
    all.name += text;
    if (search(all, after(begun, text, all.work), part + 1)) return true;
    all.name.resize(dotted);
  }
  all.name.resize(length);
  return false;
}

// Its parts in a row somewhere in the family's names.
std::optional<std::string> NamePattern::named_of(const NameFamily& family) const {
  std::vector<std::string> parts(1);
  for (const char c : text_) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  for (std::size_t first = 0; first + parts.size() <= family.size(); ++first) {
    bool found = true;
    for (std::size_t i = 0; i < parts.size() && found; ++i) {
      const std::vector<std::string>& texts = family[first + i];
      found = std::ranges::find(texts, parts[i]) != texts.end();
    }
    if (!found) continue;
    std::string name;
    for (std::size_t i = 0; i < family.size(); ++i) {
      const bool own = first <= i && i < first + parts.size();
      name += (i == 0 ? "" : ".") + (own ? parts[i - first] : family[i].front());
    }
    return name;
  }
  return std::nullopt;
}

std::optional<std::string> NamePattern::match_of(const NameFamily& family, MatchWork& work) const {
  if (std::ranges::any_of(family, [](const auto& texts) { return texts.empty(); })) {
    return std::nullopt;
  }
  if (is_name()) return named_of(family);
  Search all{family, work};
  if (search(all, beginning(), 0)) return all.name;
  return std::nullopt;
}

}  // namespace holdfast::config
