// The experts of every scheme on the GPU at Qwen3-30B-A3B's shape (128 experts, 8 of a token, 2048
// x 768; where widths are to be no whole units, a little less): microseconds of a layer, bytes of
// the weights that it reads over time, arithmetic over time, and the floor that both give
// (kBandwidth, kArithmetic: measured on an H200). Several layers take turns, so that no weights
// come from the L2 cache. Prints lines of its own, because Google Benchmark's clock does not see
// the device.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/rng.h"
#include "device/arena.h"
#include "device/cuda/gpu_timer.h"
#include "device/devices.h"
#include "experts/experts.h"
#include "experts/test_operands.h"
#include "experts/test_schemes.h"
#include "experts/test_tensors.h"
#include "ops/ops.h"
#include "storage/registry.h"

namespace holdfast::experts {
namespace {

using tensor::DType;
using tensor::TensorView;

constexpr double kBandwidth = 4.3e12;     // bytes a second, a copy's reads and writes
constexpr double kArithmetic = 0.78e15;   // a large bf16 product of random values
constexpr ExpertsShape kShape{128, 8, 2048, 768, 2048};
constexpr ExpertsShape kEdges{128, 8, 2044, 764, 2048};
constexpr int kLayers = 6;
constexpr int kRepetitions = 10;

// Finite values and codes, scales near 1.
void fill(const storage::SlotSpec& slot, base::Rng& rng, std::vector<std::byte>& block) {
  const bool scales = slot.name.find("scale") != std::string::npos;
  for (std::size_t i = 0; i + 8 <= block.size(); i += 8) {
    std::uint64_t word = rng.next();
    if (slot.dtype == DType::kF8E4M3) word &= 0xBFBFBFBFBFBFBFBFu;
    if (slot.dtype == DType::kBF16) word = (word & 0x80FF80FF80FF80FFu) | 0x3C003C003C003C00u;
    if (slot.dtype == DType::kF16) word = (word & 0x83FF83FF83FF83FFu) | 0x2C002C002C002C00u;
    if (slot.dtype == DType::kF32) word = (word & 0x807FFFFF807FFFFFu) | 0x3C0000003C000000u;
    if (slot.name.ends_with("group_index")) {  // 768 and 2048 inputs in groups of 128
      word &= slot.name.find("down") != std::string::npos ? 0x0000000300000003u
                                                          : 0x0000000F0000000Fu;
    }
    if (slot.dtype == DType::kU8 && scales) word = 0x7777777777777777u;
    std::memcpy(block.data() + i, &word, 8);
  }
}

class SchemeBench {
 public:
  SchemeBench(device::Device& gpu, const config::ExpertFormat& format, const ExpertsShape& shape)
      : gpu_(gpu),
        shape_(shape),
        stream_(gpu.create_stream().value()),
        kernels_(ops::make_cuda_kernels()) {
    const auto backend =
        make_experts_backend(ExpertsBackendKind::kHoldfast, device::DeviceKind::kCuda);
    backend->define_workspace(registry_, shape_).value();
    for (int i = 0; i < kLayers; ++i) {
      layers_.push_back(backend->define(registry_, {.slot_prefix = "l." + std::to_string(i),
                                                    .parameter_prefix = "p." + std::to_string(i),
                                                    .format = format,
                                                    .tensors = testing::tensors_of(format, shape_),
                                                    .shape = shape_})
                            .value());
    }
    for (const storage::Slot& slot : registry_.slots()) {
      if (slot.spec.name.starts_with("l.0.")) {
        weight_bytes_ += static_cast<double>(
            tensor::byte_size(slot.spec.dtype, slot.spec.shape).value());
      }
    }
    operands_ = testing::define_operands(registry_, shape_);
    registry_.seal(gpu).value();
    for (device::Arena* arena : registry_.versioned_arenas()) {
      arena->protect(device::Protection::kReadWrite).value();
    }
    std::vector<std::byte> block(16u << 20);
    for (const storage::Slot& slot : registry_.slots()) {
      if (slot.spec.slot_class == storage::SlotClass::kScratch) continue;
      fill(slot.spec, rng_, block);
      const TensorView view = registry_.view(slot.id);
      for (std::size_t at = 0; at < view.bytes(); at += block.size()) {
        gpu.write(view.address + at, block.data(), std::min(block.size(), view.bytes() - at))
            .value();
      }
    }
  }
  ~SchemeBench() { registry_.close(); }

  void run(const char* name, std::int64_t rows) {
    const auto experts = route(rows);
    const ExpertsArgs args = testing::rows_of(registry_, operands_, 0, rows);
    const ops::OpContext context{*stream_, *kernels_};
    const double ms = device::cuda::median_ms(*stream_, kRepetitions, [&] {
      for (const auto& layer : layers_) layer->forward(context, args).value();
    });
    const double seconds = ms / kLayers * 1e-3;
    const double bytes = weight_bytes_ * experts / static_cast<double>(shape_.expert_count);
    const double operations = 6.0 * static_cast<double>(rows * shape_.experts_per_token *
                                                        shape_.hidden_size *
                                                        shape_.intermediate_size);
    std::printf("experts %-24s rows %4lld  %9.2f us  %7.1f GB/s  %6.1f TFLOP/s  floor %8.2f us\n",
                name, static_cast<long long>(rows), seconds * 1e6, bytes / seconds * 1e-9,
                operations / seconds * 1e-12,
                std::max(bytes / kBandwidth, operations / kArithmetic) * 1e6);
    std::fflush(stdout);
  }

