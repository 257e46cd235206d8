// head_norm, silu_gate and the softmax over all experts on the GPU against the CPU's reference
// loops: fresh random inputs, outputs poisoned; and the bits of a row alone and among others.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "device/cuda/cuda_test_device.h"
#include "ops/cuda/gpu_bench.h"

namespace holdfast::ops {
namespace {

using testing::decode;
using testing::DType;
using testing::GpuBench;
using testing::HostTensor;
using testing::i32_tensor;
using testing::poison;
using testing::random_tensor;
using testing::Shape;
using testing::worst;

HostTensor copy_of(const HostTensor& from) {
  HostTensor to(from.view().dtype, from.view().shape);
  std::memcpy(to.view().address, from.view().address, from.bytes());
  return to;
}

void check_head_norm(device::Device& gpu, std::int64_t heads, std::int64_t kv_heads,
                     std::int64_t dim, DType dtype) {
  base::Rng rng(static_cast<std::uint64_t>(heads * 100 + dim));
  const std::int64_t n = 5, active = 4, width = (heads + 2 * kv_heads) * dim;
  const HostTensor start = random_tensor(rng, DType::kF32, {n, width}, 3.0f);
  const HostTensor query = random_tensor(rng, dtype, {dim});
  const HostTensor key = random_tensor(rng, dtype, {dim});
  const auto launch = [&](const OpContext& c, const auto& at, const TensorView& x,
                          std::int32_t rows) {
    head_norm(c, {.x = x, .query_weight = at(query), .key_weight = at(key),
                  .active_rows = at(i32_tensor({rows})), .query_head_count = heads,
                  .key_head_count = kv_heads, .eps = 1e-6f})
        .value();
  };
  const HostTensor expected = copy_of(start);
  testing::Runner cpu(make_cpu_reference_kernels());
  const HostTensor count = i32_tensor({static_cast<std::int32_t>(active)});
  head_norm(cpu.context(), {.x = expected.view(), .query_weight = query.view(),
                            .key_weight = key.view(), .active_rows = count.view(),
                            .query_head_count = heads, .key_head_count = kv_heads, .eps = 1e-6f})
      .value();
  GpuBench bench(gpu);
  const auto put = [&](const HostTensor& t) { return bench.put(t); };
  HostTensor actual = copy_of(start);
  const TensorView x = bench.put(start);
  launch(bench.context(), put, x, static_cast<std::int32_t>(active));
  bench.finish();
  bench.get(x, actual);
  EXPECT_LT(worst(decode(actual.view()), decode(expected.view())), 2e-6) << heads << " of " << dim;
  // What follows the heads, and the row that is not active, are left alone.
  const float* was = start.view().as<const float>();
  const float* is = actual.view().as<const float>();
  for (std::int64_t r = 0; r < n; ++r) {
    const std::int64_t from = r < active ? (heads + kv_heads) * dim : 0;
    EXPECT_EQ(std::memcmp(is + r * width + from, was + r * width + from,
                          static_cast<std::size_t>(width - from) * sizeof(float)), 0);
  }
  const TensorView again = bench.put(start);
  launch(bench.context(), put, again.rows(2, 1), 1);
  bench.finish();
  HostTensor alone = copy_of(start);
  bench.get(again, alone);
  EXPECT_EQ(std::memcmp(alone.view().as<float>() + 2 * width, is + 2 * width,
                        static_cast<std::size_t>(width) * sizeof(float)), 0);
}

TEST(CudaOps, HeadNormAgreesWithTheReferenceAndLeavesTheRestAlone) {
  HF_GPU_OR_SKIP(gpu);
  check_head_norm(gpu, 32, 4, 128, DType::kBF16);
  check_head_norm(gpu, 3, 1, 20, DType::kF32);
  check_head_norm(gpu, 1, 1, 256, DType::kBF16);
}

TEST(CudaOps, SiluGateAgreesWithTheReference) {
  HF_GPU_OR_SKIP(gpu);
  base::Rng rng(11);
  const std::int64_t n = 7, inner = 773;
  const HostTensor x = random_tensor(rng, DType::kF32, {n, 2 * inner}, 8.0f);
  x.view().as<float>()[3] = -200.0f;  // exp overflows
  x.view().as<float>()[4] = 200.0f;
  const HostTensor active = i32_tensor({5});
  HostTensor expected(DType::kF32, {n, inner}), actual(DType::kF32, {n, inner});
  poison(expected);
  poison(actual);
  testing::Runner cpu(make_cpu_reference_kernels());
  silu_gate(cpu.context(), {x.view(), expected.view(), active.view()}).value();
  GpuBench bench(gpu);
  const TensorView out = bench.put(actual);
  silu_gate(bench.context(), {bench.put(x), out, bench.put(active)}).value();
  bench.finish();
  bench.get(out, actual);
  EXPECT_LT(worst(decode(actual.view()), decode(expected.view())), 1e-6);
}

TEST(CudaOps, WeightsOverAllExpertsAreThoseOfTheReference) {
  HF_GPU_OR_SKIP(gpu);
  base::Rng rng(12);
  const std::int64_t n = 40, experts = 128, k = 8;
  const HostTensor logits = random_tensor(rng, DType::kF32, {n, experts}, 4.0f);
  for (std::int64_t i = 0; i < experts; ++i) logits.view().as<float>()[experts + i] = 0.25f;
  logits.view().as<float>()[2 * experts + 3] = NAN;
  logits.view().as<float>()[3 * experts + 9] = INFINITY;
  const HostTensor active = i32_tensor({n});
  HostTensor ids(DType::kI32, {n, k}), gpu_ids(DType::kI32, {n, k});
  HostTensor weights(DType::kF32, {n, k}), gpu_weights(DType::kF32, {n, k});
  poison(gpu_ids);
  poison(gpu_weights);
  testing::Runner cpu(make_cpu_reference_kernels());
  router_top_k(cpu.context(), {logits.view(), ids.view(), weights.view(), active.view(), true})
      .value();
  GpuBench bench(gpu);
  const TensorView id_view = bench.put(gpu_ids);
  const TensorView weight_view = bench.put(gpu_weights);
  router_top_k(bench.context(),
               {bench.put(logits), id_view, weight_view, bench.put(active), true})
      .value();
  bench.finish();
  bench.get(id_view, gpu_ids);
  bench.get(weight_view, gpu_weights);
  EXPECT_EQ(std::memcmp(gpu_ids.view().address, ids.view().address, ids.bytes()), 0);
  EXPECT_LT(worst(decode(gpu_weights.view()), decode(weights.view())), 1e-6);
  float sum = 0.0f;
  for (std::int64_t i = 0; i < k; ++i) sum += gpu_weights.view().as<float>()[i];
  EXPECT_LT(sum, 0.999f);  // over all, not over those that were picked
}

}  // namespace
}  // namespace holdfast::ops
