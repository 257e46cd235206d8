// Session: an engine opened from the flags, with progress on a terminal, and the running of many
// requests over it. One thread (the engine's).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/output.h"
#include "cli/request_line.h"
#include "holdfast/engine.h"
#include "holdfast/result.h"

namespace holdfast::cli {

// Opens the model of the flags; with `simulate_faults` on a device that a fault can be injected
// into. Errors: those of Engine::open.
Result<std::unique_ptr<Engine>> open_engine(const ModelFlags& flags, bool quiet,
                                            bool simulate_faults = false);

// "loading 42 %": for an engine's progress callback.
std::function<void(const Progress&)> show_progress(std::shared_ptr<ProgressLine> line);

// What became of one request.
struct Outcome {
  std::vector<Token> tokens;
  std::string text;  // where the request wants it
  std::vector<float> prompt_logprobs;
  std::optional<FinishReason> finish_reason;
  std::uint64_t epoch = 0;  // of the last token; without tokens the engine's when it finished
  std::optional<Error> error;
};

// At most this many requests are with the engine at once; the others wait here.
inline constexpr std::size_t kMaxOutstanding = 256;

// Submits all lines, lets the engine batch them, and calls `done` for each in input order as soon
// as it and all before it have finished. Errors: those of step and of `done`, kCancelled.
Status run_requests(Engine& engine, std::span<const RequestLine> lines, ProgressLine& progress,
                    const std::function<Status(std::size_t index, Outcome& outcome)>& done);

// kCancelled once the user has interrupted. For loops of steps.
Status check_interrupt();

// resolve_prompt with the engine's tokenizer and limits, for every line.
Status resolve_prompts(std::vector<RequestLine>& lines, const Engine& engine, bool plain_text);

}  // namespace holdfast::cli
