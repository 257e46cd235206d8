// What a launch pays to know that it may run: the layout generation and the replay gate, alone and
// with a whole launch of a graph that records nothing.
#include <benchmark/benchmark.h>

#include "device/cpu/cpu_device.h"
#include "storage/registry.h"

namespace holdfast::storage {
namespace {

struct Sealed {
  Sealed() {
    registry
        .define({.name = "scratch",
                 .slot_class = SlotClass::kScratch,
                 .dtype = tensor::DType::kF32,
                 .shape = {16},
                 .arena = {}})
        .value();
    registry.seal(*device).value();
    stream = device->create_stream(1).value();
  }
  std::unique_ptr<device::Device> device = device::make_cpu_device();
  Registry registry;
  std::unique_ptr<device::Stream> stream;
};

void BM_GateCheck(benchmark::State& state) {
  const Sealed sealed;
  const device::AddressHome& home = sealed.registry;
  for (auto _ : state) {
    benchmark::DoNotOptimize(home.layout_generation());
    benchmark::DoNotOptimize(home.replay_gate());
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_GateCheck)->Name("launch check");

void BM_EmptyLaunch(benchmark::State& state) {
  Sealed sealed;
  const auto graph =
      device::capture(*sealed.stream, sealed.registry, "empty", [] { return Status(); }).value();
  for (auto _ : state) graph->launch(*sealed.stream).value();
}
BENCHMARK(BM_EmptyLaunch)->Name("launch of an empty graph");

}  // namespace
}  // namespace holdfast::storage
