// ReloadPlan: a pure value compiled from a source's list of tensors and a sealed registry before
// any byte moves: source tensors -> parameters -> derived slots in dependency order, with declared
// peak bytes and pause. Printable; touches no device. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"
#include "reload/casts.h"
#include "reload/scope.h"
#include "reload/source.h"
#include "storage/registry.h"

namespace holdfast::reload {

enum class CommitStrategy : std::uint8_t {
  kRemap,  // swap fresh pages under the same addresses: the weights once more, a pause of
           // microseconds
  kCopy,   // copy staged bytes over the live ones: the same memory, a pause of bytes / bandwidth
  kStream,  // stage nothing and read the source into the live slots: no memory, a pause of the
            // whole transfer, and a failure poisons unless an undo image is kept
};
inline constexpr std::array kCommitStrategies = {CommitStrategy::kRemap, CommitStrategy::kCopy,
                                                 CommitStrategy::kStream};
std::string_view commit_strategy_name(CommitStrategy strategy);  // "remap", "copy", "stream"
std::optional<CommitStrategy> commit_strategy_from_name(std::string_view name);

// Whether kStream first copies what is live, so that a failure can be rolled back.
enum class UndoPolicy : std::uint8_t { kNone, kImage };
// What happens when the next config differs in fields that decide only constant slots.
enum class ConstantsPolicy : std::uint8_t { kRefuse, kApply };

inline constexpr std::size_t kMaxSourceTensors = 1u << 20;
// Alignment of each transient input in the host buffer.
inline constexpr std::size_t kTransientAlignment = 64;
// What commit by copy swaps at a time: small enough for a core's second-level cache, so that the
// buffer between the two sides costs no memory bandwidth.
inline constexpr std::size_t kSwapBlockBytes = std::size_t{256} << 10;
// The most that kStream holds of the source at a time.
inline constexpr std::uint64_t kMaxStreamBufferBytes = std::uint64_t{256} << 20;

// What one strategy costs, beyond what is live.
struct StrategyCost {
  CommitStrategy strategy = CommitStrategy::kRemap;
  std::uint64_t peak_device_bytes = 0;
  std::uint64_t peak_host_bytes = 0;
  double expected_pause_us = 0;
};
struct PlanLimits {
  std::uint64_t max_extra_bytes = std::numeric_limits<std::uint64_t>::max();  // device and host
  double max_pause_us = std::numeric_limits<double>::infinity();
};
// Among those within the limits the one of the shortest pause, of two alike the first; stream,
// which is not free to fail, only when no other is within them.
// Errors: kResourceExhausted stating every cost and the limits that there are.
Result<CommitStrategy> choose_strategy(std::span<const StrategyCost> costs,
                                       const PlanLimits& limits);

struct PlanOptions {
  std::optional<CommitStrategy> strategy = {};  // empty: choose_strategy by `limits`
  PlanLimits limits = {};
  Scope scope = {};
  std::vector<DeclaredCast> casts = {};
  ConstantsPolicy constants = ConstantsPolicy::kRefuse;
  // With kApply: the constant slots' new bytes by slot name.
  std::map<std::string, std::vector<std::byte>> constant_values = {};
  UndoPolicy undo = UndoPolicy::kNone;
  // The source pushes: its host peak is that of the worst order, and nothing can be streamed.
  bool pushed = false;
  // By tensor name: XXH3-128 of the source's bytes. Tensors not listed are not checked.
  std::map<std::string, base::Digest> expected_digests = {};
};

// Bytes [begin, end) of a parameter (as stored here, after a cast) come from one source tensor.
struct SourcePiece {
  std::size_t source_index = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::optional<base::Digest> expected = {};  // of the source's bytes; of one expert's tensor alone
};
// How one parameter is fed; no pieces when it keeps its bytes.
struct ParameterFeed {
  std::vector<SourcePiece> pieces = {};  // by begin, disjoint
  std::optional<tensor::DType> cast_from = {};
  std::optional<base::Digest> expected = {};  // of the source's bytes; only when all of it comes
  std::optional<std::size_t> alias_source = {};  // a second arrival, which must be equal
  std::string alias_name = {};                   // under this name
};
// (Part of) a source tensor that lands unchanged, or cast, in (part of) a weight slot.
struct CopyStep {
  std::size_t source_index = 0;
  storage::ParameterId parameter;
  storage::SlotId slot;
  std::size_t offset_bytes = 0;  // in the slot
  std::size_t bytes = 0;
  std::uint64_t parameter_offset = 0;
};
// One derivation, and which of its slices are computed anew.
struct DeriveStep {
  std::size_t derivation_index = 0;  // into Registry::derivations()
  std::vector<bool> from_source;     // by input: a transient parameter
  std::vector<std::int64_t> slices;  // ascending
};
// Bytes of a versioned slot that keep their live value.
struct PreserveStep {
  storage::SlotId slot;
  std::uint64_t offset_bytes = 0;
  std::uint64_t bytes = 0;
};

struct ReloadPlan {
  std::string source;
  storage::Epoch from_epoch;
  storage::Epoch to_epoch;  // if no other reload commits first
  CommitStrategy strategy = CommitStrategy::kRemap;
  bool strategy_was_chosen = false;  // by choose_strategy
  UndoPolicy undo = UndoPolicy::kNone;
  Scope scope;
  std::vector<ParameterFeed> feeds;     // by parameter id
  std::vector<CopyStep> copies;         // in the source's order
  std::vector<DeriveStep> derivations;  // in dependency order
  std::vector<PreserveStep> preserved;
  std::vector<storage::ConstantChange> constant_changes;
  std::vector<config::ConfigDifference> config_changes;
  std::size_t constant_count = 0;
  std::vector<std::string> notes;     // what a reader must know and nothing refuses
  std::uint64_t source_bytes = 0;     // read from the source
  std::uint64_t versioned_bytes = 0;  // in slots that this plan replaces
  std::uint64_t preserved_bytes = 0;
  // Declared before, measured after: allocated beyond what is live now.
  std::uint64_t peak_device_bytes = 0;
  // Transient inputs of the largest derivation slice, what it computes with, and chunks.
  std::uint64_t peak_host_bytes = 0;
  // Instead of peak_host_bytes when the source pushes: all transient inputs and aliases at once,
  // the worst order in which fragments can come.
  std::uint64_t peak_host_bytes_pushed = 0;
  double expected_pause_us = 0;
  std::array<StrategyCost, kCommitStrategies.size()> costs;  // in the order of kCommitStrategies
};

// Exact two-way account: every selected parameter has the source tensors that make it up, of its
// dtype (takes_rounded and declared casts apart), shape, layout and shard, once, and every source
// tensor is wanted. `live` is the config
// that the registry was built for. Errors: kFailedPrecondition (registry not sealed; a partial
// scope before the first load or over poisoned weights); kMismatch / kNotFound naming tensor and
// both values, unknown names with the nearest known ones; kResourceExhausted for a source of more
// than kMaxSourceTensors tensors or limits that no strategy keeps; kMismatch for a config that
// differs in what shapes storage or code, or, unless applied, in what decides constants.
Result<ReloadPlan> make_plan(const storage::Registry& registry, const config::ModelConfig& live,
                             const Source& source, const PlanOptions& options);
Result<ReloadPlan> make_plan(const storage::Registry& registry, const config::ModelConfig& live,
                             const Source& source, CommitStrategy strategy);
// What a reload does to state that no checkpoint holds, by class: "preserve" (KV pages, locks),
// "rewritten by every step" (inputs, scratch); empty for the versioned classes.
std::string_view keyless_policy(storage::SlotClass slot_class);
// Several readable lines, without a newline at the end of the last.
std::string to_text(const ReloadPlan& plan, const storage::Registry& registry);
// The same as one JSON object.
std::string to_json(const ReloadPlan& plan, const storage::Registry& registry);

// Fills plan.costs, and from them the plan's strategy and declared cost.
Status declare_cost(const storage::Registry& registry, const PlanOptions& options,
                    ReloadPlan& plan);

// Bytes of one slice of a transient input of `derivation`.
std::uint64_t transient_slice_bytes(const storage::Derivation& derivation,
                                    const storage::ParameterSpec& parameter);
std::uint64_t round_to_transient_alignment(std::uint64_t bytes);
// The host buffer that feeds one slice of a step's derivation.
std::uint64_t transient_buffer_bytes(const storage::Registry& registry, const DeriveStep& step);

}  // namespace holdfast::reload
