#include "engine/reload_request.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/file_io.h"
#include "config/json_fields.h"
#include "engine/injected_faults.h"
#include "tensor/dtype.h"

namespace holdfast::engine {

namespace {

Status check_count(std::string_view name, std::size_t count, std::size_t most) {
  if (count <= most) return {};
  return make_error(ErrorCode::kInvalidArgument, "reload option {} has {} entries, the most is {}",
                    name, count, most);
}

Status resolve_strategy(const ReloadOptions& options, const Settings& settings,
                        reload::PlanOptions& plan) {
  if (!std::isfinite(options.max_pause_us) || options.max_pause_us < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "reload option max_pause_us is {}, expected 0 (no limit) or more",
                      options.max_pause_us);
  }
  plan.undo = options.undo_image ? reload::UndoPolicy::kImage : reload::UndoPolicy::kNone;
  if (options.commit == "auto") {
    if (options.max_extra_bytes > 0) plan.limits.max_extra_bytes = options.max_extra_bytes;
    if (options.max_pause_us > 0) plan.limits.max_pause_us = options.max_pause_us;
    return {};
  }
  plan.strategy = settings.commit;
  if (!options.commit.empty()) plan.strategy = reload::commit_strategy_from_name(options.commit);
  if (!plan.strategy) {
    return make_error(ErrorCode::kInvalidArgument,
                      "reload option commit is \"{}\", expected \"remap\", \"copy\", \"stream\" or "
                      "\"auto\"",
                      options.commit);
  }
  const std::string_view name = reload::commit_strategy_name(*plan.strategy);
  if (options.max_extra_bytes > 0 || options.max_pause_us > 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "reload limits of {} bytes and {} us with commit \"{}\": limits choose a "
                      "strategy, so they need commit \"auto\"",
                      options.max_extra_bytes, options.max_pause_us, name);
  }
  if (options.undo_image && plan.strategy != reload::CommitStrategy::kStream) {
    return make_error(ErrorCode::kInvalidArgument,
                      "reload option undo_image with commit \"{}\", which can always be undone: it "
                      "is for \"stream\" and \"auto\"",
                      name);
  }
  return {};
}

Status resolve_scope(const ReloadScope& from, reload::Scope& scope) {
  HF_TRY(check_count("scope.layers", from.layers.size(), kMaxScopeEntries));
  HF_TRY(check_count("scope.experts", from.experts.size(), kMaxScopeEntries));
  HF_TRY(check_count("scope.parameters", from.parameters.size(), kMaxScopeEntries));
  scope.layers = from.layers;
  scope.parameters = from.parameters;
  for (const auto& [layer, expert] : from.experts) {
    scope.experts.push_back({.layer = layer, .expert = expert});
  }
  return {};
}

Result<tensor::DType> resolve_dtype(std::string_view name) {
  std::vector<std::string_view> known;
  for (int i = 0; i < tensor::kDTypeCount; ++i) {
    const auto dtype = static_cast<tensor::DType>(i);
    known.push_back(tensor::dtype_name(dtype));
    if (name == known.back()) return dtype;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "reload cast names dtype \"{}\", expected one of {}", name,
                    fmt::join(known, ", "));
}

Result<reload::DeclaredCast> resolve_cast(const ReloadCast& from) {
  if (from.parameter.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "reload cast from \"{}\" to \"{}\" names no parameter", from.from, from.to);
  }
  reload::DeclaredCast cast{.parameter = from.parameter};
  HF_ASSIGN(cast.from, resolve_dtype(from.from));
  HF_ASSIGN(cast.to, resolve_dtype(from.to));
  if (reload::castable(cast.from, cast.to)) return cast;
  return make_error(ErrorCode::kInvalidArgument,
                    "reload cast of {} from {} to {}: casts are between two floating-point dtypes",
                    from.parameter, from.from, from.to);
}

Status resolve_fault(const std::string& name, ReloadRequest& request) {
  if (name.empty()) return {};
  if (FaultInjector::knows(name)) {
    request.inject = name;
    return {};
  }
  if (const auto kind = reload::fault_kind_from_name(name)) {
    request.fault.kind = *kind;
    return {};
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "reload option inject is \"{}\", expected the name of a fault", name);
}

}  // namespace

Status resolve_version(const std::string& version) {
  if (version.size() > kMaxVersionBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "reload option version is {} bytes long, the most is {}", version.size(),
                      kMaxVersionBytes);
  }
  const auto control = std::find_if(version.begin(), version.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7F;
  });
  if (control == version.end()) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "reload option version has the control character {:#04x} at byte {}",
                    static_cast<unsigned char>(*control), control - version.begin());
}

Result<reload::SourceTensor> source_tensor(const TensorInfo& info) {
  const auto dtype = tensor::dtype_from_safetensors(info.dtype);
  if (!dtype) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tensor {} is announced as dtype \"{}\", expected a name of safetensors: "
                      "\"BF16\", \"F32\", \"U8\", ...",
                      info.name, info.dtype);
  }
  auto shape = tensor::Shape::from_dims(info.shape);
  if (!shape.ok()) return shape.error().with_context("tensor " + info.name);
  const auto bytes = tensor::byte_size(*dtype, *shape);
  if (!bytes.ok()) return bytes.error().with_context("tensor " + info.name);
  return reload::SourceTensor{.name = info.name, .dtype = *dtype, .shape = *shape};
}

