// Greedy runs of the drill: prompts to tokens through the public API. The engine thread.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "drill/tokens.h"
#include "holdfast/engine.h"
#include "holdfast/result.h"

namespace holdfast::drill {

using Prompts = std::vector<std::vector<std::int32_t>>;

// The requests of one run, while it runs: all are submitted, then step() until done.
class GreedyRun {
 public:
  // Greedy, `max_tokens` each whatever the tokens are. Errors: those of submit.
  static Result<GreedyRun> start(Engine& engine, const Prompts& prompts, std::int64_t max_tokens);

  // One step. An error of the engine is kept in replay_error() (the first) and is no reason to
  // stop: other requests may go on. done() once nothing can go on.
  void step();
  bool done() const { return open_.empty(); }

  // By prompt.
  const std::vector<Tokens>& tokens() const { return tokens_; }
  // Over the requests that have not ended; 0 when all have.
  std::int64_t fewest_tokens() const;
  std::int64_t most_tokens() const;
  const std::string& replay_error() const { return replay_error_; }

 private:
  explicit GreedyRun(Engine& engine) : engine_(&engine) {}
  Engine* engine_;
  std::vector<Tokens> tokens_;
  std::unordered_map<std::uint64_t, std::size_t> open_;  // request to prompt
  std::string replay_error_;
  int errors_in_a_row_ = 0;
};

// A whole run.
struct Run {
  std::vector<Tokens> tokens;  // by prompt
  std::string replay_error;
};
Result<Run> run_greedy(Engine& engine, const Prompts& prompts, std::int64_t max_tokens);

}  // namespace holdfast::drill
