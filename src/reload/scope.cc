#include "reload/scope.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace holdfast::reload {
namespace {

using storage::ParameterId;
using storage::ParameterSpec;
using storage::SlotId;

constexpr std::size_t kNearestNames = 3;

ParameterId parameter_id(std::size_t index) {
  return ParameterId{static_cast<std::uint32_t>(index)};
}

class Selector {
 public:
  Selector(const storage::Registry& registry, const Scope& scope)
      : registry_(registry), scope_(scope) {
    selection_.parameters.resize(registry.parameters().size());
    selection_.slices_of_derivation.resize(registry.derivations().size());
    selection_.whole = scope.whole();
  }
  Result<Selection> run(std::span<const SlotId> changed_constants);

 private:
  Status add_layers();
  Status add_experts();
  Status add_names();
  void add_row(std::size_t index, std::int64_t row);
  Status check_slots() const;
  Status check_scales() const;
  Status add_derivation(std::size_t index);
  Status check_equal(std::string_view unit, std::span<const ParameterId> parameters) const;
  const ParameterSpec& spec(ParameterId id) const { return registry_.parameters()[id.index()]; }
  const ParameterSelection& selected(ParameterId id) const {
    return selection_.parameters[id.index()];
  }

  const storage::Registry& registry_;
  const Scope& scope_;
  Selection selection_;
  std::set<SlotId> replaced_;
};

std::int64_t layer_count(const storage::Registry& registry) {
  std::int64_t count = 0;
  for (const ParameterSpec& spec : registry.parameters()) count = std::max(count, spec.layer + 1);
  return count;
}

Status Selector::add_layers() {
  for (const std::int64_t layer : scope_.layers) {
    bool found = false;
    for (std::size_t i = 0; i < selection_.parameters.size(); ++i) {
      if (layer < 0 || registry_.parameters()[i].layer != layer) continue;
      found = true;
      selection_.parameters[i] = {.any = true, .rows = {}};
    }
    if (found) continue;
    return make_error(ErrorCode::kNotFound, "scope: layer {} of a model with {} layers", layer,
                      layer_count(registry_));
  }
  return {};
}

void Selector::add_row(std::size_t index, std::int64_t row) {
  ParameterSelection& selection = selection_.parameters[index];
  if (selection.any && selection.rows.empty()) return;
  selection.any = true;
  const auto at = std::lower_bound(selection.rows.begin(), selection.rows.end(), row);
  if (at == selection.rows.end() || *at != row) selection.rows.insert(at, row);
  const auto all = static_cast<std::size_t>(registry_.parameters()[index].shape[0]);
  if (selection.rows.size() == all) selection.rows.clear();
}

Status Selector::add_experts() {
  for (const auto& [layer, expert] : scope_.experts) {
    bool found = false;
    for (std::size_t i = 0; i < selection_.parameters.size(); ++i) {
      const ParameterSpec& parameter = registry_.parameters()[i];
      if (layer < 0 || parameter.layer != layer || !parameter.expert_axis) continue;
      if (expert < 0 || expert >= parameter.shape[0]) {
        return make_error(ErrorCode::kNotFound, "scope: expert {} of layer {}, {} has {} experts",
                          expert, layer, parameter.name, parameter.shape[0]);
      }
      found = true;
      add_row(i, expert);
    }
    if (found) continue;
    return make_error(ErrorCode::kNotFound,
                      "scope: expert {} of layer {} of a model with {} layers, which has no "
                      "experts there",
                      expert, layer, layer_count(registry_));
  }
  return {};
}

Status Selector::add_names() {
  for (const std::string& name : scope_.parameters) {
    const auto found = registry_.find_published(name);
    if (found.has_value() && found->row.has_value()) {
      add_row(found->parameter.index(), *found->row);
      continue;
    }
    if (found.has_value()) {
      selection_.parameters[found->parameter.index()] = {.any = true, .rows = {}};
      continue;
    }
    const auto nearest =
        checkpoint::nearest_names(name, published_names(registry_), kNearestNames);
    return make_error(ErrorCode::kNotFound,
                      "scope: {} is not a parameter of the live model (nearest: {})", name,
                      fmt::join(nearest, ", "));
  }
  return {};
}

std::string rows_text(const ParameterSelection& selection) {
  if (!selection.any) return "none";
  return selection.rows.empty() ? "all" : fmt::format("{}", fmt::join(selection.rows, ", "));
}

// All of `parameters` must be selected alike.
Status Selector::check_equal(std::string_view unit, std::span<const ParameterId> parameters) const {
  if (parameters.empty()) return {};
  const auto most = std::max_element(
      parameters.begin(), parameters.end(), [this](ParameterId a, ParameterId b) {
        const auto weight = [this](ParameterId id) {
          const ParameterSelection& s = selected(id);
          return !s.any ? 0u : s.rows.empty() ? ~0u : static_cast<unsigned>(s.rows.size());
        };
        return weight(a) < weight(b);
      });
  for (const ParameterId id : parameters) {
    if (selected(id) == selected(*most)) continue;
    return make_error(ErrorCode::kMismatch,
                      "scope ({}): {} is one unit: it has rows {} of {} and lacks {} (rows {} of "
                      "it): add what is lacking, or leave the unit out",
                      to_text(scope_), unit, rows_text(selected(*most)), spec(*most).name,
                      spec(id).name, rows_text(selected(id)));
  }
  return {};
}

Status Selector::check_slots() const {
  std::vector<std::vector<ParameterId>> of_slot(registry_.slots().size());
  for (std::size_t i = 0; i < registry_.parameters().size(); ++i) {
    const auto& slot = registry_.parameters()[i].slot;
    if (slot.has_value()) of_slot[slot->index()].push_back(parameter_id(i));
  }
  for (const storage::Slot& slot : registry_.slots()) {
    HF_TRY(check_equal("slot " + slot.spec.name, of_slot[slot.id.index()]));
  }
  return {};
}

// What publishers call a weight and its scale.
constexpr std::pair<std::string_view, std::string_view> kScaleNames[] = {
    {"_blocks", "_scales"}, {".weight", ".weight_scale"}, {".weight", ".weight_scale_inv"}};

Status Selector::check_scales() const {
  for (std::size_t i = 0; i < registry_.parameters().size(); ++i) {
    const std::string& name = registry_.parameters()[i].name;
    for (const auto& [weight, scale] : kScaleNames) {
      if (!name.ends_with(weight)) continue;
      const std::string stem = name.substr(0, name.size() - weight.size());
      const auto partner = registry_.find_parameter(stem + std::string(scale));
      if (!partner.has_value()) continue;
      const ParameterId pair[] = {parameter_id(i), *partner};
      HF_TRY(check_equal("weight and scale " + stem, pair));
    }
  }
  return {};
}

Status Selector::add_derivation(std::size_t index) {
  const storage::Derivation& derivation = registry_.derivations()[index];
  std::vector<ParameterId> transient;
  bool whole = false;  // something that every slice reads was replaced
  for (const storage::DeriveInput& input : derivation.inputs) {
    if (const auto* slot = std::get_if<SlotId>(&input)) {
      whole = whole || replaced_.contains(*slot);
      continue;
    }
    const auto id = std::get<ParameterId>(input);
    if (spec(id).slot.has_value()) {
      whole = whole || selected(id).any;
    } else {
      transient.push_back(id);
    }
  }
  const std::string unit = "derivation " + derivation.name;
  HF_TRY(check_equal(unit, transient));
  const ParameterSelection none;
  const ParameterSelection& of_transient = transient.empty() ? none : selected(transient[0]);
  if (!whole && !of_transient.any) return {};
  const bool all_rows = of_transient.any && of_transient.rows.empty();
  if (!transient.empty() && !all_rows && (whole || derivation.slice_count == 1)) {
    return make_error(ErrorCode::kMismatch,
                      "scope ({}): {} computes from all rows of {} at once; the scope lacks some: "
                      "it has {}",
                      to_text(scope_), unit, spec(transient[0]).name, rows_text(of_transient));
  }
  auto& slices = selection_.slices_of_derivation[index];
  slices = of_transient.rows;
  if (slices.empty()) {
    slices.resize(static_cast<std::size_t>(derivation.slice_count));
    std::iota(slices.begin(), slices.end(), 0);
  }
  replaced_.insert(derivation.outputs.begin(), derivation.outputs.end());
  return {};
}

Result<Selection> Selector::run(std::span<const SlotId> changed_constants) {
  if (scope_.whole()) {
    for (ParameterSelection& selection : selection_.parameters) selection.any = true;
  }
  HF_TRY(add_layers());
  HF_TRY(add_experts());
  HF_TRY(add_names());
  HF_TRY(check_slots());
  HF_TRY(check_scales());
  replaced_.insert(changed_constants.begin(), changed_constants.end());
  for (std::size_t i = 0; i < selection_.parameters.size(); ++i) {
    const auto& slot = registry_.parameters()[i].slot;
    if (selection_.parameters[i].any && slot.has_value()) replaced_.insert(*slot);
  }
  for (std::size_t i = 0; i < registry_.derivations().size(); ++i) HF_TRY(add_derivation(i));
  return std::move(selection_);
}

// A source of which only some tensors and rows show.
class ScopedSource final : public Source {
 public:
  ScopedSource(std::unique_ptr<Source> inner, const storage::Registry& registry,
               const Selection& selection, const Scope& scope)
      : inner_(std::move(inner)), text_(inner_->describe() + " (" + to_text(scope) + ")") {
    for (std::size_t i = 0; i < inner_->tensors().size(); ++i) {
      const SourceTensor& tensor = inner_->tensors()[i];
      const auto found = registry.find_published(tensor.name);
      // Unknown names stay: the plan says what is wrong with them.
      const ParameterSelection all{.any = true, .rows = {}};
      const ParameterSelection& rows = found ? selection.parameters[found->parameter.index()] : all;
      if (found && found->row) {
        const bool shown = rows.any && (rows.rows.empty() ||
                                        std::binary_search(rows.rows.begin(), rows.rows.end(),
                                                           *found->row));
        if (shown) show(i, tensor, all);
        continue;
      }
      if (rows.any) show(i, tensor, rows);
    }
  }
  std::string describe() const override { return text_; }
  const config::ModelConfig& config() const override { return inner_->config(); }
  std::span<const SourceTensor> tensors() const override { return tensors_; }
  Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) override {
    return inner_->read(inner_index_[index], first_byte_[index] + offset, to);
  }
  bool reads_concurrently() const override { return inner_->reads_concurrently(); }
  std::span<const std::byte> memory(std::size_t index) const override {
    const auto all = inner_->memory(inner_index_[index]);
    return all.empty() ? all : all.subspan(first_byte_[index]);
  }
  void fetched(std::size_t index, std::uint64_t bytes) override {
    inner_->fetched(inner_index_[index], bytes);
  }
  Status finish() override { return inner_->finish(); }