Result<ReloadRequest> resolve_reload(const std::string& directory, const ReloadOptions& options,
                                     const Settings& settings) {
  ReloadRequest request{.directory = directory,
                        .pushed = false,
                        .plan = {},
                        .digests_file = options.digests_file,
                        .fault = {},
                        .inject = {},
                        .deadline_ms = options.deadline_ms,
                        .version = options.version,
                        .threads = settings.threads,
                        .commit_when_ready = options.commit_when_ready,
                        .replace_open = options.replace_open,
                        .in_flight = options.in_flight};
  HF_TRY(resolve_strategy(options, settings, request.plan));
  HF_TRY(resolve_scope(options.scope, request.plan.scope));
  HF_TRY(check_count("casts", options.casts.size(), kMaxCasts));
  for (const ReloadCast& cast : options.casts) {
    HF_ASSIGN(reload::DeclaredCast declared, resolve_cast(cast));
    request.plan.casts.push_back(std::move(declared));
  }
  if (options.apply_constants) request.plan.constants = reload::ConstantsPolicy::kApply;
  if (options.deadline_ms < 0 || options.deadline_ms > kMaxDeadlineMs) {
    return make_error(ErrorCode::kInvalidArgument,
                      "reload option deadline_ms is {}, expected 0 (none) to {}",
                      options.deadline_ms, kMaxDeadlineMs);
  }
  HF_TRY(resolve_version(options.version));
  HF_TRY(resolve_fault(options.inject, request));
  return request;
}

Result<ReloadRequest> resolve_memory(std::vector<MemoryTensor> tensors,
                                     const ReloadOptions& options, const Settings& settings) {
  HF_ASSIGN(ReloadRequest request, resolve_reload("tensors in memory", options, settings));
  if (options.apply_constants) {
    return make_error(ErrorCode::kInvalidArgument,
                      "reload option apply_constants with tensors in memory, which bring no "
                      "config: use a directory");
  }
  HF_TRY(check_count("tensors", tensors.size(), reload::kMaxSourceTensors));
  auto pieces = std::make_shared<std::vector<reload::MemoryPiece>>();
  pieces->reserve(tensors.size());
  for (const MemoryTensor& tensor : tensors) {
    HF_ASSIGN(reload::SourceTensor stated, source_tensor(tensor.info));
    HF_ASSIGN(const std::size_t bytes, tensor::byte_size(stated.dtype, stated.shape));
    if (tensor.bytes.size() != bytes) {
      return make_error(ErrorCode::kInvalidArgument,
                        "tensor {} ({} [{}]) has {} bytes, and {} bytes of memory were given",
                        tensor.info.name, tensor.info.dtype, fmt::join(tensor.info.shape, ", "),
                        bytes, tensor.bytes.size());
    }
    pieces->push_back({.tensor = std::move(stated), .bytes = tensor.bytes});
  }
  request.memory = std::move(pieces);
  return request;
}

Result<ReloadRequest> resolve_push(const ReloadOptions& options, const Settings& settings) {
  HF_ASSIGN(ReloadRequest request, resolve_reload("pushed tensors", options, settings));
  request.pushed = true;
  request.plan.pushed = true;
  if (request.plan.strategy == reload::CommitStrategy::kStream) {
    return make_error(ErrorCode::kInvalidArgument,
                      "reload option commit is \"stream\"{}: it reads its source inside the "
                      "commit, and a push has none that could be read then; use \"remap\" or "
                      "\"copy\"",
                      options.commit.empty() ? " (the engine's own)" : "");
  }
  if (options.apply_constants) {
    return make_error(ErrorCode::kInvalidArgument,
                      "reload option apply_constants with a push, which brings no config");
  }
  if (!request.inject.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "reload option inject is \"{}\" with a push: that fault needs a source that "
                      "is read",
                      request.inject);
  }
  return request;
}

Result<std::map<std::string, base::Digest>> read_digests(const std::string& path) {
  HF_ASSIGN(const std::string text, checkpoint::read_text(path, kMaxDigestsBytes));
  simdjson::dom::parser parser;
  HF_ASSIGN(const config::JsonFields fields,
            config::JsonFields::parse(parser, text, path,
                                      {.max_bytes = kMaxDigestsBytes,
                                       .max_depth = kMaxDigestsDepth}));
  std::map<std::string, base::Digest> digests;
  for (const auto field : fields.object()) {
    std::string_view hex;
    std::optional<base::Digest> digest;
    if (field.value.get(hex) == simdjson::SUCCESS) digest = base::digest_from_hex(hex);
    if (!digest) {
      return make_error(ErrorCode::kCorrupt, "{}: the digest of {} is {}, expected 32 hex digits",
                        path, field.key, config::brief_json(field.value));
    }
    digests.emplace(std::string(field.key), *digest);
  }
  if (digests.empty()) {
    return make_error(ErrorCode::kCorrupt, "{}: no digest in it, so nothing would be checked",
                      path);
  }
  return digests;
}

}  // namespace holdfast::engine
