// The live reload of the drill: weights are replaced while requests are half-way, between two steps
// that the drill chooses, and every token must say which weights made it. The engine thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "drill/greedy.h"
#include "holdfast/engine.h"
#include "holdfast/result.h"

namespace holdfast::drill {

// Each request has at least this many tokens of the old weights, and of the new ones.
inline constexpr std::int64_t kMinTokensOfEachEpoch = 4;

struct LiveReload {
  // Why the reload was not committed, or did not stay so; empty when it did. All tokens are then
  // to be of the old weights, and tokens_after is 0.
  std::string refusal;
  std::uint64_t tokens_before = 0, tokens_after = 0;  // of all requests
  std::string replay_error;
  // Empty: every token before the commit carries the old epoch, every one after it the new one, and
  // each request has tokens of both.
  std::string epoch_error;
  // Empty: the tokens before the commit are those of the run that no reload disturbed.
  std::string prefix_error;
  ReloadReport report;
};

struct LiveReloadOptions {
  std::string to;
  std::string commit;
  std::string inject;
  std::int64_t max_tokens = 0;
};

// `undisturbed`: the tokens of the same prompts under the old weights. Errors: what keeps the
// requests from being submitted.
Result<LiveReload> reload_under_way(Engine& engine, const Prompts& prompts,
                                    const std::vector<Tokens>& undisturbed,
                                    const LiveReloadOptions& options);

}  // namespace holdfast::drill
