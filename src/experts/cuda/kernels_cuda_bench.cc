// The kernels of a decode step at gpt-oss-20b's shapes on the GPU: microseconds, and bytes of
// weights over time. Several layers' weights take turns, so that none comes from the L2 cache.
// Prints lines of its own: Google Benchmark's clock does not see the device.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/arena.h"
#include "device/cuda/gpu_timer.h"
#include "device/devices.h"
#include "experts/experts.h"
#include "experts/test_tensors.h"
#include "ops/ops.h"
#include "storage/registry.h"

namespace holdfast::experts {
namespace {

using device::cuda::median_ms;
using tensor::DType;
using tensor::Shape;
using tensor::TensorView;

constexpr int kLayers = 6;

class Bench {
 public:
  explicit Bench(device::Device& gpu)
      : gpu_(gpu), stream_(gpu.create_stream().value()), kernels_(ops::make_cuda_kernels()) {}

  // Random bytes; `exponent` keeps bf16 and f32 values small and finite.
  TensorView random(DType dtype, const Shape& shape) {
    const std::size_t bytes = tensor::byte_size(dtype, shape).value();
    arenas_.push_back(device::Arena::create(gpu_, "bench", bytes).value());
    TensorView view{arenas_.back()->allocate(bytes, 256).value(), dtype, shape};
    std::vector<std::byte> block(std::min<std::size_t>(bytes, 64u << 20));
    fill(dtype, block);
    for (std::size_t at = 0; at < bytes; at += block.size()) {
      gpu_.write(view.address + at, block.data(), std::min(block.size(), bytes - at)).value();
    }
    return view;
  }
  TensorView integers(const std::vector<std::int32_t>& values, const Shape& shape) {
    TensorView view = random(DType::kI32, shape);
    gpu_.write(view.address, reinterpret_cast<const std::byte*>(values.data()),
               values.size() * 4).value();
    return view;
  }
  ops::OpContext context() { return {*stream_, *kernels_}; }
  device::Stream& stream() { return *stream_; }
  base::Rng& rng() { return rng_; }

 private:
  void fill(DType dtype, std::vector<std::byte>& block) {
    if (dtype == DType::kF32) {
      auto* values = reinterpret_cast<float*>(block.data());
      for (std::size_t i = 0; i < block.size() / 4; ++i) {
        values[i] = static_cast<float>(rng_.next_unit() - 0.5);
      }
    } else if (dtype == DType::kBF16) {
      auto* values = reinterpret_cast<std::uint16_t*>(block.data());
      for (std::size_t i = 0; i < block.size() / 2; ++i) {
        values[i] = static_cast<std::uint16_t>((rng_.next() & 0x80FF) | 0x3C00);
      }
    } else {
      for (auto& byte : block) byte = static_cast<std::byte>(rng_.next());
    }
  }

