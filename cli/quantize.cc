#include "cli/quantize.h"

#include <CLI/CLI.hpp>
#include <chrono>

#include "cli/command_line.h"
#include "cli/interrupt.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

constexpr std::string_view kFooter = R"(Examples:
  holdfast quantize --to mxfp4 gpt-oss-bf16 gpt-oss-mxfp4
  holdfast quantize --to fp8-block Qwen3-30B-A3B Qwen3-30B-A3B-FP8
  holdfast quantize --to int4 --group 128 Mixtral-8x7B Mixtral-8x7B-W4A16

Reads a checkpoint whose experts are bf16, f16 or f32, and writes one whose experts are quantised,
under the names and with the quantization_config that Hugging Face's loaders expect:
  gpt-oss           mxfp4 as openai/gpt-oss-20b has it
  Qwen3-MoE,        fp8-block: weight_scale_inv; mxfp8: ModelOpt; mxfp4, nvfp4, fp8-channel,
  Mixtral           fp8-tensor, int4: compressed-tensors
All other tensors and files are copied bit for bit, so attention, router and embeddings keep their
dtype; config.json gets the quantization_config. docs/formats.md has the bytes and the rounding.

One expert's matrix at a time is quantised on each thread, and all threads together hold at most 1
GiB (or one thread, if its matrix takes more). The same source and scheme give the same tensors,
whatever the threads, and quantising when weights arrive gives the same as this. A value that is not
finite is an error. Free disk space is checked first, and a directory that is not empty is refused.
After an error or Ctrl-C the new directory is as before; what a killed process leaves has no
config.json, so no engine opens it, and is to be removed by hand.)";

}  // namespace

void add_quantize(CLI::App& root, CommandLine& line) {
  CLI::App& app = *root.add_subcommand("quantize", "write a checkpoint with its experts quantised");
  QuantizeOptions& options = line.quantize.options;
  app.add_option("source", options.source, "the directory of the checkpoint to read")
      ->required()->type_name("DIR");
  app.add_option("directory", options.directory, "the directory to create")
      ->required()->type_name("OUT");
  app.add_option("--to", options.scheme, "what the experts become")
      ->required()->check(CLI::IsMember(quantize_schemes()))->type_name("SCHEME");
  app.add_option("--group", options.group_size, "int4: inputs that share a scale")
      ->check(CLI::Range(1, 1 << 20))->type_name("INT");
  app.add_flag("--zero-points", options.zero_points,
               "int4: a zero point for each group beside its scale");
  app.add_option("--threads", options.threads, "CPU threads; 0 is all cores")
      ->check(CLI::Range(0, 1024))->type_name("INT");
  app.add_flag("-q,--quiet", line.quiet, "no progress and no summary on stderr");
  app.footer(std::string(kFooter));
  app.parse_complete_callback([&app, &options] {
    for (const char* option : {"--group", "--zero-points"}) {
      if (app.count(option) == 0 || options.scheme == "int4") continue;
      throw CLI::ValidationError(option, "is for --to int4, this is --to " + options.scheme);
    }
  });
}

int run_quantize(const CommandLine& line) {
  QuantizeOptions options = line.quantize.options;
  ProgressLine progress(line.quiet);
  options.progress = [&progress](double fraction) {
    progress.show(fmt::format("quantising {:3.0f} %", fraction * 100));
  };
  options.cancelled = [] { return interrupted(); };
  catch_interrupts();
  const auto start = std::chrono::steady_clock::now();
  const Result<QuantizeReport> report = quantize_checkpoint(options);
  progress.clear();
  if (!report.ok()) return report_failure(report.error());
  if (line.quiet) return kExitDone;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  say(fmt::format("{}: experts {}; {} tensors, {} in {} shard{} (before {}); {:.1f} s, {:.2f} GB/s "
                  "of experts read; {} thread{}, buffers of {}",
                  options.directory, report->format, report->tensors,
                  readable_bytes(report->bytes), report->shards, report->shards == 1 ? "" : "s",
                  readable_bytes(report->source_bytes), elapsed.count(),
                  static_cast<double>(report->expert_bytes) / elapsed.count() / 1e9,
                  report->threads, report->threads == 1 ? "" : "s",
                  readable_bytes(report->buffer_bytes)));
  return kExitDone;
}

}  // namespace holdfast::cli
