#include "drill/live_reload.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace holdfast::drill {
namespace {

constexpr std::chrono::milliseconds kPollInterval{1};

// Goes on generating until the reload is staged. The requests stop short of their last tokens and
// wait there, so that each still has some to generate under the new weights.
Status generate_until_ready(Engine& engine, GreedyRun& run, std::int64_t max_tokens) {
  for (;;) {
    const ReloadPhase phase = engine.reload_phase();
    if (phase == ReloadPhase::kReady) return {};
    if (phase != ReloadPhase::kStaging) break;
    if (!run.done() && run.most_tokens() < max_tokens - kMinTokensOfEachEpoch) {
      run.step();
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  Result<ReloadReport> report = engine.finish_reload();
  if (!report.ok()) return report.error();
  return Error(ErrorCode::kFailedPrecondition,
               fmt::format("the reload ended ({}) before it was asked to commit{}{}",
                           report->state, report->error.empty() ? "" : ": ", report->error));
}

std::vector<Tokens> first_tokens(const std::vector<Tokens>& run,
                                 const std::vector<std::size_t>& counts) {
  std::vector<Tokens> result;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::size_t count = std::min(counts[i], run[i].size());
    result.emplace_back(run[i].begin(), run[i].begin() + static_cast<std::ptrdiff_t>(count));
  }
  return result;
}

struct EpochChange {
  std::uint64_t before = 0;
  std::uint64_t after = 0;
};

std::string check_epochs(const std::vector<Tokens>& run, const std::vector<std::size_t>& counts,
                         const EpochChange& epochs) {
  if (epochs.after <= epochs.before) {
    return fmt::format("epoch {} after the commit, {} before it", epochs.after, epochs.before);
  }
  for (std::size_t i = 0; i < run.size(); ++i) {
    if (counts[i] == 0 || counts[i] >= run[i].size()) {
      return fmt::format("prompt {}: {} tokens before the commit and {} after it; expected both", i,
                         counts[i], run[i].size() - counts[i]);
    }
    for (std::size_t j = 0; j < run[i].size(); ++j) {
      const std::uint64_t expected = j < counts[i] ? epochs.before : epochs.after;
      if (run[i][j].epoch == expected) continue;
      return fmt::format("prompt {}, token {}: epoch {}, expected {} (commit after token {})", i, j,
                         run[i][j].epoch, expected, counts[i]);
    }
  }
  return {};
}

// Every token that there is must be of the old weights, and the same as without the reload.
void check_undisturbed(const GreedyRun& run, const std::vector<Tokens>& undisturbed,
                       std::uint64_t old_epoch, LiveReload& live) {
  live.tokens_after = 0;
  live.tokens_before = 0;
  std::vector<std::size_t> counts;
  for (const Tokens& tokens : run.tokens()) {
    live.tokens_before += tokens.size();
    counts.push_back(tokens.size());
  }
  live.epoch_error = epoch_difference(run.tokens(), old_epoch);
  const std::vector<Tokens> expected = first_tokens(undisturbed, counts);
  live.prefix_error = token_difference(expected, run.tokens());
  if (live.prefix_error.empty()) {
    live.prefix_error = logprob_difference(expected, run.tokens());
  }
}

void check_committed(const GreedyRun& run, const std::vector<Tokens>& undisturbed,
                     const std::vector<std::size_t>& counts, const EpochChange& epochs,
                     LiveReload& live) {
  for (std::size_t i = 0; i < counts.size(); ++i) {
    live.tokens_before += counts[i];
    live.tokens_after += run.tokens()[i].size() - counts[i];
  }
  live.epoch_error = check_epochs(run.tokens(), counts, epochs);
  const std::vector<Tokens> before = first_tokens(run.tokens(), counts);
  const std::vector<Tokens> expected = first_tokens(undisturbed, counts);
  live.prefix_error = token_difference(expected, before);
  if (live.prefix_error.empty()) live.prefix_error = logprob_difference(expected, before);
}

}  // namespace

Result<LiveReload> reload_under_way(Engine& engine, const Prompts& prompts,
                                    const std::vector<Tokens>& undisturbed,
                                    const LiveReloadOptions& options) {
  const std::uint64_t old_epoch = engine.epoch();
  HF_ASSIGN(GreedyRun run, GreedyRun::start(engine, prompts, options.max_tokens));
  while (!run.done() && run.fewest_tokens() < kMinTokensOfEachEpoch) run.step();
  Status status = engine.begin_reload(options.to, {.commit = options.commit,
                                                   .commit_when_ready = false,
                                                   .inject = options.inject});
  if (status.ok()) status = generate_until_ready(engine, run, options.max_tokens);
  std::vector<std::size_t> counts;
  for (const Tokens& tokens : run.tokens()) counts.push_back(tokens.size());
  if (status.ok()) status = engine.commit_reload();
  while (!run.done()) run.step();

  LiveReload live;
  if (status.ok()) {
    const Result<ReloadReport> report = engine.finish_reload();
    if (!report.ok()) {
      status = report.error();
    } else if (report->state != "committed") {
      status = Error(ErrorCode::kFailedPrecondition,
                     fmt::format("{}: {}", report->state, report->error));
    }
  }
  if (const auto last = engine.last_reload()) live.report = *last;
  live.replay_error = run.replay_error();
  if (status.ok()) {
    check_committed(run, undisturbed, counts, {old_epoch, engine.epoch()}, live);
  } else {
    live.refusal = status.error().to_string();
    // Steps of a poisoned engine fail, and that is as it should be.
    if (engine.poisoned()) live.replay_error.clear();
    check_undisturbed(run, undisturbed, old_epoch, live);
  }
  return live;
}

}  // namespace holdfast::drill