  device::Device& gpu_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<ops::Kernels> kernels_;
  base::Rng rng_{11};
  std::vector<std::unique_ptr<device::Arena>> arenas_;
};

void report(const char* name, std::int64_t rows, double ms, double bytes) {
  std::printf("%-28s rows %4lld  %9.2f us  %7.1f GB/s\n", name, static_cast<long long>(rows),
              ms * 1e3, bytes / ms * 1e-6);
}

void bench_linear(device::Device& gpu, const char* name, std::int64_t inputs,
                  std::int64_t outputs) {
  Bench bench(gpu);
  std::vector<TensorView> weights;
  for (int i = 0; i < kLayers; ++i) {
    weights.push_back(bench.random(DType::kBF16, {outputs, inputs}));
  }
  for (const std::int64_t rows : {1, 8, 16, 32, 64, 256}) {
    const TensorView x = bench.random(DType::kF32, {rows, inputs});
    const TensorView out = bench.random(DType::kF32, {rows, outputs});
    const TensorView active = bench.integers({static_cast<std::int32_t>(rows)}, {1});
    const double ms = median_ms(bench.stream(), 20, [&] {
      for (const TensorView& weight : weights) {
        ops::linear(bench.context(), {x, weight, {}, {}, out, active}).value();
      }
    });
    report(name, rows, ms / kLayers, static_cast<double>(inputs * outputs * 2));
  }
}

void bench_attention(device::Device& gpu, std::int64_t window) {
  Bench bench(gpu);
  constexpr std::int64_t kContext = 1024;
  for (const std::int64_t rows : {1, 8, 64}) {
    const std::int64_t pages = rows * kContext / 16;
    std::vector<std::int32_t> table, sequence, position;
    for (std::int64_t i = 0; i < pages; ++i) table.push_back(static_cast<std::int32_t>(i));
    for (std::int64_t r = 0; r < rows; ++r) {
      sequence.push_back(static_cast<std::int32_t>(r));
      position.push_back(kContext - 1);
    }
    const ops::PagedAttentionArgs args{
        .qkv = bench.random(DType::kF32, {rows, 5120}),
        .positions = bench.integers(position, {rows}),
        .row_sequence = bench.integers(sequence, {rows}),
        .block_tables = bench.integers(table, {rows, kContext / 16}),
        .key_pages = bench.random(DType::kF32, {pages, 16, 8, 64}),
        .value_pages = bench.random(DType::kF32, {pages, 16, 8, 64}),
        .sinks = bench.random(DType::kBF16, {64}),
        .out = bench.random(DType::kF32, {rows, 4096}),
        .active_rows = bench.integers({static_cast<std::int32_t>(rows)}, {1}),
        .window = window,
        .scale = 0.125f};
    const double ms = median_ms(bench.stream(), 20, [&] {
      for (int i = 0; i < kLayers; ++i) ops::paged_attention(bench.context(), args).value();
    });
    const auto keys = static_cast<double>(window > 0 ? window : kContext);
    report(window > 0 ? "attention, window 128" : "attention, 1024 keys", rows, ms / kLayers,
           static_cast<double>(rows) * keys * 8 * 64 * 4 * 2);
  }
}

void bench_experts(device::Device& gpu, ExpertsBackendKind kind) {
  Bench bench(gpu);
  const ExpertsShape shape{32, 4, 2880, 2880, 256};
  const config::ExpertFormat format = testing::format_of(config::ExpertScheme::kMxfp4);
  const auto choice = choose_experts_backend(
      {.device = device::DeviceKind::kCuda, .format = format, .shape = shape, .requested = kind});
  if (!choice.ok()) {
    std::printf("%s\n", choice.error().to_string().c_str());
    return;
  }
  storage::Registry registry;
  const auto backend = make_experts_backend(kind, device::DeviceKind::kCuda);
  backend->define_workspace(registry, shape).value();
  std::vector<std::unique_ptr<ExpertsLayer>> layers;
  for (int i = 0; i < kLayers; ++i) {
    layers.push_back(backend->define(registry,
                                     {.slot_prefix = "layers." + std::to_string(i) + ".experts",
                                      .parameter_prefix = "l." + std::to_string(i),
                                      .format = format,
                                      .tensors = testing::tensors_of(format, shape),
                                      .shape = shape})
                         .value());
  }
  registry.seal(gpu).value();
  for (device::Arena* arena : registry.versioned_arenas()) {
    arena->protect(device::Protection::kReadWrite).value();
  }
  for (const storage::Slot& slot : registry.slots()) {
    std::vector<std::byte> bytes(slot.range.bytes);
    const bool scales = slot.spec.name.find("scale") != std::string::npos;
    for (auto& byte : bytes) {
      byte = scales ? std::byte{120} : static_cast<std::byte>(bench.rng().next());
    }
    if (slot.spec.dtype == DType::kF32) std::fill(bytes.begin(), bytes.end(), std::byte{0x3F});
    gpu.write(registry.view(slot.id).address, bytes.data(), bytes.size()).value();
  }
  for (const std::int64_t rows : {1, 8, 16, 32, 64, 256}) {
    std::vector<std::int32_t> ids;
    std::vector<bool> hit(32, false);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<std::int32_t> order(32);
      for (int e = 0; e < 32; ++e) order[static_cast<std::size_t>(e)] = e;
      for (std::size_t k = 0; k < 4; ++k) {
        std::swap(order[k], order[k + bench.rng().next_below(32 - k)]);
        ids.push_back(order[k]);
        hit[static_cast<std::size_t>(order[k])] = true;
      }
    }
    const ExpertsArgs args{.x = bench.random(DType::kF32, {rows, 2880}),
                           .ids = bench.integers(ids, {rows, 4}),
                           .weights = bench.random(DType::kF32, {rows, 4}),
                           .residual = bench.random(DType::kF32, {rows, 2880}),
                           .out = bench.random(DType::kF32, {rows, 2880}),
                           .active_rows = bench.integers({static_cast<std::int32_t>(rows)}, {1})};
    const double ms = median_ms(bench.stream(), 20, [&] {
      for (const auto& layer : layers) layer->forward(bench.context(), args).value();
    });
    const auto experts = static_cast<double>(std::count(hit.begin(), hit.end(), true));
    const std::string name = "experts, " + std::string(experts_backend_name(kind));
    report(name.c_str(), rows, ms / kLayers, experts * 3 * 2880 * 2880 * 17 / 32);
  }
  registry.close();
}

void run_gpu(benchmark::State& state) {
  for (auto _ : state) {
    auto device = device::make_device("cuda");
    if (!device.ok()) {
      state.SkipWithError(device.error().to_string().c_str());
      return;
    }
    bench_linear(**device, "qkv 2880 -> 5120", 2880, 5120);
    bench_linear(**device, "out 4096 -> 2880", 4096, 2880);
    bench_linear(**device, "router 2880 -> 32", 2880, 32);
    bench_linear(**device, "lm_head 2880 -> 201088", 2880, 201088);
    bench_attention(**device, 0);
    bench_attention(**device, 128);
    bench_experts(**device, ExpertsBackendKind::kHoldfast);
    bench_experts(**device, ExpertsBackendKind::kCutlass);
  }
}
BENCHMARK(run_gpu)->Iterations(1);

}  // namespace
}  // namespace holdfast::experts
