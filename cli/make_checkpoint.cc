#include "cli/make_checkpoint.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>

#include "cli/command_line.h"
#include "cli/interrupt.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

constexpr std::string_view kFooter = R"(Examples:
  holdfast make-checkpoint --like gpt-oss-20b --seed 1 A
  holdfast make-checkpoint --like gpt-oss-20b --seed 1 A --next B
  holdfast make-checkpoint --like gpt-oss-120b --scale tiny A
  holdfast drill --from A --to B

Writes the published config.json and generation_config.json, and random weights in the published
names, shapes, dtypes (MXFP4 experts, bf16 for the rest) and shards: 13.8 GB like gpt-oss-20b, 65.2
GB like gpt-oss-120b, 3.2 MB like tiny. The weights are scaled so that a model of them computes sane
numbers and its router spreads over the experts; what it says means nothing.
--scale tiny keeps the architecture and shrinks the numbers (256 wide, 1024 tokens): gpt-oss-20b to
4 layers of 8 experts, gpt-oss-120b to 6 layers of 32. --like tiny is short for --like gpt-oss-20b
--scale tiny, and has the config of models/gptoss-tiny-A.
--next writes a second checkpoint that differs from the first as a training step's would: a quarter
of the bf16 values by one step of the last place, some MXFP4 codes and scales by one neighbour, and
something in every tensor.

The same model, scale and seed give the same bytes, whatever the threads, shards or machine. At most
64 MiB of them are in memory at once. Free disk space is checked first, and a directory that is not
empty is refused. After an error or Ctrl-C both directories are as before; what a killed process
leaves has no config.json, so no engine opens it, and is to be removed by hand.
There is no tokenizer: such a model takes and gives token ids (prompt_ids in generate --input).
A tokenizer.json with no more tokens than the model may be copied into the directory.)";

// CLI11 alone takes -1 for the largest number.
std::string check_digits(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole ? std::string() : text + " is not an integer from 0 to 18446744073709551615";
}

}  // namespace

void add_make_checkpoint(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand(
      "make-checkpoint", "write a random checkpoint of a published model's shape");
  RandomCheckpointOptions& options = line.make_checkpoint.options;
  app.add_option("directory", options.directory, "the directory to create")
      ->required()->type_name("DIR");
  app.add_option("--like", options.like, "the model whose shape it has")
      ->required()->check(CLI::IsMember(random_checkpoint_models()))->type_name("NAME");
  app.add_option("--scale", options.scale, "full, or tiny: see below")
      ->check(CLI::IsMember({"full", "tiny"}))->type_name("NAME");
  app.add_option("--seed", options.seed, "all values depend on it")
      ->check(check_digits)->type_name("UINT");
  app.add_option("--next", options.next, "a second directory: the weights after a training step")
      ->check([](const std::string& text) { return std::string(text.empty() ? "is empty" : ""); })
      ->type_name("DIR");
  app.add_option("--threads", options.threads, "CPU threads; 0 is all cores")
      ->check(CLI::Range(0, 1024))->type_name("INT");
  app.add_flag("-q,--quiet", line.quiet, "no progress and no summary on stderr");
  app.footer(std::string(kFooter));
  app.parse_complete_callback([&app, &options] {
    if (app.count("--scale") == 0 || options.like != "tiny" || options.scale != "full") return;
    throw CLI::ValidationError("--scale", "full is not to be had of --like tiny");
  });
}

int run_make_checkpoint(const CommandLine& line) {
  RandomCheckpointOptions options = line.make_checkpoint.options;
  ProgressLine progress(line.quiet);
  options.progress = [&progress](double fraction) {
    progress.show(fmt::format("writing {:3.0f} %", fraction * 100));
  };
  options.cancelled = [] { return interrupted(); };
  catch_interrupts();
  const auto start = std::chrono::steady_clock::now();
  const Result<RandomCheckpointReport> report = make_random_checkpoint(options);
  progress.clear();
  if (!report.ok()) return report_failure(report.error());
  if (line.quiet) return kExitDone;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double all = static_cast<double>(report->bytes) * (options.next.empty() ? 1 : 2);
  say(fmt::format("{}{}{}: {} tensors, {} in {} shard{}{}; {:.1f} s, {:.2f} GB/s",
                  options.directory, options.next.empty() ? "" : " and ", options.next,
                  report->tensors, readable_bytes(report->bytes), report->shards,
                  report->shards == 1 ? "" : "s", options.next.empty() ? "" : " each",
                  elapsed.count(), all / elapsed.count() / 1e9));
  return kExitDone;
}

}  // namespace holdfast::cli
