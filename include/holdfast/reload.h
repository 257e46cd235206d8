// Reload: what to replace, how, and what it costs and did. Values; any thread, except where said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "holdfast/result.h"

namespace holdfast {

// Which part of the model a reload replaces: the union of what is listed; nothing listed means all
// of it. A part must be made of whole units (a weight with its scale, all of a fused QKV).
struct ReloadScope {
  std::vector<std::int64_t> layers = {};
  std::vector<std::pair<std::int64_t, std::int64_t>> experts = {};  // layer, expert
  std::vector<std::string> parameters = {};                         // by name, as in the checkpoint
};

// A change of dtype that is meant: nothing is cast otherwise.
struct ReloadCast {
  std::string parameter = {};  // a name, or the end of one
  std::string from = {};       // "f32", "bf16", ...
  std::string to = {};
};

// What the commit does to requests that run; their next tokens come from the new weights.
enum class InFlight : std::uint8_t {
  kContinue,   // keep their keys and values, which the old weights made
  kRecompute,  // keep their tokens, compute keys and values anew
  kRestart,    // begin again from the prompt
  kAbort,      // end with their tokens so far
  kDrain,      // commit only once they have ended; no new one starts meanwhile (a poisoned engine,
               // in which nothing ends any more: as kAbort)
};
const char* in_flight_name(InFlight policy);  // "continue", "recompute", ...

// A tensor as a checkpoint holds it.
struct TensorInfo {
  std::string name = {};
  std::string dtype = {};  // as in safetensors: "BF16", "F32", "U8", ...
  std::vector<std::int64_t> shape = {};
};

// A tensor that lies in this process's memory, all of it, as a checkpoint holds it.
struct MemoryTensor {
  TensorInfo info = {};
  std::span<const std::byte> bytes = {};
};

struct ReloadOptions {
  // "remap", "copy", "stream", or "auto": the shortest pause within the two limits, and "stream"
  // only when no other is within them. Empty: the engine's own. "stream" stages nothing and reads
  // the source inside the commit: a failure there poisons, unless undo_image.
  std::string commit = {};
  std::uint64_t max_extra_bytes = 0;  // with "auto"; 0: no limit
  double max_pause_us = 0;            // with "auto"; 0: no limit
  ReloadScope scope = {};             // of a whole directory the rest is not read
  std::vector<ReloadCast> casts = {};
  // A config that changes constants (rope, SwiGLU): apply them in the same commit, else refuse.
  bool apply_constants = false;
  bool undo_image = false;        // with "stream": keep what is needed to roll back
  std::string digests_file = {};  // JSON object: tensor name to XXH3-128 hex of its bytes
  std::int64_t deadline_ms = 0;   // from begin_reload to the commit; 0: none
  std::string version = {};       // the label that Engine::version() says once this has committed
  bool commit_when_ready = true;  // else the caller calls commit_reload()
  // Aborts the open reload, if there is one and it is not committed, instead of being refused.
  bool replace_open = false;
  InFlight in_flight = InFlight::kContinue;
  // A drill's fault, see drill_faults(), or "steps-fail": launches fail once it has committed,
  // until the next reload begins. "": none.
  std::string inject = {};
};

enum class ReloadPhase : std::uint8_t { kNone, kStaging, kReady, kVerifying, kDone, kFailed };

// Where the open reload stands, or the last one ended. A value of one moment.
struct ReloadStatus {
  std::uint64_t id = 0;  // 0: none has begun
  ReloadPhase phase = ReloadPhase::kNone;
  std::string source = {}, version = {}, strategy = {};
  bool pushed = false;
  std::uint64_t bytes_expected = 0, bytes_arrived = 0;
  std::vector<std::string> awaited = {};  // tensors that have not wholly come, at most 8 of them
  std::uint64_t awaited_count = 0;
  std::int64_t deadline_left_ms = 0;      // 0: no deadline
  std::string error = {};
};
const char* reload_phase_name(ReloadPhase phase);  // "none", "staging", "ready", ...

struct ReloadReport {
  std::uint64_t id = 0;
  std::string source, scope, version;
  std::string state;  // "committed", "rolled_back", "poisoned"
  std::string strategy;
  std::uint64_t from_epoch = 0, to_epoch = 0;
  std::uint64_t source_bytes = 0, versioned_bytes = 0, preserved_bytes = 0;
  double stage_ms = 0, prepare_ms = 0, verify_ms = 0, pause_us = 0, expected_pause_us = 0;
  std::uint64_t declared_peak_bytes = 0, measured_peak_bytes = 0;            // device
  std::uint64_t declared_host_peak_bytes = 0, measured_host_peak_bytes = 0;  // host
  std::uint64_t slots_moved = 0, slots_changed = 0;
  std::vector<std::string> warnings;
  std::string error;
};

// A plan, before any byte moves.
struct PlanReport {
  std::string text;  // readable lines
  std::string json;  // one object
  std::string strategy;
};

// What a check of every versioned byte found: digests against the commit's, constants against their
// values, padding against zero.
struct VerifyReport {
  std::uint64_t slots = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> defects = {};  // one line a slot; empty: all is as committed
};

}  // namespace holdfast
