#include "cli/bench.h"

#include <CLI/CLI.hpp>
#include <cmath>

#include "cli/command_line.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

constexpr std::string_view kBenchServe = R"(Examples:
  holdfast bench serve --num-prompts 2000 --random-input-len 64 --random-output-len 64
  holdfast bench serve --base-url http://host:8000 --request-rate 50 --max-concurrency 256
  holdfast bench serve --num-prompts 2000 --ignore-eos --check --report bench.html \
    --control-url http://127.0.0.1:8001 --reload-dir A --reload-dir B --reloads 10

Drives any server that speaks OpenAI's completions with token ids as prompts, and says what its
clients see: time to first token (ttft), time per output token (tpot), between two tokens (itl), of
the whole request (e2el), and throughput. --save-result has the keys of vLLM's bench. A request
that is answered 429 is sent again after the time that Retry-After names.

With --reloads N, the first --reload-dir is loaded before the run, and N reloads follow in its
middle, in turn (POST /update_weights at --control-url). For each the gap over its commit is shown:
the longest time that any stream waited between its last token of the old weights and its first of
the new ones.

--check asks for more than speed, and the exit code is 1 when something does not hold: every stream
ends by itself; every token arrives; version spans cover the tokens and never go back; every reload
is done. --verify-spans N makes spans of N streams again, at rest, with the weights that they claim
to be made of, and compares the tokens: all spans under --in-flight recompute, else the first of
each stream, since the others lean on keys and values of older weights. Under continue a prompt may
do so, too: there it takes requests that were sent after the commit (--max-concurrency or
--request-rate).)";

void add_load(CLI::App& app, loadgen::BenchOptions& options) {
  app.add_option("--base-url", options.base_url, "the server")->type_name("URL");
  app.add_option("--endpoint", options.endpoint, "completions that take token ids")
      ->type_name("PATH");
  app.add_option("--model", options.model, "the first of /v1/models by default")->type_name("NAME");
  app.add_option("--api-key", options.api_key, "the server's bearer token")
      ->envname("OPENAI_API_KEY")->type_name("TEXT");
  app.add_option("--num-prompts", options.prompts, "requests in all")->type_name("INT");
  app.add_option_function<double>(
         "--request-rate",
         [&options](double rate) { options.request_rate = std::isinf(rate) ? 0 : rate; },
         "requests a second, arriving as a Poisson process; inf is all at once")
      ->default_str("inf")->type_name("FLOAT");
  app.add_option("--max-concurrency", options.max_concurrency,
                 "requests that are open at one time; 0 is no limit")->type_name("INT");
  app.add_option("--timeout", options.timeout_s, "seconds without a byte of an answer")
      ->type_name("FLOAT");
  app.add_option("--max-retries", options.max_retries, "of one request that is answered 429")
      ->type_name("INT");
}

void add_prompts(CLI::App& app, BenchFlags& bench) {
  loadgen::BenchOptions& options = bench.options;
  app.add_option("--dataset-name", bench.dataset, "random: token ids, drawn by --seed")
      ->check(CLI::IsMember({"random"}))->type_name("NAME");
  app.add_option("--random-input-len", options.input_len, "tokens of a prompt")->type_name("INT");
  app.add_option("--random-output-len", options.output_len, "tokens asked for")->type_name("INT");
  app.add_option("--random-prefix-len", options.prefix_len,
                 "tokens besides, with which every prompt begins")->type_name("INT");
  app.add_option("--random-range-ratio", options.range_ratio,
                 "lengths are drawn from their value times 1 - RATIO to 1 + RATIO")
      ->type_name("FLOAT");
  app.add_option("--random-vocab", options.vocabulary, "prompts are of ids below this")
      ->type_name("INT");
  app.add_option("--seed", options.seed, "prompts, lengths, arrivals, and the requests' seeds")
      ->type_name("UINT");
  app.add_option("--temperature", options.temperature, "0 is greedy")->type_name("FLOAT");
  app.add_flag("--ignore-eos", options.ignore_eos, "do not stop at the model's end tokens");
}

void add_reloads(CLI::App& app, loadgen::BenchOptions& options) {
  app.add_option("--reload-dir", options.reload_dirs, "weights, as the server names them "
                 "(repeatable)")
      ->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->default_str("")
      ->type_name("DIR");
  app.add_option("--reloads", options.reloads, "reloads in the middle of the run")
      ->type_name("INT");
  app.add_option("--in-flight", options.in_flight, "what a reload does to running requests")
      ->check(CLI::IsMember({"continue", "recompute", "restart", "abort", "drain"}))
      ->type_name("NAME");
  app.add_option("--control-url", options.control_url, "the control listener; --base-url by "
                 "default")->type_name("URL");
  app.add_option("--control-token", options.control_token, "its bearer token")
      ->envname("HOLDFAST_CONTROL_TOKEN")->type_name("TEXT");
  app.add_flag("--check", options.check, "exit code 1 unless every token is there and knows its "
               "weights");
  app.add_option("--verify-spans", options.verify_spans,
                 "with --check: make the spans of so many streams again")->type_name("INT");
}

void add_results(CLI::App& app, BenchFlags& bench) {
  app.add_option("--percentile-metrics", bench.options.metrics, "of ttft, tpot, itl, e2el")
      ->delimiter(',')->check(CLI::IsMember({"ttft", "tpot", "itl", "e2el"}))
      ->default_str("ttft,tpot,itl,e2el")->type_name("NAME,...");
  app.add_option("--metric-percentiles", bench.options.percentiles, "0 to 100")
      ->delimiter(',')->check(CLI::Range(0.0, 100.0))->default_str("50,90,99")
      ->type_name("FLOAT,...");
  app.add_option("--save-result", bench.save_result, "also write the result as JSON")
      ->type_name("FILE");
  app.add_option("--report", bench.report, "also write an HTML page with charts")
      ->type_name("FILE");
}

}  // namespace

void add_bench(CLI::App& root, CommandLine& line) {
  CLI::App& bench = *root.add_subcommand("bench", "measure a running server");
  bench.require_subcommand(1);
  CLI::App& app = *bench.add_subcommand("serve", "drive a server that speaks OpenAI's completions");
  app.footer(std::string(kBenchServe));
  add_load(app, line.bench.options);
  add_prompts(app, line.bench);
  add_reloads(app, line.bench.options);
  add_results(app, line.bench);
  app.add_flag("--json", line.json, "the result as JSON instead of a table");
  app.add_flag("-q,--quiet", line.quiet, "no progress on stderr");
}

int run_bench_command(const CommandLine& line) {
  ProgressLine progress(line.quiet);
  loadgen::BenchOptions options = line.bench.options;
  options.check = options.check || options.verify_spans > 0;
  options.progress = [&progress](const std::string& text) { progress.show(text); };
  const Result<loadgen::BenchReport> report = loadgen::run_bench(options);
  progress.clear();
  if (!report.ok()) {
    return report.error().code() == ErrorCode::kInvalidArgument
               ? report_usage(report.error().message())
               : report_failure(report.error());
  }
  Status status = write_file("", line.json ? report->json : report->table);
  if (status.ok() && !line.bench.save_result.empty()) {
    status = write_file(line.bench.save_result, report->json);
  }
  if (status.ok() && !line.bench.report.empty()) {
    status = write_file(line.bench.report, report->html);
  }
  if (!status.ok()) return report_failure(status.error());
  return report->passed ? kExitDone : kExitFailed;
}

}  // namespace holdfast::cli
