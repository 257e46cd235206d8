// head_norm, silu_gate and router_top_k over all experts: both sets of kernels against double
// precision, rows that are not active, operands that do not fit, devices without a kernel.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <functional>
#include <limits>

#include "ops/host_tensor.h"

namespace holdfast::ops {
namespace {

using testing::decode;
using testing::DType;
using testing::HostTensor;
using testing::i32_tensor;
using testing::random_tensor;
using testing::Runner;
using testing::Shape;

constexpr double kUnit = 0x1p-24;  // float32 unit roundoff

// Runs `check` with the reference kernels, and with the fast ones on 1 to 3 workers and on every
// instruction set of this machine.
void for_all_kernels(const std::function<void(Runner&)>& check) {
  Runner reference(make_cpu_reference_kernels(), 1);
  check(reference);
  for (int workers = 1; workers <= 3; ++workers) {
    Runner fast(make_cpu_fast_kernels(), workers);
    check(fast);
  }
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    Runner fast(make_cpu_fast_kernels(), 1);
    check(fast);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Rows of 3 query heads, 2 key heads and 1 value head.
struct Heads {
  std::int64_t n, dim;
  HostTensor x, query_weight, key_weight;

  Heads(std::int64_t rows, std::int64_t head_dim, DType weight, base::Rng rng = base::Rng(7))
      : n(rows),
        dim(head_dim),
        x(random_tensor(rng, DType::kF32, {rows, 6 * head_dim}, 3.0f)),
        query_weight(random_tensor(rng, weight, {head_dim})),
        key_weight(random_tensor(rng, weight, {head_dim})) {}
  HeadNormArgs args(const HostTensor& rows, const HostTensor& active) const {
    return {.x = rows.view(), .query_weight = query_weight.view(),
            .key_weight = key_weight.view(), .active_rows = active.view(),
            .query_head_count = 3, .key_head_count = 2, .eps = 1e-6f};
  }
  HostTensor copy() const {
    HostTensor out(DType::kF32, x.view().shape);
    std::ranges::copy(x.as<float>(), out.as<float>().begin());
    return out;
  }
};

// A mean of `dim` squares has (dim + 2) u, of which a root keeps half; three products more.
void expect_normalised(const Heads& heads, const HostTensor& got, std::int64_t rows) {
  const auto query = decode(heads.query_weight.view());
  const auto key = decode(heads.key_weight.view());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t h = 0; h < 6; ++h) {
      const std::int64_t at = (r * 6 + h) * heads.dim;
      double squares = 0;
      for (std::int64_t i = 0; i < heads.dim; ++i) {
        squares += std::pow(double{heads.x.as<float>()[at + i]}, 2);
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(heads.dim) + 1e-6);
      for (std::int64_t i = 0; i < heads.dim; ++i) {
        const double x = heads.x.as<float>()[at + i];
        const double exact = h < 3 ? x * scale * query[i] : h < 5 ? x * scale * key[i] : x;
        const double bound = (static_cast<double>(heads.dim) / 2 + 6) * kUnit * std::fabs(exact);
        ASSERT_NEAR(got.as<float>()[at + i], exact, bound) << "head " << h << " element " << i;
      }
    }
  }
}

TEST(HeadNorm, QueryAndKeyHeadsAreNormalisedEachUnderItsWeightAndValuesStay) {
  for (const std::int64_t dim : {1, 7, 32, 128}) {
    for (const DType weight : {DType::kBF16, DType::kF32}) {
      const Heads heads(5, dim, weight);
      for_all_kernels([&](Runner& runner) {
        const HostTensor got = heads.copy();
        const HostTensor active = i32_tensor({5});
        ASSERT_TRUE(head_norm(runner.context(), heads.args(got, active)).ok());
        expect_normalised(heads, got, 5);
      });
    }
  }
}

TEST(HeadNorm, RowsBeyondActiveRowsAreLeftAlone) {
  const Heads heads(4, 16, DType::kBF16);
  for_all_kernels([&](Runner& runner) {
    const HostTensor got = heads.copy();
    const HostTensor active = i32_tensor({3});
    ASSERT_TRUE(head_norm(runner.context(), heads.args(got, active)).ok());
    expect_normalised(heads, got, 3);
    for (int i = 3 * 96; i < 4 * 96; ++i) EXPECT_EQ(got.as<float>()[i], heads.x.as<float>()[i]);
  });
}

TEST(HeadNorm, HeadsThatDoNotFitAreRefusedWithBothNumbers) {
  Runner runner(make_cpu_fast_kernels());
  const Heads heads(2, 16, DType::kBF16);
  const HostTensor active = i32_tensor({2});
  const HostTensor rows = heads.copy();
  HeadNormArgs args = heads.args(rows, active);
  args.key_head_count = 4;
  const Status status = head_norm(runner.context(), args);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  EXPECT_NE(status.error().message().find("3 query and 4 key heads of 16 do not fit"),
            std::string::npos);
  args = heads.args(rows, active);
  const HostTensor other(DType::kBF16, Shape{15});
  args.key_weight = other.view();
  EXPECT_NE(head_norm(runner.context(), args).error().message().find("operand key_weight"),
            std::string::npos);
}

HostTensor gated(Runner& runner, const HostTensor& x, std::int32_t active_count) {
  HostTensor out(DType::kF32, {x.view().shape[0], x.view().shape[1] / 2});
  const HostTensor active = i32_tensor({active_count});
  EXPECT_TRUE(silu_gate(runner.context(), {.x = x.view(), .out = out.view(),
                                           .active_rows = active.view()})
                  .ok());
  return out;
}

TEST(SiluGate, IsSiluOfTheFirstHalfTimesTheSecond) {
  for (const std::int64_t inner : {1, 8, 31, 48}) {
    base::Rng rng(3);
    const HostTensor x = random_tensor(rng, DType::kF32, {3, 2 * inner}, 20.0f);
    for_all_kernels([&](Runner& runner) {
      const HostTensor got = gated(runner, x, 3);
      for (std::int64_t r = 0; r < 3; ++r) {
        for (std::int64_t i = 0; i < inner; ++i) {
          const double gate = x.as<float>()[r * 2 * inner + i];
          const double up = x.as<float>()[r * 2 * inner + inner + i];
          const double exact = gate / (1 + std::exp(-gate)) * up;
          // exp 2 u of its argument's rounding and its own, one sum, one quotient, one product.
          ASSERT_NEAR(got.as<float>()[r * inner + i], exact, 8 * kUnit * std::fabs(exact));
        }
      }
    });
  }
}

TEST(SiluGate, LargeGatesAndNaNsComeThrough) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  HostTensor x(DType::kF32, {1, 8});
  std::ranges::copy(std::vector<float>{1e30f, -1e30f, kNaN, -200.0f, 2, 2, 2, 2},
                    x.as<float>().begin());
  for_all_kernels([&](Runner& runner) {
    const HostTensor got = gated(runner, x, 1);
    EXPECT_EQ(got.as<float>()[0], 2e30f);
    EXPECT_EQ(got.as<float>()[1], 0.0f);
    EXPECT_TRUE(std::isnan(got.as<float>()[2]));
    EXPECT_EQ(got.as<float>()[3], 0.0f);
  });
}