 private:
  void show(std::size_t index, const SourceTensor& tensor, const ParameterSelection& selection) {
    const auto add = [&](std::optional<RowRange> rows, std::uint64_t first_byte) {
      tensors_.push_back(tensor);
      tensors_.back().rows = rows;
      inner_index_.push_back(index);
      first_byte_.push_back(first_byte);
    };
    const auto bytes = tensor::byte_size(tensor.dtype, tensor.shape);
    const bool has_rows = tensor.shape.rank() > 0 && tensor.shape[0] > 0 && bytes.ok();
    if (selection.rows.empty() || !has_rows || tensor.rows.has_value()) {
      return add(tensor.rows, 0);
    }
    const std::uint64_t row_bytes = *bytes / static_cast<std::uint64_t>(tensor.shape[0]);
    for (const std::int64_t row : selection.rows) {
      add(RowRange{.begin = row, .count = 1}, static_cast<std::uint64_t>(row) * row_bytes);
    }
  }

  std::unique_ptr<Source> inner_;
  std::string text_;
  std::vector<SourceTensor> tensors_;
  std::vector<std::size_t> inner_index_;
  std::vector<std::uint64_t> first_byte_;
};

}  // namespace

std::string to_text(const Scope& scope) {
  if (scope.whole()) return "whole";
  std::vector<std::string> parts;
  if (!scope.layers.empty()) {
    parts.push_back(fmt::format("layers {}", fmt::join(scope.layers, ", ")));
  }
  std::vector<std::string> experts;
  for (const auto& [layer, expert] : scope.experts) {
    experts.push_back(fmt::format("{}/{}", layer, expert));
  }
  if (!experts.empty()) parts.push_back(fmt::format("experts {}", fmt::join(experts, ", ")));
  if (!scope.parameters.empty()) {
    parts.push_back(fmt::format("parameters {}", fmt::join(scope.parameters, ", ")));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string outside_text(const Scope& scope) {
  return fmt::format("is outside of the scope ({}); add its layer, its expert or its name to the "
                     "scope, or begin a reload of the whole model",
                     to_text(scope));
}

std::vector<std::string> published_names(const storage::Registry& registry) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : registry.parameters()) {
    const auto& parts = parameter.part_names;
    if (parts.empty()) names.push_back(parameter.name);
    names.insert(names.end(), parts.begin(), parts.end());
  }
  for (const storage::ParameterAlias& alias : registry.aliases()) names.push_back(alias.name);
  return names;
}

