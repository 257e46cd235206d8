// linear at the shapes of gpt-oss-20b, in bytes of weights read per second, beside what this
// machine reads at all; attention and norms in time per step.
#include <benchmark/benchmark.h>

#include "ops/host_tensor.h"
#include "ops/read_bandwidth.h"

namespace holdfast::ops {
namespace {

using testing::DType;
using testing::HostTensor;
using testing::i32_tensor;
using testing::random_tensor;
using testing::Runner;

// bf16 weights in memory of the device, as a slot has them: huge pages from 2 MiB on.
class DeviceWeight {
 public:
  DeviceWeight(device::Device& device, std::int64_t outputs, std::int64_t inputs)
      : device_(device),
        memory_(device.allocate(static_cast<std::size_t>(outputs * inputs) * 2).value()),
        view_{memory_.address, DType::kBF16, testing::Shape{outputs, inputs}} {
    base::Rng rng(1);
    for (std::int64_t i = 0; i < outputs * inputs; ++i) {
      view_.as<std::uint16_t>()[i] =
          static_cast<std::uint16_t>(0x3C00u | (rng.next() & 0x80FFu));
    }
  }
  ~DeviceWeight() { device_.free(memory_); }
  DeviceWeight(const DeviceWeight&) = delete;
  DeviceWeight& operator=(const DeviceWeight&) = delete;

  const tensor::TensorView& view() const { return view_; }

 private:
  device::Device& device_;
  device::Memory memory_;
  tensor::TensorView view_;
};

void report_bandwidth(benchmark::State& state, double bytes) {
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of_read"] = benchmark::Counter(
      bytes / testing::read_bandwidth(), benchmark::Counter::kIsIterationInvariantRate);
}

// Args: rows, inputs, outputs.
void BM_Linear(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const std::int64_t inputs = state.range(1);
  const std::int64_t outputs = state.range(2);
  Runner runner(make_cpu_fast_kernels(), 0);
  base::Rng rng(2);
  const HostTensor x = random_tensor(rng, DType::kF32, {n, inputs});
  const DeviceWeight weight(runner.device(), outputs, inputs);
  HostTensor out(DType::kF32, {n, outputs});
  const HostTensor active = i32_tensor({static_cast<std::int32_t>(n)});
  const LinearArgs args{.x = x.view(), .weight = weight.view(), .bias = {}, .residual = {},
                        .out = out.view(), .active_rows = active.view()};
  for (auto _ : state) linear(runner.context(), args).value();
  report_bandwidth(state, static_cast<double>(weight.view().bytes()));
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(n * inputs * outputs),
                         benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Linear)
    ->ArgNames({"rows", "inputs", "outputs"})
    ->Args({1, 2880, 50000})
    ->Args({1, 2880, 5120})
    ->Args({8, 2880, 50000})
    ->Args({64, 2880, 5120})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// One decode step of one layer: `rows` sequences of `keys` keys, 64 query heads on 8 kv heads of
// 64.
void BM_PagedAttention(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const std::int64_t keys = state.range(1);
  constexpr std::int64_t kPage = 16;
  const std::int64_t blocks = keys / kPage;
  Runner runner(make_cpu_fast_kernels(), 0);
  base::Rng rng(3);
  const HostTensor qkv = random_tensor(rng, DType::kF32, {n, 80 * 64});
  const HostTensor key_pages = random_tensor(rng, DType::kF32, {n * blocks, kPage, 8, 64});
  const HostTensor value_pages = random_tensor(rng, DType::kF32, {n * blocks, kPage, 8, 64});
  const HostTensor sinks = random_tensor(rng, DType::kBF16, {64});
  HostTensor tables(DType::kI32, {n, blocks});
  for (std::int64_t i = 0; i < n * blocks; ++i) {
    tables.as<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  }
  std::vector<std::int32_t> sequences;
  for (std::int32_t r = 0; r < n; ++r) sequences.push_back(r);
  const HostTensor positions =
      i32_tensor(std::vector<std::int32_t>(n, static_cast<std::int32_t>(keys - 1)));
  const HostTensor rows = i32_tensor(sequences);
  const HostTensor active = i32_tensor({static_cast<std::int32_t>(n)});
  HostTensor out(DType::kF32, {n, 64 * 64});
  const PagedAttentionArgs args{.qkv = qkv.view(), .positions = positions.view(),
                                .row_sequence = rows.view(), .block_tables = tables.view(),
                                .key_pages = key_pages.view(), .value_pages = value_pages.view(),
                                .sinks = sinks.view(), .out = out.view(),
                                .active_rows = active.view(), .window = 0, .scale = 0.125f};
  for (auto _ : state) paged_attention(runner.context(), args).value();
  state.counters["GB/s"] = benchmark::Counter(2e-9 * static_cast<double>(key_pages.bytes()),
                                              benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_PagedAttention)
    ->ArgNames({"rows", "keys"})
    ->Args({1, 512})
    ->Args({1, 8192})
    ->Args({8, 2048})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

void BM_RmsNorm(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  Runner runner(make_cpu_fast_kernels(), 0);
  base::Rng rng(4);
  const HostTensor x = random_tensor(rng, DType::kF32, {n, 2880});
  const HostTensor weight = random_tensor(rng, DType::kBF16, {2880});
  HostTensor out(DType::kF32, {n, 2880});
  const HostTensor active = i32_tensor({static_cast<std::int32_t>(n)});
  const RmsNormArgs args{.x = x.view(), .weight = weight.view(), .out = out.view(),
                         .active_rows = active.view()};
  for (auto _ : state) rms_norm(runner.context(), args).value();
}
BENCHMARK(BM_RmsNorm)
    ->ArgName("rows")
    ->Arg(1)->Arg(64)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace holdfast::ops
