#include "engine/push_manifest.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "reload/casts.h"
#include "reload/scope.h"
#include "tensor/dtype.h"

namespace holdfast::engine {

namespace {

using reload::SourceTensor;

tensor::DType pushed_dtype(const storage::ParameterSpec& parameter, const ReloadRequest& request) {
  for (const reload::DeclaredCast& cast : request.plan.casts) {
    if (cast.to == parameter.dtype && parameter.name.ends_with(cast.parameter)) return cast.from;
  }
  return parameter.dtype;
}

// Each selected row is an entry of its own, so that the plan waits for no other.
void add_selected(const SourceTensor& tensor, const reload::ParameterSelection& selection,
                  std::vector<SourceTensor>& to) {
  if (selection.rows.empty()) return to.push_back(tensor);
  for (const std::int64_t row : selection.rows) {
    to.push_back(tensor);
    to.back().rows = reload::RowRange{.begin = row, .count = 1};
  }
}

// What a publisher sends for the selected part of a parameter: one tensor for each expert where
// that is how it is published.
void add_published(const storage::ParameterSpec& parameter, const SourceTensor& whole,
                   const reload::ParameterSelection& selection, std::vector<SourceTensor>& to) {
  if (parameter.part_names.empty()) return add_selected(whole, selection, to);
  const auto add = [&](std::size_t row) {
    to.push_back({.name = parameter.part_names[row],
                  .dtype = whole.dtype,
                  .shape = parameter.part_shape});
  };
  for (const std::int64_t row : selection.rows) add(static_cast<std::size_t>(row));
  for (std::size_t row = 0; selection.rows.empty() && row < parameter.part_names.size(); ++row) {
    add(row);
  }
}

}  // namespace

std::vector<TensorInfo> loadable_tensors(const storage::Registry& registry) {
  std::vector<TensorInfo> tensors;
  tensors.reserve(registry.parameters().size());
  for (const storage::ParameterSpec& parameter : registry.parameters()) {
    const auto add = [&](const std::string& name, const tensor::Shape& shape) {
      const auto dims = shape.dims();
      tensors.push_back({.name = name,
                         .dtype = std::string(tensor::safetensors_dtype_name(parameter.dtype)),
                         .shape = {dims.begin(), dims.end()}});
    };
    if (parameter.part_names.empty()) add(parameter.name, parameter.shape);
    for (const std::string& part : parameter.part_names) add(part, parameter.part_shape);
  }
  return tensors;
}

Status check_loadable(const storage::Registry& registry, std::span<const TensorInfo> tensors) {
  for (const TensorInfo& tensor : tensors) {
    const auto found = registry.find_published(tensor.name);
    if (!found) continue;
    const storage::ParameterSpec& parameter = registry.parameters()[found->parameter.index()];
    const auto dims = registry.published_shape(*found).dims();
    const auto dtype = tensor::dtype_from_safetensors(tensor.dtype);
    const bool taken = dtype && (*dtype == parameter.dtype ||
                                 reload::takes_rounded(parameter, *dtype));
    if (taken && std::equal(dims.begin(), dims.end(), tensor.shape.begin(), tensor.shape.end())) {
      continue;
    }
    const bool rounds = reload::takes_rounded(parameter, tensor::DType::kF32);
    return make_error(ErrorCode::kMismatch, "tensor {} is {} [{}], the model loads {} [{}]",
                      tensor.name, tensor.dtype, fmt::join(tensor.shape, ", "),
                      rounds ? "BF16, F16 or F32"
                             : tensor::safetensors_dtype_name(parameter.dtype),
                      fmt::join(dims, ", "));
  }
  return {};
}

Result<std::unique_ptr<reload::Source>> make_push_source(const storage::Registry& registry,
                                                         const config::ModelConfig& config,
                                                         const ReloadRequest& request,
                                                         std::span<const TensorInfo> tensors) {
  if (tensors.size() > reload::kMaxSourceTensors) {
    return make_error(ErrorCode::kResourceExhausted, "a push announces {} tensors, the limit is {}",
                      tensors.size(), reload::kMaxSourceTensors);
  }
  HF_ASSIGN(const reload::Selection selection, reload::select(registry, request.plan.scope, {}));
  reload::Manifest manifest{.description = request.directory, .config = config, .tensors = {}};
  for (const TensorInfo& info : tensors) {
    HF_ASSIGN(const SourceTensor tensor, source_tensor(info));
    // One that the scope does not take, or that nobody knows, is the plan's to refuse.
    const auto found = registry.find_published(info.name);
    const bool fits = found && !found->row && registry.published_shape(*found) == tensor.shape;
    add_selected(tensor,
                 fits ? selection.parameters[found->parameter.index()]
                      : reload::ParameterSelection{},
                 manifest.tensors);
  }
  for (std::size_t i = 0; tensors.empty() && i < registry.parameters().size(); ++i) {
    if (!selection.parameters[i].any) continue;
    const storage::ParameterSpec& parameter = registry.parameters()[i];
    add_published(parameter,
                  {.name = parameter.name,
                   .dtype = pushed_dtype(parameter, request),
                   .shape = parameter.shape},
                  selection.parameters[i], manifest.tensors);
  }
  return reload::make_manifest_source(std::move(manifest));
}

}  // namespace holdfast::engine
