// The holdfast backend at gpt-oss-20b's shape (hidden and intermediate 2880, 32 experts, top-4):
// one row in bytes of weights read per second beside the machine's own read bandwidth, many rows in
// tokens per second of one layer; and packing.
#include <benchmark/benchmark.h>

#include "experts/cpu_packing.h"
#include "experts/test_layer.h"
#include "ops/read_bandwidth.h"

namespace holdfast::experts {
namespace {

using config::ExpertScheme;
using testing::DType;
using testing::HostTensor;
using testing::TestLayer;

// Bytes that one expert's matrices take in the checkpoint: what a token must read, padding apart.
double expert_bytes(ExpertScheme scheme, const ExpertsShape& shape) {
  const double elements = 3.0 * static_cast<double>(shape.hidden_size * shape.intermediate_size);
  return scheme == ExpertScheme::kMxfp4 ? elements * 17 / 32 : elements * 2;
}

TestLayer& layer_of(ExpertScheme scheme, std::int64_t experts) {
  // One layer at a time: a layer of 32 experts is 420 MB in MXFP4.
  static std::unique_ptr<TestLayer> layer;
  static std::pair<ExpertScheme, std::int64_t> current;
  if (layer == nullptr || current != std::pair{scheme, experts}) {
    layer.reset();
    const ExpertsShape shape{experts, 4, 2880, 2880, 64};
    layer = std::make_unique<TestLayer>(ExpertsBackendKind::kHoldfast, scheme, shape, 0);
    layer->load(scheme == ExpertScheme::kMxfp4 ? testing::make_mxfp4_tensors(shape, 1)
                                               : testing::make_bf16_tensors(shape, 1));
    current = {scheme, experts};
  }
  return *layer;
}

// One row after another, each with other experts, so that no weights are in a cache.
void run_single_rows(benchmark::State& state, ExpertScheme scheme, std::int64_t experts) {
  TestLayer& layer = layer_of(scheme, experts);
  layer.randomize_rows(2);
  for (std::int64_t pair = 0; pair < 64 * 4; ++pair) {
    layer.ids()[pair] = static_cast<std::int32_t>(pair % experts);
  }
  layer.set_active(1);
  std::int64_t row = 0;
  for (auto _ : state) {
    layer.forward(row, 1).value();
    row = (row + 1) % 64;
  }
  const double bytes = 4 * expert_bytes(scheme, layer.shape());
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of_read"] = benchmark::Counter(bytes / ops::testing::read_bandwidth(),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
void BM_ExpertsMxfp4OneRow(benchmark::State& state) {
  run_single_rows(state, ExpertScheme::kMxfp4, 32);
}
BENCHMARK(BM_ExpertsMxfp4OneRow)->Unit(benchmark::kMicrosecond)->UseRealTime();

void BM_ExpertsMxfp4Rows(benchmark::State& state) {
  TestLayer& layer = layer_of(ExpertScheme::kMxfp4, 32);
  layer.randomize_rows(3);
  const std::int64_t n = state.range(0);
  for (auto _ : state) layer.forward(0, n).value();
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(n),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  const double flops = 2.0 * 4 * 3 * 2880 * 2880 * static_cast<double>(n);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_ExpertsMxfp4Rows)
    ->ArgName("rows")
    ->Arg(2)->Arg(8)->Arg(64)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void BM_ExpertsBf16OneRow(benchmark::State& state) {
  run_single_rows(state, ExpertScheme::kBF16, 8);
}
BENCHMARK(BM_ExpertsBf16OneRow)->Unit(benchmark::kMicrosecond)->UseRealTime();

// One expert's gate_up matrix, as a reload packs it; bytes read and written count once.
void BM_PackCodes(benchmark::State& state) {
  const PackedShape matrix{.rows = 5760, .columns = 2880, .interleaved = true};
  ops::testing::Runner runner(ops::make_cpu_fast_kernels(), 0);
  HostTensor from(DType::kU8, {4, 5760, 90, 16});
  HostTensor to(DType::kU8, packed_codes_shape(matrix, 4));
  for (auto _ : state) pack_codes(runner.stream(), matrix, from.view(), to.view()).value();
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(from.bytes()) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_PackCodes)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_PackBf16(benchmark::State& state) {
  const PackedShape matrix{.rows = 5760, .columns = 2880, .interleaved = true};
  ops::testing::Runner runner(ops::make_cpu_fast_kernels(), 0);
  HostTensor from(DType::kBF16, {2, 2880, 5760});
  HostTensor to(DType::kBF16, packed_bf16_shape(matrix, 2));
  for (auto _ : state) pack_bf16(runner.stream(), matrix, from.view(), to.view()).value();
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(from.bytes()) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_PackBf16)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace holdfast::experts
