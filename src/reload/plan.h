// ReloadPlan: a pure value compiled from a source's list of tensors and a sealed registry before
// any byte moves: source tensors -> parameters -> derived slots in dependency order, with declared
// peak bytes and pause. Printable; touches no device. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"
#include "reload/source.h"
#include "storage/registry.h"

namespace holdfast::reload {

enum class CommitStrategy : std::uint8_t {
  kRemap,  // swap fresh pages under the same addresses: the weights once more, a pause of
           // microseconds
  kCopy,   // copy staged bytes over the live ones: the same memory, a pause of bytes / bandwidth
};
std::string_view commit_strategy_name(CommitStrategy strategy);  // "remap", "copy"
std::optional<CommitStrategy> commit_strategy_from_name(std::string_view name);

inline constexpr std::size_t kMaxSourceTensors = 1u << 20;
// Alignment of each transient input in the host buffer.
inline constexpr std::size_t kTransientAlignment = 64;
// What commit by copy swaps at a time: small enough for a core's second-level cache, so that the
// buffer between the two sides costs no memory bandwidth.
inline constexpr std::size_t kSwapBlockBytes = std::size_t{256} << 10;

// One source tensor that lands unchanged in (part of) a weight slot.
struct CopyStep {
  std::size_t source_index = 0;
  storage::ParameterId parameter;
  storage::SlotId slot;
  std::size_t offset_bytes = 0;  // in the slot
  std::size_t bytes = 0;
};
// One derivation, with the source tensors that feed its transient inputs.
struct DeriveStep {
  std::size_t derivation_index = 0;  // into Registry::derivations()
  // One per input of the derivation; empty for an input that is a slot or a resident parameter.
  std::vector<std::optional<std::size_t>> source_of_input;
};

struct ReloadPlan {
  std::string source;
  storage::Epoch from_epoch;
  CommitStrategy strategy = CommitStrategy::kRemap;
  std::vector<CopyStep> copies;
  std::vector<DeriveStep> derivations;  // in dependency order
  std::size_t constant_count = 0;
  std::uint64_t source_bytes = 0;     // read from the source
  std::uint64_t versioned_bytes = 0;  // in slots that this plan replaces
  // Declared before, measured after: allocated on the device beyond what is live now.
  std::uint64_t peak_device_bytes = 0;
  std::uint64_t peak_host_bytes = 0;  // transient inputs of the largest derivation slice
  double expected_pause_us = 0;
};

// Exact two-way account: every parameter has one source tensor of its dtype and shape and every
// source tensor is wanted. `live` is the config that the registry was built for.
// Errors: kFailedPrecondition (registry not sealed), kMismatch / kNotFound naming tensor and both
// values; unknown names come with the nearest known ones.
// Also kResourceExhausted for a source of more than kMaxSourceTensors tensors, and what
// config::check_replaceable says about the source's config.
Result<ReloadPlan> make_plan(const storage::Registry& registry, const config::ModelConfig& live,
                             const Source& source, CommitStrategy strategy);
// Several readable lines, without a newline at the end of the last.
std::string to_text(const ReloadPlan& plan, const storage::Registry& registry);

// Bytes of one slice of a transient input of `derivation`.
std::uint64_t transient_slice_bytes(const storage::Derivation& derivation,
                                    const storage::ParameterSpec& parameter);
std::uint64_t round_to_transient_alignment(std::uint64_t bytes);
// The host buffer that feeds one slice of a step's derivation.
std::uint64_t transient_buffer_bytes(const storage::Registry& registry, const DeriveStep& step);

}  // namespace holdfast::reload
