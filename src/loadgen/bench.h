// run_bench: `holdfast bench serve`. Drives a server that speaks OpenAI's completions with many
// streams at once, reloads its weights in the middle when asked to, and says what a client saw.
// Called on one thread, which it keeps until the end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::loadgen {

struct BenchOptions {
  std::string base_url = "http://127.0.0.1:8000";
  std::string endpoint = "/v1/completions";
  std::string model;                  // empty: the first of /v1/models
  std::string api_key;                // bearer token of base_url
  std::int64_t prompts = 1000;
  double request_rate = 0;            // requests a second, Poisson; 0: all at once
  std::int64_t max_concurrency = 0;   // 0: no limit
  std::int64_t input_len = 64, output_len = 64;
  std::int64_t prefix_len = 0;        // tokens that every prompt begins with, besides input_len
  double range_ratio = 0;             // lengths are drawn from len * (1 +- ratio)
  std::int64_t vocabulary = 1000;     // prompts are of ids below this
  double temperature = 0;
  std::uint64_t seed = 0;
  bool ignore_eos = false;
  int max_retries = 10;               // of one request that is answered 429
  double timeout_s = 600;             // without a byte of an answer
  std::vector<double> percentiles = {50, 90, 99};
  std::vector<std::string> metrics = {"ttft", "tpot", "itl", "e2el"};

  // Reloads in the middle of the run: the first directory is loaded before it begins, then they
  // follow each other in turn.
  std::vector<std::string> reload_dirs;
  int reloads = 0;
  std::string in_flight;              // what a reload does to running requests; empty: server's own
  std::string control_url;            // empty: base_url
  std::string control_token;

  bool check = false;                 // see loadgen/check.h
  std::int64_t verify_spans = 0;      // of so many streams the tokens are made again, at rest
  std::function<void(const std::string& line)> progress = {};
};

struct BenchReport {
  std::string table;   // for people
  std::string json;    // vLLM's keys, and `holdfast`
  std::string html;    // self-contained
  bool passed = true;  // false: a check failed
};

// Errors: kInvalidArgument naming the option; kIo when the server cannot be reached at all; what
// went wrong with single requests is in the report.
Result<BenchReport> run_bench(const BenchOptions& options);

}  // namespace holdfast::loadgen
