// Fuzz target: a manifest whose tensors are bent, dropped, repeated and renamed by the input, and a
// scope. A plan that is accepted covers every slot exactly once and can be printed.
#include <cstdint>
#include <vector>

#include "base/assert.h"
#include "reload/fuzz_model.h"
#include "reload/plan.h"

namespace holdfast::reload::fuzz {
namespace {

void bend(SourceTensor& tensor, Bytes& bytes) {
  switch (bytes.next() % 8) {
    case 0: tensor.name = bytes.text(); break;
    case 1: tensor.dtype = static_cast<tensor::DType>(bytes.next() % tensor::kDTypeCount); break;
    case 2: tensor.shape = tensor::Shape{std::max<std::int64_t>(bytes.small(), 0), 2}; break;
    case 3: tensor.layout = bytes.text(); break;
    case 4: tensor.shard_index = bytes.small(); break;
    case 5: tensor.shard_count = bytes.small(); break;
    case 6: tensor.rows = RowRange{.begin = bytes.small(), .count = bytes.small()}; break;
    default: break;
  }
}

Manifest draw_manifest(const Model& model, Bytes& bytes) {
  Manifest manifest = model.manifest;
  for (int edits = bytes.next() % 8; edits > 0 && !manifest.tensors.empty(); --edits) {
    const std::size_t at = bytes.next() % manifest.tensors.size();
    switch (bytes.next() % 4) {
      case 0: manifest.tensors.erase(manifest.tensors.begin() + static_cast<int>(at)); break;
      case 1: manifest.tensors.push_back(SourceTensor(manifest.tensors[at])); break;
      default: bend(manifest.tensors[at], bytes); break;
    }
  }
  return manifest;
}

PlanOptions draw_options(Bytes& bytes) {
  PlanOptions options;
  if (bytes.next() % 2 == 0) options.strategy = kCommitStrategies[bytes.next() % 3];
  switch (bytes.next() % 4) {
    case 0: options.scope.layers.push_back(bytes.small()); break;
    case 1: options.scope.experts.push_back({bytes.small(), bytes.small()}); break;
    case 2: options.scope.parameters.push_back(bytes.text()); break;
    default: break;
  }
  if (bytes.next() % 4 == 0) {
    options.casts.push_back({.parameter = bytes.text(),
                             .from = static_cast<tensor::DType>(bytes.next() %
                                                                tensor::kDTypeCount),
                             .to = tensor::DType::kBF16});
  }
  return options;
}

void check_plan(const ReloadPlan& plan, const Model& model) {
  std::uint64_t written = 0;
  for (const CopyStep& copy : plan.copies) written += copy.bytes;
  for (const PreserveStep& step : plan.preserved) written += step.bytes;
  for (const DeriveStep& step : plan.derivations) written += step.slices.size() * 6;
  HF_ASSERT(written == 16 + 18, "an accepted plan writes or preserves every byte once");
  HF_ASSERT(!to_text(plan, model.registry).empty() && !to_json(plan, model.registry).empty(),
            "a plan can be printed");
}

}  // namespace
}  // namespace holdfast::reload::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace holdfast::reload;
  static fuzz::Model model;
  static const bool loaded = [] {
    // Published, so that partial scopes are looked at.
    model.registry.publish(holdfast::storage::Epoch{1}, {});
    return true;
  }();
  static_cast<void>(loaded);
  fuzz::Bytes bytes(data, size);
  const auto source = make_manifest_source(fuzz::draw_manifest(model, bytes));
  const auto plan = make_plan(model.registry, {}, *source, fuzz::draw_options(bytes));
  if (plan.ok()) {
    fuzz::check_plan(*plan, model);
  } else {
    HF_ASSERT(!plan.error().message().empty(), "an error says why");
  }
  return 0;
}