TEST(SiluGate, RowsBeyondActiveRowsAreLeftAloneAndShapesMustFit) {
  base::Rng rng(4);
  const HostTensor x = random_tensor(rng, DType::kF32, {2, 16});
  for_all_kernels([&](Runner& runner) {
    const HostTensor got = gated(runner, x, 1);
    EXPECT_NE(got.as<std::uint8_t>()[0], 0xDD);
    EXPECT_EQ(got.as<std::uint8_t>()[8 * 4], 0xDD);
  });
  Runner runner(make_cpu_fast_kernels());
  const HostTensor out(DType::kF32, Shape{2, 7});
  const HostTensor active = i32_tensor({2});
  const Status status = silu_gate(runner.context(), {.x = x.view(), .out = out.view(),
                                                     .active_rows = active.view()});
  EXPECT_NE(status.error().message().find("operand x is f32 [2, 16], must be f32 [2, 14]"),
            std::string::npos);
}

TEST(RouterTopK, OverAllTheWeightsAreThoseOfASoftmaxOverEveryExpert) {
  HostTensor logits(DType::kF32, {1, 5});
  std::ranges::copy(std::vector<float>{0.5f, 3.0f, -1.0f, 2.0f, NAN}, logits.as<float>().begin());
  const double sum = std::exp(0.5) + std::exp(3.0) + std::exp(-1.0) + std::exp(2.0);
  for_all_kernels([&](Runner& runner) {
    const HostTensor ids(DType::kI32, Shape{1, 2});
    const HostTensor weights(DType::kF32, Shape{1, 2});
    const HostTensor active = i32_tensor({1});
    ASSERT_TRUE(router_top_k(runner.context(), {.logits = logits.view(), .ids = ids.view(),
                                                .weights = weights.view(),
                                                .active_rows = active.view(), .over_all = true})
                    .ok());
    EXPECT_EQ(ids.as<std::int32_t>()[0], 1);
    EXPECT_EQ(ids.as<std::int32_t>()[1], 3);
    EXPECT_NEAR(weights.as<float>()[0], std::exp(3.0) / sum, 1e-7);
    EXPECT_NEAR(weights.as<float>()[1], std::exp(2.0) / sum, 1e-7);
  });
}

// What a device is that has none of the newer ops.
class FewKernels final : public Kernels {
 public:
  Status embedding(device::Stream&, const EmbeddingArgs&) override { return {}; }
  Status rms_norm(device::Stream&, const RmsNormArgs&) override { return {}; }
  Status linear(device::Stream&, const LinearArgs&) override { return {}; }
  Status rope(device::Stream&, const RopeArgs&) override { return {}; }
  Status kv_write(device::Stream&, const KvWriteArgs&) override { return {}; }
  Status paged_attention(device::Stream&, const PagedAttentionArgs&) override { return {}; }
  Status router_top_k(device::Stream&, const RouterTopKArgs&) override { return {}; }
  Status gather_rows(device::Stream&, const GatherRowsArgs&) override { return {}; }
};

TEST(Kernels, WhatADeviceLacksIsUnsupportedByName) {
  Runner runner(std::make_unique<FewKernels>());
  const auto refused = [](const Status& status, const char* op) {
    EXPECT_EQ(status.error().code(), ErrorCode::kUnsupported);
    EXPECT_EQ(status.error().message().find(op), 0u) << status.error().message();
  };
  const Heads heads(2, 16, DType::kBF16);
  const HostTensor rows = heads.copy();
  const HostTensor active = i32_tensor({2});
  refused(head_norm(runner.context(), heads.args(rows, active)), "head_norm");
  const HostTensor out(DType::kF32, Shape{2, 48});
  refused(silu_gate(runner.context(), {.x = rows.view(), .out = out.view(),
                                       .active_rows = active.view()}),
          "silu_gate");
  const HostTensor ids(DType::kI32, Shape{2, 1});
  const HostTensor weights(DType::kF32, Shape{2, 1});
  refused(router_top_k(runner.context(), {.logits = rows.view(), .ids = ids.view(),
                                          .weights = weights.view(),
                                          .active_rows = active.view(), .over_all = true}),
          "router_top_k");
}

}  // namespace
}  // namespace holdfast::ops
