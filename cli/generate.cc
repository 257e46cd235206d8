#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "cli/command_line.h"
#include "cli/jsonl.h"
#include "cli/output.h"
#include "cli/request_line.h"
#include "cli/session.h"
#include "holdfast/engine.h"
#include "holdfast/tokenizer.h"

namespace holdfast::cli {
namespace {

std::string outcome_json(const RequestLine& line, const Outcome& outcome) {
  JsonObject object;
  if (line.id) object.add_raw("id", *line.id);
  if (outcome.error) {
    object.add("error", outcome.error->message());
    return object.take() + "\n";
  }
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
  std::vector<std::uint64_t> epochs;
  for (const Token& token : outcome.tokens) {
    ids.push_back(token.id);
    logprobs.push_back(token.logprob);
    epochs.push_back(token.epoch);
  }
  object.add("ids", std::span<const std::int32_t>(ids));
  if (line.request.want_text) object.add("text", outcome.text);
  object.add("logprobs", std::span<const float>(logprobs));
  if (line.request.prompt_logprobs) {
    object.add("prompt_logprobs", std::span<const float>(outcome.prompt_logprobs));
  }
  const FinishReason reason = outcome.finish_reason.value_or(FinishReason::kAbort);
  object.add("finish_reason", finish_reason_name(reason));
  object.add("epoch", outcome.epoch).add("epochs", std::span<const std::uint64_t>(epochs));
  return object.take() + "\n";
}

Status generate_json(const CommandLine& flags, Engine& engine,
                     const std::vector<RequestLine>& lines, std::size_t& failed_count) {
  HF_ASSIGN(const std::unique_ptr<Output> output, Output::open(flags.output));
  ProgressLine progress(flags.quiet);
  const auto done = [&](std::size_t index, Outcome& outcome) -> Status {
    if (outcome.error) ++failed_count;
    HF_TRY(output->write(outcome_json(lines[index], outcome)));
    // A reader of stdout sees each result as soon as it is there.
    return flags.output.empty() ? output->flush() : Status{};
  };
  HF_TRY(run_requests(engine, lines, progress, done));
  return output->finish();
}

// Prints the continuation of one prompt while it grows.
Status generate_text(const CommandLine& flags, Engine& engine, const RequestLine& line) {
  HF_ASSIGN(const std::unique_ptr<Output> output, Output::open(flags.output));
  const auto start = std::chrono::steady_clock::now();
  HF_ASSIGN(const RequestId id, engine.submit(line.request));
  std::uint64_t token_count = 0;
  std::optional<FinishReason> reason;
  while (!reason) {
    HF_TRY(check_interrupt());
    HF_ASSIGN(const std::vector<Event> events, engine.step());
    for (const Event& event : events) {
      if (event.request != id) continue;
      reason = event.finish_reason;
      if (event.token) ++token_count;
      HF_TRY(output->write(event.text));
    }
    HF_TRY(output->flush());
  }
  HF_TRY(output->write("\n"));
  HF_TRY(output->finish());
  if (!flags.quiet && stderr_is_terminal()) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    say(fmt::format("{} tokens in {:.2f} s ({:.1f}/s, prompt of {} included), {}, epoch {}",
                    token_count, seconds.count(),
                    static_cast<double>(token_count) / seconds.count(),
                    line.request.prompt_ids.size(), finish_reason_name(*reason), engine.epoch()));
  }
  return {};
}

Result<std::vector<RequestLine>> read_lines(const CommandLine& flags) {
  std::vector<RequestLine> lines;
  if (flags.prompt) {
    RequestLine line;
    line.place = "--prompt";
    line.text = *flags.prompt;
    line.request = request_from_flags(flags.request);
    line.request.want_text = true;
    lines.push_back(std::move(line));
    return lines;
  }
  HF_ASSIGN(const std::vector<LineObject> objects, read_json_lines(flags.input));
  lines.reserve(objects.size());
  for (const LineObject& object : objects) {
    HF_ASSIGN(RequestLine line, read_generate_line(object, flags.request));
    line.request.want_text = true;
    lines.push_back(std::move(line));
  }
  return lines;
}

Result<int> generate(const CommandLine& flags) {
  HF_ASSIGN(std::vector<RequestLine> lines, read_lines(flags));
  HF_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(flags.model, flags.quiet));
  HF_TRY(resolve_prompts(lines, *engine, flags.request.plain_text));
  if (engine->tokenizer().vocab_size() == 0) {  // ids alone
    for (RequestLine& line : lines) line.request.want_text = false;
  }
  if (flags.prompt && !flags.json) {
    HF_TRY(generate_text(flags, *engine, lines.front()));
    return kExitDone;
  }
  std::size_t failed_count = 0;
  HF_TRY(generate_json(flags, *engine, lines, failed_count));
  if (failed_count == 0) return kExitDone;
  say(fmt::format("{} of {} requests failed; their results hold `error`", failed_count,
                  lines.size()));
  return kExitFailed;
}

}  // namespace

int run_generate(const CommandLine& line) {
  const Result<int> code = generate(line);
  return code.ok() ? *code : report_failure(code.error());
}

}  // namespace holdfast::cli
