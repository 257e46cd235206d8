// Decode before and after a thousand reloads. Beside the engine that is reloaded another one of
// the same weights is not, and steps are timed in turn, so that whatever else the machine does
// meanwhile slows both.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_core.h"

namespace holdfast::engine {
namespace {

constexpr int kReloads = 1000;
constexpr int kRounds = 12;
constexpr std::int64_t kTokens = 200;

std::string model(const char* name) { return std::string(HF_SOURCE_DIR) + "/models/" + name; }

std::unique_ptr<EngineCore> open_core() {
  EngineOptions options;
  options.model_directory = model("gptoss-tiny-A");
  options.threads = 1;
  options.max_context = 256;
  options.max_sequences = 1;
  return EngineCore::open(options).value();
}

// Generates from one prompt; the time of each step that decodes, in microseconds, goes to `times`.
void decode(EngineCore& core, std::vector<double>& times) {
  Request request;
  request.prompt_ids = {1, 2, 3, 4};
  request.max_tokens = kTokens;
  request.ignore_eos = true;
  core.submit(std::move(request)).value();
  bool prompt = true;
  while (!core.idle()) {
    const auto begin = std::chrono::steady_clock::now();
    core.step().value();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (!prompt) times.push_back(took.count());
    prompt = false;
  }
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Medians {
  double reloaded = 0;
  double other = 0;
};

Medians in_turn(EngineCore& reloaded, EngineCore& other) {
  std::vector<double> of_reloaded, of_other;
  for (int i = 0; i < kRounds; ++i) {
    decode(reloaded, of_reloaded);
    decode(other, of_other);
  }
  return {.reloaded = median(of_reloaded), .other = median(of_other)};
}

void BM_DecodeAfterAThousandReloads(benchmark::State& state) {
  const auto reloaded = open_core();
  const auto other = open_core();
  in_turn(*reloaded, *other);
  const char* const strategies[] = {"remap", "copy", "stream"};
  for (auto _ : state) {
    const Medians before = in_turn(*reloaded, *other);
    for (int i = 1; i <= kReloads; ++i) {
      const std::string to = model(i % 2 == 0 ? "gptoss-tiny-A" : "gptoss-tiny-B");
      reloaded->begin_reload(to, {.commit = strategies[i % 3]}).value();
      reloaded->finish_reload().value();
    }
    const Medians after = in_turn(*reloaded, *other);
    state.counters["before_us"] = before.reloaded;
    state.counters["after_us"] = after.reloaded;
    // 1: not slower, whatever the machine did meanwhile.
    state.counters["after/before"] =
        (after.reloaded / after.other) / (before.reloaded / before.other);
  }
}
BENCHMARK(BM_DecodeAfterAThousandReloads)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace holdfast::engine
