// What the device layer costs: the pause of a commit by exchange of pages and by copy, the
// machine's read bandwidth, the launch of a graph, and the dispatch of work to the pool.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/clock.h"
#include "device/arena.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/read_bandwidth.h"
#include "device/test_home.h"

namespace holdfast::device {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

// The whole of Arena::exchange on a read-only arena, as a commit does it: with a backing that was
// made read-only beforehand.
void BM_Exchange(benchmark::State& state) {
  auto device = make_cpu_device();
  auto arena = Arena::create(*device, "weights", static_cast<std::size_t>(state.range(0))).value();
  arena->seal();
  auto backing = arena->create_backing().value();
  HF_ASSERT(arena->protect(Protection::kReadOnly).ok(), "protect");
  HF_ASSERT(backing.protect(Protection::kReadOnly).ok(), "protect");
  for (auto _ : state) HF_ASSERT(arena->exchange(backing).ok(), "exchange");
}
BENCHMARK(BM_Exchange)
    ->Arg(kMillion)->Arg(100 * kMillion)->Arg(1000 * kMillion)
    ->Unit(benchmark::kMicrosecond)->UseRealTime();

// The same when the backing is still writable, so that the exchange also protects it.
void BM_ExchangeOfWritableBacking(benchmark::State& state) {
  auto device = make_cpu_device();
  auto arena = Arena::create(*device, "weights", static_cast<std::size_t>(state.range(0))).value();
  arena->seal();
  auto backing = arena->create_backing().value();
  HF_ASSERT(arena->protect(Protection::kReadOnly).ok(), "protect");
  for (auto _ : state) {
    HF_ASSERT(arena->exchange(backing).ok(), "exchange");
    state.PauseTiming();
    HF_ASSERT(backing.protect(Protection::kReadWrite).ok(), "protect");
    state.ResumeTiming();
  }
}
BENCHMARK(BM_ExchangeOfWritableBacking)
    ->Arg(kMillion)->Arg(100 * kMillion)->Arg(1000 * kMillion)
    ->Unit(benchmark::kMicrosecond)->UseRealTime();

// The first read of every page after an exchange.
void BM_ReadAfterExchange(benchmark::State& state) {
  auto device = make_cpu_device();
  auto arena = Arena::create(*device, "weights", static_cast<std::size_t>(state.range(0))).value();
  arena->seal();
  auto backing = arena->create_backing().value();
  for (auto _ : state) {
    state.PauseTiming();
    HF_ASSERT(arena->exchange(backing).ok(), "exchange");
    state.ResumeTiming();
    std::byte sum{};
    for (std::size_t at = 0; at < arena->memory().bytes; at += 4096) {
      sum ^= arena->memory().address[at];
    }
    benchmark::DoNotOptimize(sum);
  }
}
BENCHMARK(BM_ReadAfterExchange)
    ->Arg(kMillion)->Arg(100 * kMillion)->Arg(1000 * kMillion)
    ->Unit(benchmark::kMicrosecond)->UseRealTime();

// A commit by copy: staged bytes over live ones, on all cores.
void BM_CopyCommit(benchmark::State& state) {
  auto device = make_cpu_device();
  auto stream = device->create_stream(0).value();
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Memory live = device->allocate(bytes).value();
  const Memory staged = device->allocate(bytes).value();
  for (auto _ : state) {
    HF_ASSERT(stream->copy(live.address, staged.address, bytes).ok(), "copy");
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
  device->free(live);
  device->free(staged);
}
BENCHMARK(BM_CopyCommit)
    ->Arg(kMillion)->Arg(100 * kMillion)->Arg(1000 * kMillion)
    ->Unit(benchmark::kMicrosecond)->UseRealTime();

// One thread's memcpy, for comparison.
void BM_Memcpy(benchmark::State& state) {
  auto device = make_cpu_device();
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Memory live = device->allocate(bytes).value();
  const Memory staged = device->allocate(bytes).value();
  for (auto _ : state) {
    std::memcpy(live.address, staged.address, bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
  device->free(live);
  device->free(staged);
}
BENCHMARK(BM_Memcpy)
    ->Arg(kMillion)->Arg(100 * kMillion)->Arg(1000 * kMillion)
    ->Unit(benchmark::kMicrosecond)->UseRealTime();

// Argument: workers (0: all cores). Counter: the best pass, in bytes per second.
void BM_ReadBandwidth(benchmark::State& state) {
  auto device = make_cpu_device();
  WorkerPool workers(static_cast<int>(state.range(0)));
  const Memory memory = device->allocate(std::size_t{1} << 30).value();
  double best = 0;
  for (auto _ : state) {
    best = std::max(best, measure_read_bandwidth(workers, {memory.address, memory.bytes}, 1));
  }
  state.counters["bytes_per_second_best"] =
      benchmark::Counter(best, benchmark::Counter::kDefaults, benchmark::Counter::kIs1000);
  device->free(memory);
}
BENCHMARK(BM_ReadBandwidth)->Arg(1)->Arg(0)->Unit(benchmark::kMillisecond)->UseRealTime();

struct NoWorkArgs {
  tensor::TensorView out;
};
void run_nothing(const NoWorkArgs& args, WorkerPool&) {
  benchmark::DoNotOptimize(args.out.address);
}

// Argument: nodes. With none, what remains is the check of the layout generation.
void BM_GraphLaunch(benchmark::State& state) {
  auto device = make_cpu_device();
  auto stream = device->create_stream(1).value();
  const Memory memory = device->allocate(4096).value();
  FakeHome home;
  home.add(memory.address, memory.bytes);
  const NoWorkArgs args{{memory.address, tensor::DType::kF32, tensor::Shape{64}}};
  auto graph = capture(*stream, home, "decode", [&]() -> Status {
                 for (std::int64_t node = 0; node < state.range(0); ++node) {
                   HF_TRY(launch_cpu<&run_nothing>(*stream, "nothing", args,
                                                   {writes("out", args.out)}));
                 }
                 return {};
               }).value();
  for (auto _ : state) HF_ASSERT(graph->launch(*stream).ok(), "launch");
  state.counters["per_node"] =
      benchmark::Counter(static_cast<double>(std::max<std::int64_t>(state.range(0), 1)),
                         benchmark::Counter::kIsIterationInvariantRate |
                             benchmark::Counter::kInvert);
  device->free(memory);
}
BENCHMARK(BM_GraphLaunch)->Arg(0)->Arg(1)->Arg(500)->Unit(benchmark::kNanosecond);

// A kernel launched directly, for comparison with a node of a graph.
void BM_DirectLaunch(benchmark::State& state) {
  auto device = make_cpu_device();
  auto stream = device->create_stream(1).value();
  const Memory memory = device->allocate(4096).value();
  const NoWorkArgs args{{memory.address, tensor::DType::kF32, tensor::Shape{64}}};
  for (auto _ : state) {
    HF_ASSERT(launch_cpu<&run_nothing>(*stream, "nothing", args, {writes("out", args.out)}).ok(),
              "launch");
  }
  device->free(memory);
}
BENCHMARK(BM_DirectLaunch)->Unit(benchmark::kNanosecond);

// Handing one trivial task to each worker and waiting for all.
void BM_ParallelFor(benchmark::State& state) {
  WorkerPool workers(0);
  for (auto _ : state) {
    workers.parallel_for(workers.worker_count(), 1,
                         [](std::int64_t begin, std::int64_t, int) {
                           benchmark::DoNotOptimize(begin);
                         });
  }
}
BENCHMARK(BM_ParallelFor)->Unit(benchmark::kNanosecond)->UseRealTime();

// The same after a pause in which the workers have parked: what the first kernel of a step pays.
void BM_ParallelForAfterAPause(benchmark::State& state) {
  WorkerPool workers(0);
  const base::SteadyClock clock;
  for (auto _ : state) {
    const std::int64_t parked = clock.now_ns() + 500'000;
    while (clock.now_ns() < parked) {}
    const std::int64_t start = clock.now_ns();
    workers.parallel_for(workers.worker_count(), 1,
                         [](std::int64_t begin, std::int64_t, int) {
                           benchmark::DoNotOptimize(begin);
                         });
    state.SetIterationTime(static_cast<double>(clock.now_ns() - start) * 1e-9);
  }
}
BENCHMARK(BM_ParallelForAfterAPause)
    ->Unit(benchmark::kNanosecond)->Iterations(1000)->UseManualTime();

}  // namespace
}  // namespace holdfast::device
