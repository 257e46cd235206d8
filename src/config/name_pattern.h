// NamePattern: the patterns by which a quantization_config says which modules it left alone. Pure;
// any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::config {

inline constexpr std::size_t kMaxPatternBytes = 1024;

// What matching may cost, whatever a file asks for: a step is a character held against a place of a
// pattern. Patterns of real checkpoints take a hundredth of it; all of it is half a second.
inline constexpr std::uint64_t kMaxMatchSteps = std::uint64_t{1} << 26;
class MatchWork {
 public:
  // Whether so many steps were left. Once they are not, nothing matches any more.
  bool spend(std::uint64_t steps) {
    left_ -= std::min(steps, left_);
    return left_ > 0;
  }
  bool spent() const { return left_ == 0; }

 private:
  std::uint64_t left_ = kMaxMatchSteps;
};

// Names that differ in some of their parts: each is one text of every part, with dots between them.
using NameFamily = std::vector<std::vector<std::string>>;

class NamePattern {
 public:
  // "re:" and a regular expression that must match from the name's beginning (compressed-tensors);
  // else, with "*" or "?" in it, a glob over the whole name (ModelOpt, Quark); else a name, which
  // covers what lies under it and every name that has its parts in a row ("self_attn",
  // "model.layers.0.mlp.gate"). Of regular expressions: literals, ".", "\d", "\" before a sign,
  // "*", "+" and "?" after one of those, and "$" at the end; no groups, no sets. Errors:
  // kUnsupported naming the pattern and what is not understood.
  static Result<NamePattern> parse(std::string_view text);

  // A name, and no pattern of several.
  bool is_name() const { return kind_ == Kind::kName; }
  bool matches(std::string_view name, MatchWork& work) const;
  // One of the names that it matches; not by trying them one by one.
  std::optional<std::string> match_of(const NameFamily& family, MatchWork& work) const;

 private:
  enum class Kind { kExpression, kGlob, kName };
  struct Atom {
    enum class What { kLiteral, kAny, kDigit } what = What::kLiteral;
    char literal = 0;
    bool may_lack = false;
    bool may_repeat = false;
  };
  // The places between two atoms, and the end, to which a name so far may have led; ascending.
  using Places = std::vector<std::uint16_t>;
  using Seen = std::set<std::pair<std::size_t, Places>>;
  struct Search {
    const NameFamily& family;
    MatchWork& work;
    Seen seen = {};
    std::string name = {};
  };
  Status parse_expression(std::string_view text);
  void add_glob(std::string_view text);
  void set_prefix();
  void add_place(std::size_t place, Places& places) const;
  Places beginning() const;
  bool at_end(const Places& places) const;
  Places after(Places places, std::string_view text, MatchWork& work) const;
  bool search(Search& all, const Places& places, std::size_t part) const;
  std::optional<std::string> named_of(const NameFamily& family) const;
  static bool accepts(const Atom& atom, char c);

  Kind kind_ = Kind::kName;
  std::string text_;
  std::vector<Atom> atoms_;
  std::string prefix_;  // the literals that a name must begin with
  bool to_the_end_ = true;
};

}  // namespace holdfast::config
