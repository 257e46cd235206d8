// ReloadRequest: a reload as the caller asked for it, checked and in the terms of reload/. Values
// and functions of their arguments; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "engine/settings.h"
#include "holdfast/reload.h"
#include "reload/plan.h"
#include "reload/source.h"
#include "reload/transaction.h"

namespace holdfast::engine {

inline constexpr std::size_t kMaxScopeEntries = 1u << 16;
inline constexpr std::size_t kMaxCasts = 1u << 12;
inline constexpr std::size_t kMaxVersionBytes = 256;
inline constexpr std::int64_t kMaxDeadlineMs = std::int64_t{1000} * 60 * 60 * 24;  // a day
inline constexpr std::size_t kMaxDigestsBytes = 64u << 20;
inline constexpr std::size_t kMaxDigestsDepth = 2;  // an object of strings

struct ReloadRequest {
  std::string directory = {};  // or what a push, or tensors in memory, are called
  // Null: the source is that directory, or the push.
  std::shared_ptr<const std::vector<reload::MemoryPiece>> memory = {};
  bool pushed = false;
  // Without expected digests and constants' values: those are read when the plan is made.
  reload::PlanOptions plan = {};
  std::string digests_file = {};
  reload::InjectedFault fault = {};
  std::string inject = {};  // a fault of the device or the source: see engine/injected_faults.h
  std::int64_t deadline_ms = 0;  // from begin; 0: none
  std::string version = {};
  int threads = 1;  // of a commit that reads its source
  bool commit_when_ready = true;
  bool replace_open = false;
  InFlight in_flight = InFlight::kContinue;
};

// Errors: kInvalidArgument naming the option, its value and what is accepted.
Result<ReloadRequest> resolve_reload(const std::string& directory, const ReloadOptions& options,
                                     const Settings& settings);
// The same of a reload from tensors in memory. Errors: also as Engine::begin_reload has them.
Result<ReloadRequest> resolve_memory(std::vector<MemoryTensor> tensors,
                                     const ReloadOptions& options, const Settings& settings);
// The same of a reload whose bytes are pushed. Errors: also for what needs a source that can be
// read, or a config: commit "stream", apply_constants, an injected fault of source or device.
Result<ReloadRequest> resolve_push(const ReloadOptions& options, const Settings& settings);

// As announced. Errors: kInvalidArgument for a dtype or a shape that is none, naming the tensor.
Result<reload::SourceTensor> source_tensor(const TensorInfo& info);

// Errors: kInvalidArgument for a label that is too long or has a control character.
Status resolve_version(const std::string& version);

// Errors: kNotFound, kIo; kCorrupt for what is not a JSON object from tensor names to 32 hex
// digits, naming file, tensor and value.
Result<std::map<std::string, base::Digest>> read_digests(const std::string& path);

}  // namespace holdfast::engine
