// Engine: one model on one device, generating while its weights are replaced. Owns everything:
// slots, graphs, KV cache, requests. One thread calls it (the engine thread), except where said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holdfast/graph_census.h"
#include "holdfast/reload.h"
#include "holdfast/request.h"
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
  std::string device = "cpu";        // "cpu", "cuda" or "cuda:N"
  int threads = 0;                   // 0: all cores
  std::int64_t max_context = 0;      // positions per sequence; 0: the model's, at most 4096
  std::int64_t max_sequences = 8;    // requests that decode together; the largest decode graph
  std::int64_t prefill_chunk = 64;   // prompt tokens in one step, the largest graph
  std::int64_t kv_tokens = 0;        // KV capacity; 0: max_sequences * max_context, at most 65536
  std::string kernels = "fast";      // "fast" or "reference" (plain scalar loops)
  std::string experts = "auto";      // "auto", or a backend: `holdfast inspect --matrix`
  // What the experts do to their inputs: "published" (as the checkpoint says), "none", or rounding
  // to a format that needs no scale of the checkpoint's: "mxfp8", "fp8-token", "fp8-token-group".
  std::string expert_activations = "published";
  // Quantises bf16, f16 or f32 experts as they arrive, at the first load and at every reload and
  // push, into what quantize_checkpoint writes: one of quantize_schemes(), or "" for experts as the
  // checkpoint has them. Parameters stay what the source publishes. The host makes them, also for a
  // GPU.
  std::string quantize_experts = "";
  std::int64_t quantize_group_size = 128;  // int4: inputs to a scale
  std::string commit = "remap";      // the first load's strategy too: "remap", "copy" or "stream"
  bool simulate_faults = false;      // a device that ReloadOptions::inject can make fail
  std::int64_t max_waiting = 4096;   // requests that wait; submit refuses more
  bool prefix_cache = true;          // keep the KV pages of finished requests for equal prefixes
  // Called on any thread whenever reload_phase() has changed; may only wake whoever steps.
  std::function<void()> on_reload_change;
  std::function<void(const Progress&)> progress;
};

// One slot in a census.
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

// Counts since open, and what is there now.
struct EngineStats {
  std::int64_t running = 0, waiting = 0;
  std::int64_t kv_pages = 0, kv_pages_used = 0;  // used: by requests that run
  std::int64_t kv_pages_cached = 0;              // kept for equal prefixes, given up when needed
  std::uint64_t steps = 0, prompt_tokens = 0, generated_tokens = 0, preemptions = 0;
  std::uint64_t prefix_queries = 0, prefix_hits = 0;  // in prompt tokens
  // Reloads that ended "committed" and "rolled_back", as ReloadReport::state says: what was refused
  // before any commit, given up, or undone after one is a roll-back.
  std::uint64_t commits = 0, roll_backs = 0;
  std::uint64_t last_step_rows = 0;
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
  // again; kCorrupt: requests whose logits are not finite end with kAbort (in the next step's
  // events), the others went on.
  Result<std::vector<Event>> step();
  // What a step does around its graph, without one: commits a ready reload, and gives the events
  // that are there. For a caller that has paused. Errors: kPoisoned.
  Result<std::vector<Event>> between_steps();
  bool idle() const;  // no request is waiting or running
  // Ends a request with its tokens so far (an event with kAbort comes from the next step).
  Status cancel(RequestId request);
  // As cancel, for all that run and, when `waiting` says so, all that wait. Gives their number.
  std::size_t cancel_all(bool waiting);
  // While held, no waiting request starts; those that run go on. Idempotent.
  void hold_admission(bool held);
  // Forgets cached prefixes. A policy, not a need: an entry of other weights is never found.
  void reset_prefix_cache();
  // Requests that run lose their keys and values and compute them anew: the same tokens, later.
  void recompute_running();
  EngineStats stats() const;

