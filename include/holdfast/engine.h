// Engine: one model on one device, generating while its weights are replaced. Owns everything:
// slots, graphs, KV cache, requests. One thread calls it (the engine thread), except where said.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holdfast/reload.h"
#include "holdfast/result.h"

namespace holdfast {

class Tokenizer;

// What a long operation is doing; fraction in [0, 1].
struct Progress {
  std::string phase;
  double fraction = 0;
};

struct EngineOptions {
  std::string model_directory;
  int threads = 0;                   // 0: all cores
  std::int64_t max_context = 0;      // positions per sequence; 0: the model's, at most 4096
  std::int64_t max_sequences = 8;    // requests that decode together; the largest decode graph
  std::int64_t prefill_chunk = 64;   // prompt tokens in one step, the largest graph
  std::int64_t kv_tokens = 0;        // KV capacity; 0: max_sequences * max_context, at most 65536
  std::string kernels = "fast";      // "fast" or "reference" (plain scalar loops)
  std::string experts = "auto";      // "auto", "holdfast" or "reference"
  std::string commit = "remap";      // the first load's strategy too: "remap", "copy" or "stream"
  bool simulate_faults = false;      // a device that ReloadOptions::inject can make fail
  std::function<void(const Progress&)> progress;
};

// Greedy when temperature is 0. Order: temperature, top-k, top-p, min-p. The draw for output token
// i depends on (seed, i) alone.
struct Sampling {
  float temperature = 0.0f;  // [0, 100]
  float top_p = 1.0f;        // (0, 1]
  std::int32_t top_k = 0;    // 0: off
  float min_p = 0.0f;        // [0, 1]
  std::uint64_t seed = 0;
};

struct Request {
  std::vector<std::int32_t> prompt_ids;  // at least one
  Sampling sampling;
  std::int64_t max_tokens = 128;         // 0: only score the prompt
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_token_ids;  // besides the model's
  bool prompt_logprobs = false;          // log p(prompt_ids[i] | before) for i >= 1
  // Called on the engine thread, inside step, with the float32 logits after prompt position
  // `position`, in order. The span ends with the call; the callback must not call the engine.
  std::function<void(std::int64_t position, std::span<const float> logits)> prompt_logits;
};

struct RequestId {
  std::uint64_t value = 0;
  friend bool operator==(RequestId, RequestId) = default;
};

enum class FinishReason : std::uint8_t { kStop, kLength, kAbort };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "abort"

// One generated token, and the weights that made it.
struct Token {
  std::int32_t id = 0;
  float logprob = 0;        // natural log of the raw distribution, before temperature
  std::uint64_t epoch = 0;  // the epoch of the step that produced it
};

struct Event {
  RequestId request;
  std::optional<Token> token;                  // empty when a request ends without one
  std::vector<float> prompt_logprobs;          // filled once, with the request's first event
  std::optional<FinishReason> finish_reason;   // set on the last event
};

// One slot in a census; see storage/census.h.
struct CensusEntry {
  std::string name;
  std::string slot_class;
  std::uint64_t address = 0, bytes = 0, epoch = 0;
  std::string digest;  // hex; empty for slots that no commit replaces
};
struct CensusReport {
  std::uint64_t epoch = 0;
  std::vector<CensusEntry> slots;
  std::uint64_t captured_addresses = 0;
  // Captured addresses that lie in no slot: "graph/node/role 0x...".
  std::vector<std::string> homeless;
  // Captured operands that now lie in another slot than at capture, or in none.
  std::vector<std::string> rehomed;
  std::string json;                   // the whole, as one object
};

class Engine {
 public:
  // Loads, captures every graph, and is ready. Errors name what is wrong with which file or option.
  static Result<std::unique_ptr<Engine>> open(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- generation. Errors of submit: kInvalidArgument naming the field, its value and the range
  // (a token id outside the vocabulary, a prompt longer than the context, ...); kPoisoned.
  Result<RequestId> submit(Request request);
  // One step: commits a ready reload first, then runs at most one graph. Errors: kPoisoned (no
  // token is emitted); kDevice: a failed launch changes no request, so the step can be tried
  // again, and a request whose logits are not finite ends with kAbort (in the next step's events).
  Result<std::vector<Event>> step();
  bool idle() const;  // no request is waiting or running
  // Ends a request with its tokens so far (an event with kAbort comes from the next step).
  Status cancel(RequestId request);

  // --- reload. One at a time: begin errors with kFailedPrecondition while one is open.
  // Opens and validates `directory`, plans, and stages, all on a thread of its own: what is wrong
  // with the directory shows as phase kFailed and as the error of finish_reload, and the weights
  // that serve are untouched. Errors here: kInvalidArgument for an option that is unknown, out of
  // range or without effect.
  Status begin_reload(const std::string& directory, const ReloadOptions& options = {});
  ReloadPhase reload_phase() const;  // any thread
  // Commits a ready reload now: the caller is between steps by nature of the call. Errors:
  // kFailedPrecondition when none is ready; why the commit failed (the weights are as before, or
  // the engine is poisoned).
  Status commit_reload();
  // Blocks until the open reload is committed and verified (running no steps), or failed. Commits
  // a ready one, whatever commit_when_ready says. Errors: why the reload failed (last_reload has
  // the report all the same); kFailedPrecondition when none has begun.
  Result<ReloadReport> finish_reload();
  // Drops a reload that is not committed. Errors: kFailedPrecondition.
  Status abort_reload();
  std::optional<ReloadReport> last_reload() const;
  // What begin_reload would do with the weights that are live now. Touches nothing. Errors: what is
  // wrong with the directory or the options, as begin_reload and finish_reload would say it.
  Result<PlanReport> plan_reload(const std::string& directory,
                                 const ReloadOptions& options = {}) const;
  // Reads every versioned byte. Weights that are not as committed are a value: its defects.
  // Errors: kPoisoned.
  Result<VerifyReport> verify() const;
  // The label of the last commit; empty when it had none.
  std::string version() const;

  // --- what it is
  std::uint64_t epoch() const;
  bool poisoned() const;
  std::string model_type() const;
  std::string device_name() const;
  std::string experts_backend() const;  // "holdfast: ..." with the reason
  std::int64_t vocab_size() const;
  std::int64_t max_context() const;
  std::vector<std::int32_t> eos_token_ids() const;
  const Tokenizer& tokenizer() const;
  std::vector<std::string> experts_constant_slots() const;
  Result<CensusReport> census() const;
  // Peak device bytes since open or the last call of reset_peak().
  std::uint64_t peak_bytes() const;
  std::uint64_t live_bytes() const;
  void reset_peak();
  // Allocates `blocks` blocks of `bytes` from the same allocator as the slots, dirties and frees
  // them: freed memory that something still reads will have changed. For the drill.
  Status allocation_pressure(std::int64_t blocks, std::int64_t bytes);

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast
