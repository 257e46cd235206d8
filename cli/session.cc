#include "cli/session.h"

#include <chrono>
#include <unordered_map>
#include <utility>

#include "cli/interrupt.h"
#include "holdfast/tokenizer.h"

namespace holdfast::cli {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

double seconds_since(SteadyTime start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The requests that are with the engine, and the outcomes that wait for their turn.
class Batch {
 public:
  Batch(Engine& engine, std::span<const RequestLine> lines)
      : engine_(engine), lines_(lines), outcomes_(lines.size()), finished_(lines.size()) {}

  bool all_done() const { return emitted_ == lines_.size(); }
  std::size_t emitted() const { return emitted_; }
  std::uint64_t token_count() const { return token_count_; }

  void submit_more() {
    while (next_ < lines_.size() && outstanding_.size() < kMaxOutstanding) {
      const std::size_t index = next_++;
      Result<RequestId> id = engine_.submit(lines_[index].request);
      if (id.ok()) {
        outstanding_.emplace(id->value, index);
      } else {
        outcomes_[index].error = id.error().with_context(lines_[index].place);
        finished_[index] = true;
      }
    }
  }

  Status step() {
    if (outstanding_.empty()) return {};
    if (engine_.idle()) {
      return format_error(ErrorCode::kFailedPrecondition,
                          "the engine is idle while {} requests have not ended",
                          outstanding_.size());
    }
    Result<std::vector<Event>> events = engine_.step();
    if (!events.ok()) return weigh(events.error());
    errors_in_a_row_ = 0;
    for (Event& event : *events) take(event);
    return {};
  }

  Status emit(const std::function<Status(std::size_t, Outcome&)>& done) {
    for (; emitted_ < lines_.size() && finished_[emitted_]; ++emitted_) {
      HF_TRY(done(emitted_, outcomes_[emitted_]));
      outcomes_[emitted_] = Outcome{};  // its memory is not needed any longer
    }
    return {};
  }

 private:
  // A step that failed for one request has ended that request, and the others go on; its last event
  // is still to come. Steps that go on failing have failed for all.
  Status weigh(const Error& error) {
    const bool ends_some =
        error.code() == ErrorCode::kDevice || error.code() == ErrorCode::kCorrupt;
    if (engine_.poisoned() || !ends_some) return error;
    if (++errors_in_a_row_ > kMaxOutstanding) return error;
    step_error_ = error;
    return {};
  }

  void take(Event& event) {
    const auto found = outstanding_.find(event.request.value);
    if (found == outstanding_.end()) return;
    Outcome& outcome = outcomes_[found->second];
    if (!event.prompt_logprobs.empty()) outcome.prompt_logprobs = std::move(event.prompt_logprobs);
    outcome.text += event.text;
    if (event.token) {
      outcome.tokens.push_back(*event.token);
      ++token_count_;
    }
    if (!event.finish_reason) return;
    outcome.finish_reason = event.finish_reason;
    if (event.finish_reason == FinishReason::kAbort && step_error_) {
      outcome.error = step_error_->with_context(lines_[found->second].place);
    }
    outcome.epoch = outcome.tokens.empty() ? engine_.epoch() : outcome.tokens.back().epoch;
    finished_[found->second] = true;
    outstanding_.erase(found);
  }

  Engine& engine_;
  std::span<const RequestLine> lines_;
  std::vector<Outcome> outcomes_;
  std::vector<bool> finished_;
  std::unordered_map<std::uint64_t, std::size_t> outstanding_;
  std::size_t next_ = 0, emitted_ = 0;
  std::uint64_t token_count_ = 0;
  std::optional<Error> step_error_;
  std::size_t errors_in_a_row_ = 0;
};

}  // namespace

std::function<void(const Progress&)> show_progress(std::shared_ptr<ProgressLine> line) {
  return [line = std::move(line)](const Progress& progress) {
    line->show(fmt::format("{} {:3.0f} %", progress.phase, progress.fraction * 100));
  };
}

Result<std::unique_ptr<Engine>> open_engine(const ModelFlags& flags, bool quiet,
                                            bool simulate_faults) {
  EngineOptions options;
  options.model_directory = flags.directory;
  options.threads = flags.threads;
  options.max_context = flags.max_context;
  options.max_sequences = flags.max_sequences;
  options.device = flags.device;
  options.kernels = flags.kernels;
  options.experts = flags.experts;
  options.expert_activations = flags.expert_activations;
  options.quantize_experts = flags.quantize_experts;
  options.quantize_group_size = flags.quantize_group;
  options.commit = flags.commit;
  options.simulate_faults = simulate_faults;
  auto line = std::make_shared<ProgressLine>(quiet);
  options.progress = show_progress(line);
  Result<std::unique_ptr<Engine>> engine = Engine::open(options);
  line->clear();
  catch_interrupts();  // not before: nothing asks while the engine opens
  return engine;
}

Status run_requests(Engine& engine, std::span<const RequestLine> lines, ProgressLine& progress,
                    const std::function<Status(std::size_t, Outcome&)>& done) {
  Batch batch(engine, lines);
  const SteadyTime start = std::chrono::steady_clock::now();
  while (!batch.all_done()) {
    HF_TRY(check_interrupt());
    batch.submit_more();
    HF_TRY(batch.step());
    HF_TRY(batch.emit(done));
    progress.show(fmt::format("{} of {} requests, {:.0f} tokens/s", batch.emitted(), lines.size(),
                              static_cast<double>(batch.token_count()) / seconds_since(start)));
  }
  progress.clear();
  return {};
}

Status check_interrupt() {
  if (!interrupted()) return {};
  return Error(ErrorCode::kCancelled, "interrupted");
}

Status resolve_prompts(std::vector<RequestLine>& lines, const Engine& engine, bool plain_text) {
  const PromptLimits limits{engine.vocab_size(), engine.max_context(), plain_text};
  for (RequestLine& line : lines) HF_TRY(resolve_prompt(line, engine.tokenizer(), limits));
  return {};
}

}  // namespace holdfast::cli
