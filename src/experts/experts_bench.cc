// Experts at gpt-oss-20b's shape (hidden and intermediate 2880, top-4), of every scheme on the
// holdfast backend and of those that each of the field's runs: one row in bytes of weights read per
// second beside the machine's own read bandwidth, many rows in tokens per second of one layer; and
// packing.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "experts/capabilities.h"
#include "experts/cpu_packing.h"
#include "experts/test_layer.h"
#include "ops/read_bandwidth.h"

namespace holdfast::experts {
namespace {

using config::ActivationScheme;
using config::ExpertDialect;
using config::ExpertFormat;
using config::ExpertScheme;
using testing::DType;
using testing::HostTensor;
using testing::TestLayer;

ExpertFormat format_of(ExpertScheme scheme, ActivationScheme activations) {
  ExpertFormat format{.scheme = scheme, .activations = activations};
  switch (scheme) {
    case ExpertScheme::kBF16:
    case ExpertScheme::kF16:
    case ExpertScheme::kF32: format.dialect = ExpertDialect::kHub; break;
    case ExpertScheme::kMxfp4: break;
    case ExpertScheme::kMxfp8:
    case ExpertScheme::kFp8Tensor:
    case ExpertScheme::kFp8Channel: format.dialect = ExpertDialect::kFp8; break;
    case ExpertScheme::kFp8Block: format.dialect = ExpertDialect::kFp8Block; break;
    case ExpertScheme::kNvfp4: format.dialect = ExpertDialect::kModelOptNvfp4; break;
    case ExpertScheme::kInt4:
      format.dialect = ExpertDialect::kCompressedInt4;
      format.group_size = 32;
      format.scale_dtype = DType::kBF16;
      break;
  }
  return format;
}

// Few experts where they are wide: a layer stays below 1.2 GB.
ExpertsShape shape_of(ExpertScheme scheme) {
  const bool wide = scheme == ExpertScheme::kBF16 || scheme == ExpertScheme::kF16 ||
                    scheme == ExpertScheme::kF32;
  return {wide ? 8 : 32, 4, 2880, 2880, 64};
}

// Bytes that one expert's tensors take in the checkpoint: what a token must read, padding apart.
double expert_bytes(const ExpertFormat& format, const ExpertsShape& shape) {
  double bytes = 0;
  for (const config::ExpertTensor& tensor : testing::tensors_of(format, shape)) {
    bytes += static_cast<double>(tensor::byte_size(tensor.dtype, tensor.shape).value());
  }
  return bytes;
}

struct Case {
  ExpertsBackendKind backend;
  ExpertScheme scheme;
  ActivationScheme activations;
  friend bool operator==(const Case&, const Case&) = default;
};

TestLayer& layer_of(const Case& c) {
  // One layer at a time.
  static std::unique_ptr<TestLayer> layer;
  static Case current{};
  if (layer == nullptr || current != c) {
    layer.reset();
    const ExpertFormat format = format_of(c.scheme, c.activations);
    const ExpertsShape shape = shape_of(c.scheme);
    layer = std::make_unique<TestLayer>(c.backend, format, shape, 0);
    layer->load(testing::make_tensors(format, shape, 1));
    current = c;
  }
  return *layer;
}

// One row after another, each with other experts, so that no weights are in a cache.
void one_row(benchmark::State& state, const Case& c) {
  TestLayer& layer = layer_of(c);
  const std::int64_t experts = layer.shape().expert_count;
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
  const double bytes = 4 * expert_bytes(format_of(c.scheme, c.activations), layer.shape());
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of_read"] = benchmark::Counter(bytes / ops::testing::read_bandwidth(),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

void rows(benchmark::State& state, const Case& c) {
  TestLayer& layer = layer_of(c);
  layer.randomize_rows(3);
  const std::int64_t n = state.range(0);
  for (auto _ : state) layer.forward(0, n).value();
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(n),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  const double flops = 2.0 * 4 * 3 * 2880 * 2880 * static_cast<double>(n);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void register_case(const Case& c) {
  const std::string name = fmt::format("{}/{}_x_{}", experts_backend_name(c.backend),
                                       config::expert_scheme_name(c.scheme),
                                       config::activation_scheme_name(c.activations));
  benchmark::RegisterBenchmark(("OneRow/" + name).c_str(), &one_row, c)
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
  benchmark::RegisterBenchmark(("Rows/" + name).c_str(), &rows, c)
      ->ArgName("rows")
      ->Arg(8)
      ->Arg(64)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}

// What publishers ship; of the field's backends, what each runs of it.
void register_all() {
  using A = ActivationScheme;
  using S = ExpertScheme;
  const std::pair<S, A> schemes[] = {
      {S::kMxfp4, A::kNone},         {S::kMxfp4, A::kMxfp8},         {S::kNvfp4, A::kNone},
      {S::kNvfp4, A::kNvfp4},        {S::kInt4, A::kNone},           {S::kFp8Block, A::kNone},
      {S::kFp8Block, A::kFp8TokenGroup}, {S::kFp8Channel, A::kFp8Token}, {S::kFp8Tensor, A::kNone},
      {S::kMxfp8, A::kMxfp8},        {S::kBF16, A::kNone},           {S::kF16, A::kNone},
      {S::kF32, A::kNone}};
  using B = ExpertsBackendKind;
  for (const B backend : {B::kHoldfast, B::kCutlass, B::kTrtllm, B::kMarlin, B::kMachete,
                          B::kUnquantised}) {
    for (const auto& [scheme, activations] : schemes) {
      const config::ExpertFormat format{.scheme = scheme, .activations = activations};
      if (capability_of({.backend = backend}, format).support == Support::kRefused) continue;
      register_case({backend, scheme, activations});
    }
  }
}
[[maybe_unused]] const bool registered = (register_all(), true);

// One expert's gate_up matrix, as a reload packs it; bytes read and written count once.
void run_pack(benchmark::State& state, DType dtype, const UnitLayout& units, double bytes) {
  const PackedShape matrix{.rows = 5760, .columns = 2880, .interleaved = true};
  ops::testing::Runner runner(ops::make_cpu_fast_kernels(), 0);
  const std::int64_t elements = units.units * units.unit_bytes * 8 / tensor::dtype_bits(dtype);
  HostTensor from(dtype, {2, 5760, elements});
  HostTensor to(dtype, {2, matrix.tiles() * kTileRows, elements});
  for (auto _ : state) pack_units(runner.stream(), matrix, units, from.view(), to.view()).value();
  state.counters["GB/s"] =
      benchmark::Counter(2 * bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}
void BM_PackCodes(benchmark::State& state) {
  run_pack(state, DType::kU8, row_major_units(4, 2880 / 8), 5760.0 * 1440);
}
BENCHMARK(BM_PackCodes)->Unit(benchmark::kMillisecond)->UseRealTime();
void BM_PackFp8(benchmark::State& state) {
  run_pack(state, DType::kF8E4M3, row_major_units(1, 2880), 5760.0 * 2880);
}
BENCHMARK(BM_PackFp8)->Unit(benchmark::kMillisecond)->UseRealTime();
void BM_PackBf16(benchmark::State& state) {
  run_pack(state, DType::kBF16, input_major_units(2, 2880, 5760), 5760.0 * 5760);
}
BENCHMARK(BM_PackBf16)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace holdfast::experts
