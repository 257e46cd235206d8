#include <numeric>
#include <span>

#include "cli/command_line.h"
#include "cli/jsonl.h"
#include "cli/output.h"
#include "cli/request_line.h"
#include "cli/session.h"
#include "holdfast/engine.h"
#include "holdfast/tensor_file.h"

namespace holdfast::cli {
namespace {

std::string outcome_json(std::size_t index, const RequestLine& line, const Outcome& outcome) {
  JsonObject object;
  object.add("index", std::uint64_t{index});
  if (line.id) object.add_raw("id", *line.id);
  if (outcome.error) {
    object.add("error", outcome.error->message());
    return object.take() + "\n";
  }
  const std::vector<float>& logprobs = outcome.prompt_logprobs;
  object.add("ids", std::span<const std::int32_t>(line.request.prompt_ids));
  object.add("logprobs", std::span<const float>(logprobs));
  object.add("sum", std::accumulate(logprobs.begin(), logprobs.end(), 0.0));
  object.add("epoch", outcome.epoch);
  return object.take() + "\n";
}

// The file of --logits: tensor logits.N for line N. An error of a write inside the engine's
// callback is kept here until the step is over.
class LogitsFile {
 public:
  static Result<std::unique_ptr<LogitsFile>> open(const std::string& path,
                                                  std::vector<RequestLine>& lines,
                                                  std::int64_t vocab_size) {
    std::vector<TensorFileEntry> entries;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const auto positions = static_cast<std::int64_t>(lines[i].request.prompt_ids.size());
      entries.push_back({fmt::format("logits.{}", i), {positions, vocab_size}});
    }
    std::unique_ptr<LogitsFile> file(new LogitsFile);
    HF_ASSIGN(file->writer_, TensorFileWriter::create(path, entries));
    for (std::size_t i = 0; i < lines.size(); ++i) {
      lines[i].request.prompt_logits = [file = file.get(), i](std::int64_t position,
                                                              std::span<const float> logits) {
        file->store(i, position, logits);
      };
    }
    return file;
  }
  const Status& status() const { return status_; }
  Status finish() { return writer_->finish(); }

 private:
  void store(std::size_t index, std::int64_t position, std::span<const float> logits) {
    if (!status_.ok()) return;
    status_ = writer_->write(index, static_cast<std::uint64_t>(position) * logits.size(), logits);
  }
  std::unique_ptr<TensorFileWriter> writer_;
  Status status_;
};

Result<int> score(const CommandLine& flags) {
  HF_ASSIGN(const std::vector<LineObject> objects, read_json_lines(flags.input));
  std::vector<RequestLine> lines;
  lines.reserve(objects.size());
  for (const LineObject& object : objects) {
    HF_ASSIGN(RequestLine line, read_score_line(object, flags.request));
    lines.push_back(std::move(line));
  }
  HF_ASSIGN(const std::unique_ptr<Engine> engine, open_engine(flags.model, flags.quiet));
  HF_TRY(resolve_prompts(lines, *engine, flags.request.plain_text));
  HF_ASSIGN(const std::unique_ptr<Output> output, Output::open(flags.output));
  std::unique_ptr<LogitsFile> logits;
  if (!flags.logits.empty()) {
    HF_ASSIGN(logits, LogitsFile::open(flags.logits, lines, engine->vocab_size()));
  }
  ProgressLine progress(flags.quiet);
  std::size_t failed_count = 0;
  const auto done = [&](std::size_t index, Outcome& outcome) -> Status {
    if (logits) HF_TRY(logits->status());
    if (outcome.error) ++failed_count;
    HF_TRY(output->write(outcome_json(index, lines[index], outcome)));
    return flags.output.empty() ? output->flush() : Status{};
  };
  HF_TRY(run_requests(*engine, lines, progress, done));
  if (logits && failed_count == 0) HF_TRY(logits->finish());
  HF_TRY(output->finish());
  if (failed_count == 0) return kExitDone;
  say(fmt::format("{} of {} lines failed; their results hold `error`{}", failed_count,
                  lines.size(), logits ? ", and no logits were written" : ""));
  return kExitFailed;
}

}  // namespace

int run_score(const CommandLine& line) {
  const Result<int> code = score(line);
  return code.ok() ? *code : report_failure(code.error());
}

}  // namespace holdfast::cli
