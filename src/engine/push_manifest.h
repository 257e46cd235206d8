// What a pushed reload brings: the announced tensors as a source to plan from, and what there is to
// announce. Pure functions of a sealed registry; any thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/reload_request.h"
#include "holdfast/reload.h"
#include "reload/source.h"
#include "storage/registry.h"

namespace holdfast::engine {

// Every parameter, in the registry's order, under its own name.
std::vector<TensorInfo> loadable_tensors(const storage::Registry& registry);

// As Engine::check_loadable.
Status check_loadable(const storage::Registry& registry, std::span<const TensorInfo> tensors);

// A manifest of `tensors`; when there are none, of everything that the request's scope selects, in
// the dtype that a declared cast starts from. Of a tensor of which the scope selects only some rows
// only those are expected. Errors: kInvalidArgument for a dtype or a shape that is none;
// kResourceExhausted over reload::kMaxSourceTensors; those of reload::select.
Result<std::unique_ptr<reload::Source>> make_push_source(const storage::Registry& registry,
                                                         const config::ModelConfig& config,
                                                         const ReloadRequest& request,
                                                         std::span<const TensorInfo> tensors);

}  // namespace holdfast::engine