Result<Selection> select(const storage::Registry& registry, const Scope& scope,
                         std::span<const SlotId> changed_constants) {
  return Selector(registry, scope).run(changed_constants);
}

std::vector<ByteRange> selected_bytes(const ParameterSpec& parameter,
                                      const ParameterSelection& selection) {
  if (!selection.any) return {};
  const std::uint64_t bytes = tensor::byte_size(parameter.dtype, parameter.shape).value();
  if (selection.rows.empty()) return {{0, bytes}};
  const std::uint64_t row_bytes = bytes / static_cast<std::uint64_t>(parameter.shape[0]);
  std::vector<ByteRange> ranges;
  for (const std::int64_t row : selection.rows) {
    const std::uint64_t begin = static_cast<std::uint64_t>(row) * row_bytes;
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end += row_bytes;
    } else {
      ranges.push_back({begin, begin + row_bytes});
    }
  }
  return ranges;
}

Result<std::unique_ptr<Source>> make_scoped_source(std::unique_ptr<Source> inner,
                                                   const storage::Registry& registry,
                                                   const Scope& scope) {
  HF_ASSIGN(const Selection selection, select(registry, scope, {}));
  return std::unique_ptr<Source>(
      std::make_unique<ScopedSource>(std::move(inner), registry, selection, scope));
}

}  // namespace holdfast::reload
