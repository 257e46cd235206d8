#include "drill/greedy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace holdfast::drill {
namespace {

// A step that fails ends at least one request, as a rule; this many failures in a row mean that it
// does not.
constexpr int kMaxErrorsInARow = 64;

template <typename Differs>
std::string first_difference(const std::vector<Tokens>& earlier, const std::vector<Tokens>& later,
                             const Differs& describe) {
  if (earlier.size() != later.size()) {
    return fmt::format("{} prompts, {} before", later.size(), earlier.size());
  }
  for (std::size_t prompt = 0; prompt < earlier.size(); ++prompt) {
    const Tokens& a = earlier[prompt];
    const Tokens& b = later[prompt];
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      const std::string difference = describe(a[i], b[i]);
      if (difference.empty()) continue;
      return fmt::format("prompt {}, token {}: {}", prompt, i, difference);
    }
    if (a.size() != b.size()) {
      return fmt::format("prompt {}: {} tokens, {} before", prompt, b.size(), a.size());
    }
  }
  return {};
}

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

std::string token_difference(const std::vector<Tokens>& earlier,
                             const std::vector<Tokens>& later) {
  return first_difference(earlier, later, [](const Token& a, const Token& b) {
    return a.id == b.id ? std::string{} : fmt::format("{}, {} before", b.id, a.id);
  });
}

std::string logprob_difference(const std::vector<Tokens>& earlier,
                               const std::vector<Tokens>& later) {
  return first_difference(earlier, later, [](const Token& a, const Token& b) {
    // Bits, so that NaN equals itself and -0 does not equal 0.
    const bool same = std::bit_cast<std::uint32_t>(a.logprob) ==
                      std::bit_cast<std::uint32_t>(b.logprob);
    return same ? std::string{} : fmt::format("log probability {}, {} before", b.logprob,
                                              a.logprob);
  });
}

std::string epoch_difference(const std::vector<Tokens>& run, std::uint64_t epoch) {
  for (std::size_t prompt = 0; prompt < run.size(); ++prompt) {
    for (std::size_t i = 0; i < run[prompt].size(); ++i) {
      if (run[prompt][i].epoch == epoch) continue;
      return fmt::format("prompt {}, token {}: epoch {}, the engine is at {}", prompt, i,
                         run[prompt][i].epoch, epoch);
    }
  }
  return {};
}

}  // namespace holdfast::drill
