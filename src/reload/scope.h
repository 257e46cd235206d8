// Scope: which part of a model a reload replaces, and whether that part is made of whole processing
// units, so that no scale meets another generation's weight. Values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "holdfast/result.h"
#include "reload/source.h"
#include "storage/registry.h"

namespace holdfast::reload {

struct ExpertScope {
  std::int64_t layer = 0;
  std::int64_t expert = 0;
};

// The union of what is listed; nothing listed means the whole model.
struct Scope {
  std::vector<std::int64_t> layers = {};
  std::vector<ExpertScope> experts = {};
  std::vector<std::string> parameters = {};  // by name or alias
  bool whole() const { return layers.empty() && experts.empty() && parameters.empty(); }
};
// "whole", "layers 3, experts 1/7, parameters model.norm.weight".
std::string to_text(const Scope& scope);
// Of what the model has and the scope does not: "is outside of the scope (layers 3); ..." and how
// to widen it.
std::string outside_text(const Scope& scope);
// Every name by which a publisher's tensor may come: aliases too, and parts instead of the whole.
std::vector<std::string> published_names(const storage::Registry& registry);

// Which of a parameter's bytes a reload replaces.
struct ParameterSelection {
  bool any = false;
  std::vector<std::int64_t> rows = {};  // ascending; empty means all of them
  friend bool operator==(const ParameterSelection&, const ParameterSelection&) = default;
};
// Bytes [begin, end) of a slot or a parameter.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

struct Selection {
  std::vector<ParameterSelection> parameters = {};             // by parameter id
  std::vector<std::vector<std::int64_t>> slices_of_derivation = {};  // none: not computed anew
  bool whole = true;
};

// What `scope` selects of a sealed registry. Derivations are selected by what they read, at first
// or second hand; `changed_constants` counts as replaced. Errors: kNotFound for a layer, expert or
// name that the model has not; kMismatch naming the unit and what is lacking when the scope cuts
// through one: the parameters of one slot, a weight and its scale, all inputs of a derivation's
// slice.
Result<Selection> select(const storage::Registry& registry, const Scope& scope,
                         std::span<const storage::SlotId> changed_constants);
// The selected bytes of a parameter, as maximal runs.
std::vector<ByteRange> selected_bytes(const storage::ParameterSpec& parameter,
                                      const ParameterSelection& selection);

// Presents of `inner` only what `scope` selects, so that a whole checkpoint can serve a partial
// reload. Errors: those of select.
Result<std::unique_ptr<Source>> make_scoped_source(std::unique_ptr<Source> inner,
                                                   const storage::Registry& registry,
                                                   const Scope& scope);

}  // namespace holdfast::reload