 private:
  // Distinct experts a row; gives how many have any.
  double route(std::int64_t rows) {
    const auto k = static_cast<std::size_t>(shape_.experts_per_token);
    std::vector<std::int32_t> ids;
    std::vector<std::int32_t> order(static_cast<std::size_t>(shape_.expert_count));
    std::vector<bool> hit(order.size(), false);
    for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<std::int32_t>(e);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::size_t i = 0; i < k; ++i) {
        std::swap(order[i], order[i + rng_.next_below(order.size() - i)]);
        ids.push_back(order[i]);
        hit[static_cast<std::size_t>(order[i])] = true;
      }
    }
    const auto count = static_cast<std::int32_t>(rows);
    const auto put = [&](storage::SlotId to, const auto* values, std::size_t bytes) {
      gpu_.write(registry_.view(to).address, reinterpret_cast<const std::byte*>(values), bytes)
          .value();
    };
    put(operands_.ids, ids.data(), ids.size() * sizeof(ids[0]));
    put(operands_.active_rows, &count, sizeof(count));
    return static_cast<double>(std::count(hit.begin(), hit.end(), true));
  }

  device::Device& gpu_;
  const ExpertsShape shape_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<ops::Kernels> kernels_;
  storage::Registry registry_;
  std::vector<std::unique_ptr<ExpertsLayer>> layers_;
  base::Rng rng_{12};
  double weight_bytes_ = 0;  // of a layer
  testing::LayerOperands operands_;
};

struct FormatCase {
  const char* name;
  config::ExpertFormat format;
  ExpertsShape shape = kShape;
};

std::vector<FormatCase> format_cases() {
  using A = config::ActivationScheme;
  using D = config::ExpertDialect;
  using S = config::ExpertScheme;
  const config::ExpertFormat int4{.scheme = S::kInt4, .dialect = D::kCompressedInt4,
                                  .group_size = 128, .scale_dtype = DType::kBF16};
  config::ExpertFormat gptq = int4;
  gptq.dialect = D::kGptq;
  gptq.scale_dtype = DType::kF16;
  config::ExpertFormat fine = gptq;
  fine.group_size = 32;
  config::ExpertFormat ordered = gptq;
  ordered.act_order = true;
  config::ExpertFormat awq = gptq;
  awq.dialect = D::kAwq;
  awq.zero_points = true;
  return {{"bf16", {S::kBF16, A::kNone, D::kHub}},
          {"bf16, inputs first", {S::kBF16, A::kNone, D::kGptOssHub}},
          {"bf16, 2044 x 764", {S::kBF16, A::kNone, D::kHub}, kEdges},
          {"f16", {S::kF16, A::kNone, D::kHub}},
          {"fp8-block x group", {S::kFp8Block, A::kFp8TokenGroup, D::kFp8Block}},
          {"fp8-channel x token", {S::kFp8Channel, A::kFp8Token, D::kFp8}},
          {"fp8-tensor x static", {S::kFp8Tensor, A::kFp8Static, D::kFp8}},
          {"fp8-tensor, 2044 x 764", {S::kFp8Tensor, A::kFp8Static, D::kFp8}, kEdges},
          {"mxfp8 x mxfp8", {S::kMxfp8, A::kMxfp8, D::kFp8}},
          {"mxfp4, gpt-oss's", {S::kMxfp4, A::kNone, D::kGptOssHub}},
          {"mxfp4 per expert", {S::kMxfp4, A::kNone, D::kMxfp4PerExpert}},
          {"mxfp4 x mxfp8", {S::kMxfp4, A::kMxfp8, D::kGptOssHub}},
          {"nvfp4", {S::kNvfp4, A::kNone, D::kModelOptNvfp4}},
          {"nvfp4 x nvfp4", {S::kNvfp4, A::kNvfp4, D::kModelOptNvfp4}},
          {"int4 compressed", int4},
          {"int4 gptq", gptq},
          {"int4 gptq, groups of 32", fine},
          {"int4 gptq act-order", ordered},
          {"int4 awq", awq}};
}
constexpr int kFormats = 19;

void run_schemes(benchmark::State& state) {
  const std::vector<FormatCase> cases = format_cases();
  HF_ASSERT(cases.size() == kFormats, "the range of the benchmark is the number of formats");
  const FormatCase& c = cases[static_cast<std::size_t>(state.range(0))];
  for (auto _ : state) {
    auto device = device::make_device("cuda");
    if (!device.ok()) {
      state.SkipWithError(device.error().to_string().c_str());
      return;
    }
    SchemeBench bench(**device, c.format, c.shape);
    for (const std::int64_t rows : {1, 8, 32, 256, 2048}) bench.run(c.name, rows);
  }
}
BENCHMARK(run_schemes)->DenseRange(0, kFormats - 1)->Iterations(1);

}  // namespace
}  // namespace holdfast::experts
