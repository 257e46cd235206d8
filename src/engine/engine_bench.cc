// What the engine adds to the model: planning a step and taking its results, with no model behind
// it (greedy, a vocabulary of 8, so that sampling hardly counts). One iteration is one step.
#include <benchmark/benchmark.h>

#include <string>

#include "base/assert.h"
#include "engine/request_queue.h"

namespace holdfast::engine {
namespace {

constexpr std::int64_t kVocab = 8;

Settings settings_for(std::int64_t sequences) {
  Settings settings;
  settings.max_context = 4096;
  settings.max_sequences = sequences;
  settings.prefill_chunk = 512;
  settings.max_rows = std::max(sequences, settings.prefill_chunk);
  settings.page_count = sequences * 64;
  settings.max_waiting = 1 << 16;
  return settings;
}

// Shares nothing with the others.
Request long_request() {
  static int next = 0;
  Request request;
  request.prompt_ids = {1};
  request.max_tokens = 900;
  request.ignore_eos = true;
  request.cache_salt = std::to_string(next++);
  return request;
}

void submit(RequestQueue& queue, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    HF_ASSERT(queue.submit(long_request()).ok(), "refused");
  }
}

void step(RequestQueue& queue) {
  static const std::vector<float> logits = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto wrote = [](std::int32_t, std::span<const std::int32_t>) { return Status(); };
  const auto read = [](std::int64_t) -> Result<std::span<const float>> { return {logits}; };
  const Results::Read results{.logits = read, .experts = {}, .choice = {}};
  HF_ASSERT(queue.plan(1, wrote).ok() && queue.take_results(results, 1).ok(), "a step failed");
  benchmark::DoNotOptimize(queue.take_events());
}

// All sequences decode.
void decode(benchmark::State& state) {
  const std::int64_t sequences = state.range(0);
  RequestQueue queue(settings_for(sequences), {.size = kVocab, .eos_token_ids = {}});
  for (auto _ : state) {
    if (queue.idle()) {
      state.PauseTiming();
      submit(queue, sequences);
      step(queue);
      state.ResumeTiming();
    }
    step(queue);
  }
  state.SetItemsProcessed(state.iterations() * sequences);
}
BENCHMARK(decode)->Arg(1)->Arg(64)->Arg(1024);

// The same with thousands that wait, of which none can start.
void decode_while_others_wait(benchmark::State& state) {
  const std::int64_t sequences = state.range(0);
  RequestQueue queue(settings_for(sequences), {.size = kVocab, .eos_token_ids = {}});
  for (auto _ : state) {
    if (queue.stats().waiting < 4096) {
      state.PauseTiming();
      submit(queue, 8192);
      step(queue);
      state.ResumeTiming();
    }
    step(queue);
  }
  state.SetItemsProcessed(state.iterations() * sequences);
}
BENCHMARK(decode_while_others_wait)->Arg(1)->Arg(64)->Arg(1024);

// A request comes, finds a prefix of 1024 tokens in the cache, says one token and goes.
void prefix_hit(benchmark::State& state) {
  RequestQueue queue(settings_for(64), {.size = kVocab, .eos_token_ids = {}});
  Request request;
  request.prompt_ids.assign(1025, 3);
  request.max_tokens = 1;
  for (auto _ : state) {
    HF_ASSERT(queue.submit(request).ok(), "refused");
    while (!queue.idle()) step(queue);
  }
  state.SetItemsProcessed(state.iterations() * 1024);
}
BENCHMARK(prefix_hit);

void submit_and_cancel_behind(benchmark::State& state) {
  RequestQueue queue(settings_for(1), {.size = kVocab, .eos_token_ids = {}});
  submit(queue, state.range(0));
  for (auto _ : state) {
    const auto id = queue.submit(long_request());
    HF_ASSERT(id.ok() && queue.cancel(*id).ok(), "refused");
    benchmark::DoNotOptimize(queue.take_events());
  }
}
BENCHMARK(submit_and_cancel_behind)->Arg(0)->Arg(1024)->Arg(32768);

}  // namespace
}  // namespace holdfast::engine
