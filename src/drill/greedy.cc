#include "drill/greedy.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace holdfast::drill {
namespace {

// A step that fails ends at least one request, as a rule; this many failures in a row mean that it
// does not.
constexpr int kMaxErrorsInARow = 64;

}  // namespace

Result<GreedyRun> GreedyRun::start(Engine& engine, const Prompts& prompts,
                                   std::int64_t max_tokens) {
  GreedyRun run(engine);
  run.tokens_.resize(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt_ids = prompts[i];
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    Result<RequestId> id = engine.submit(std::move(request));
    if (!id.ok()) return id.error().with_context(fmt::format("drill: prompt {}", i));
    run.open_.emplace(id->value, i);
  }
  return run;
}

void GreedyRun::step() {
  Result<std::vector<Event>> events = engine_->step();
  if (!events.ok()) {
    if (replay_error_.empty()) replay_error_ = events.error().to_string();
    if (engine_->poisoned() || ++errors_in_a_row_ > kMaxErrorsInARow) open_.clear();
    return;
  }
  errors_in_a_row_ = 0;
  for (const Event& event : *events) {
    const auto found = open_.find(event.request.value);
    if (found == open_.end()) continue;
    if (event.token) tokens_[found->second].push_back(*event.token);
    if (event.finish_reason) open_.erase(found);
  }
  if (events->empty() && engine_->idle() && !open_.empty()) {
    if (replay_error_.empty()) replay_error_ = "the engine went idle before a request had ended";
    open_.clear();
  }
}

std::int64_t GreedyRun::fewest_tokens() const {
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (const auto& [id, prompt] : open_) {
    fewest = std::min(fewest, static_cast<std::int64_t>(tokens_[prompt].size()));
  }
  return open_.empty() ? 0 : fewest;
}

std::int64_t GreedyRun::most_tokens() const {
  std::int64_t most = 0;
  for (const auto& [id, prompt] : open_) {
    most = std::max(most, static_cast<std::int64_t>(tokens_[prompt].size()));
  }
  return most;
}

Result<Run> run_greedy(Engine& engine, const Prompts& prompts, std::int64_t max_tokens) {
  HF_ASSIGN(GreedyRun run, GreedyRun::start(engine, prompts, max_tokens));
  while (!run.done()) run.step();
  return Run{run.tokens(), run.replay_error()};
}

}  // namespace holdfast::drill
