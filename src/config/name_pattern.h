// NamePattern: the patterns by which a quantization_config says which modules it left alone. Pure;
// any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::config {

inline constexpr std::size_t kMaxPatternBytes = 1024;

// Names that differ in some of their parts: each is one text of every part, in a row.
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

  bool matches(std::string_view name) const;
  // One of the names that it matches; not by trying them one by one.
  std::optional<std::string> match_of(const NameFamily& family) const;

 private:
  enum class Kind { kExpression, kGlob, kName };
  struct Atom {
    enum class What { kLiteral, kAny, kDigit } what = What::kLiteral;
    char literal = 0;
    bool may_lack = false;
    bool may_repeat = false;
  };
  // Of each place between two atoms, and the end, whether a name so far may have led to it.
  using Places = std::vector<bool>;
  using Seen = std::set<std::pair<std::size_t, Places>>;
  Status parse_expression(std::string_view text);
  void add_glob(std::string_view text);
  void skip_lacking(Places& places) const;
  Places after(const Places& places, std::string_view text) const;
  bool search(const NameFamily& family, const Places& places, Seen& seen, std::string& name,
              std::size_t part) const;
  static bool accepts(const Atom& atom, char c);

  Kind kind_ = Kind::kName;
  std::string text_;
  std::vector<Atom> atoms_;
  bool to_the_end_ = true;
};

}  // namespace holdfast::config
