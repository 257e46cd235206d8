// What a census costs: one pass of XXH3-128 over all versioned bytes.
#include <benchmark/benchmark.h>

#include <string>

#include "base/assert.h"
#include "device/cpu/cpu_device.h"
#include "storage/census.h"

namespace holdfast::storage {
namespace {

// Argument: bytes of weights, in 100 slots.
void BM_Census(benchmark::State& state) {
  constexpr std::int64_t kSlots = 100;
  auto device = device::make_cpu_device();
  Registry registry;
  for (std::int64_t i = 0; i < kSlots; ++i) {
    const std::string name = "slot" + std::to_string(i);
    const tensor::Shape shape{state.range(0) / kSlots};
    const SlotId id =
        registry.define({.name = name, .dtype = tensor::DType::kU8, .shape = shape}).value();
    registry.bind({.name = name, .dtype = tensor::DType::kU8, .shape = shape, .slot = id}).value();
  }
  HF_ASSERT(registry.seal(*device).ok(), "seal");
  for (auto _ : state) benchmark::DoNotOptimize(take_census(registry, {}).value());
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Census)
    ->Arg(1'000'000)->Arg(100'000'000)->Arg(1'000'000'000)
    ->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace holdfast::storage