  // --- reload. One at a time: begin errors with kFailedPrecondition while one is open, unless
  // asked to replace it (ReloadOptions::replace_open): what comes late for it is refused by its id.
  // Opens and validates `directory`, plans, and stages, all on a thread of its own: what is wrong
  // with the directory shows as phase kFailed and as the error of finish_reload, and the weights
  // that serve are untouched. Errors here: kInvalidArgument for an option that is unknown, out of
  // range or without effect.
  Status begin_reload(const std::string& directory, const ReloadOptions& options = {});
  // The same from tensors in this process, under a checkpoint's names, with the live config. Their
  // bytes stay where and what they are until the phase is kDone or kFailed. A GPU fetches
  // page-locked ones itself. Of those that the scope does not take nothing is read. Errors: also
  // kInvalidArgument for bytes that are not the tensor's, naming it and both sizes, and for
  // apply_constants, since no config comes.
  Status begin_reload(std::vector<MemoryTensor> tensors, const ReloadOptions& options = {});
  // Keeps `memory` where it is while the result lives, so that reloads from it come at the link's
  // rate. Takes about as long as writing it once: do it once for a buffer. The result does not
  // outlive the engine, nor the memory. Errors: kUnsupported on a device that fetches nothing (the
  // CPU); kDevice.
  Result<std::shared_ptr<const void>> page_lock(std::span<std::byte> memory);
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
  // Opens a reload whose bytes the caller pushes, and gives its id. `tensors` is all that will
  // come; empty: every tensor that the scope loads (loadable_tensors()). Errors: as begin_reload;
  // what is wrong with the announced tensors, as the plan says it (then no reload is open);
  // kInvalidArgument for commit "stream", which cannot read a push. Whoever pushes may vanish: the
  // reload stays open until end_push, its deadline, or abort_reload.
  Result<std::uint64_t> begin_push(std::vector<TensorInfo> tensors,
                                   const ReloadOptions& options = {});
  // Whole elements of one tensor, from byte `offset_bytes` of all of it (also when the scope takes
  // only some rows); any order, each byte once. Any thread, several take turns, and not the one
  // that steps: it derives, too. An abort ends it with kCancelled. Errors that change nothing and
  // let the push go on: kFailedPrecondition for another id (naming both), kNotFound (with the
  // nearest names), kMismatch, kCorrupt for bytes that came before. Others end the reload.
  // `dtype` as in safetensors says what the bytes are, which may be another that check_loadable
  // takes than was announced; empty: what was announced, or what loadable_tensors() says.
  Status push(std::uint64_t reload_id, const std::string& tensor, std::uint64_t offset_bytes,
              std::span<const std::byte> bytes, const std::string& dtype = {});
  // Everything has been pushed: checks that nothing is missing and prepares; then the phase is
  // kReady. A `version` takes the place of the one in the options. Blocks; thread as push. Errors:
  // kCorrupt naming what never came (and the reload has failed).
  Status end_push(std::uint64_t reload_id, const std::string& version = {});
  ReloadStatus reload_status() const;  // of the open or the last one; any thread
  // Every tensor that a complete reload brings, in the live checkpoint's names.
  std::vector<TensorInfo> loadable_tensors() const;
  // Whether the model loads these, as far as it knows their names: of their shape and dtype, or of
  // F16 or F32 where it has BF16 that is neither quantised nor an expert's matrix (rounded once as
  // it comes). Errors: kMismatch naming tensor and both. Any thread.
  Status check_loadable(std::span<const TensorInfo> tensors) const;
  // The first `most` values of a loaded tensor, as float32 in row order. Errors: kNotFound with the
  // nearest names; kUnsupported for a tensor that is kept only in packed form, naming its slots;
  // kPoisoned.
  Result<std::vector<float>> read_tensor(const std::string& name, std::size_t most) const;
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
  // Reads every captured graph back. Between steps. Errors: kDevice.
  Result<GraphCensusReport> graph_census() const;
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
