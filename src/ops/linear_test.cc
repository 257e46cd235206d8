// linear, rms_norm, embedding, gather_rows and rope: fast and reference kernels against double
// precision, with the bounds that summation in float32 has.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>

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

// Both sets of kernels, the fast one with 1, 2 and 3 workers.
std::vector<std::unique_ptr<Runner>> all_runners() {
  std::vector<std::unique_ptr<Runner>> runners;
  runners.push_back(std::make_unique<Runner>(make_cpu_reference_kernels(), 1));
  for (int workers = 1; workers <= 3; ++workers) {
    runners.push_back(std::make_unique<Runner>(make_cpu_fast_kernels(), workers));
  }
  return runners;
}

struct LinearCase {
  std::int64_t n, k, outputs;
  DType weight = DType::kBF16;
  bool bias = false, residual = false;
};

struct LinearData {
  LinearCase shape;
  HostTensor x, weight, bias, residual;

  LinearData(const LinearCase& c, base::Rng rng)
      : shape(c),
        x(random_tensor(rng, DType::kF32, {c.n, c.k})),
        weight(random_tensor(rng, c.weight, {c.outputs, c.k})),
        bias(random_tensor(rng, DType::kBF16, {c.outputs})),
        residual(random_tensor(rng, DType::kF32, {c.n, c.outputs})) {}

  LinearArgs args(const HostTensor& out, const HostTensor& active) const {
    return {.x = x.view(),
            .weight = weight.view(),
            .bias = shape.bias ? bias.view() : TensorView{},
            .residual = shape.residual ? residual.view() : TensorView{},
            .out = out.view(),
            .active_rows = active.view()};
  }
};

// |got - exact| <= (k + 2) u sum |x w| + 2 u |result|: recursive summation's worst case.
void expect_linear(const LinearData& data, std::span<const float> got) {
  const LinearCase& c = data.shape;
  const auto weight = decode(data.weight.view());
  const auto bias = decode(data.bias.view());
  for (std::int64_t r = 0; r < c.n; ++r) {
    for (std::int64_t o = 0; o < c.outputs; ++o) {
      double exact = 0;
      double magnitude = 0;
      for (std::int64_t k = 0; k < c.k; ++k) {
        const double product = double{data.x.as<float>()[r * c.k + k]} * weight[o * c.k + k];
        exact += product;
        magnitude += std::fabs(product);
      }
      if (c.bias) exact += bias[o];
      if (c.residual) exact += data.residual.as<float>()[r * c.outputs + o];
      magnitude += c.bias ? std::fabs(bias[o]) : 0;
      magnitude += c.residual ? std::fabs(data.residual.as<float>()[r * c.outputs + o]) : 0;
      const double bound = static_cast<double>(c.k + 2) * kUnit * magnitude;
      ASSERT_NEAR(got[r * c.outputs + o], exact, bound) << "row " << r << ", output " << o;
    }
  }
}

const LinearCase kLinearCases[] = {
    {1, 1, 1},
    {1, 64, 8},
    {2, 17, 5},
    {3, 256, 33, DType::kF32},
    {9, 100, 7, DType::kBF16, true, true},
    {13, 2880, 6, DType::kBF16, true, false},
    {8, 15, 64, DType::kF32, false, true},
    {1, 4096, 19, DType::kBF16, true, true},
};

TEST(Linear, EveryKernelStaysWithinFloat32SummationOfTheExactSum) {
  std::uint64_t seed = 1;
  for (const LinearCase& c : kLinearCases) {
    const LinearData data(c, base::Rng(seed++));
    const HostTensor active = i32_tensor({static_cast<std::int32_t>(c.n)});
    for (const auto& runner : all_runners()) {
      HostTensor out(DType::kF32, {c.n, c.outputs});
      ASSERT_TRUE(linear(runner->context(), data.args(out, active)).ok());
      expect_linear(data, out.as<float>());
    }
  }
}

TEST(Linear, ARowHasTheSameBitsAloneAndAmongOthersOnAnyWorkerCount) {
  for (const LinearCase& c : kLinearCases) {
    const LinearData data(c, base::Rng(7));
    const HostTensor all = i32_tensor({static_cast<std::int32_t>(c.n)});
    const HostTensor one = i32_tensor({1});
    HostTensor expected(DType::kF32, {c.n, c.outputs});
    for (int workers = 1; workers <= 3; ++workers) {
      Runner runner(make_cpu_fast_kernels(), workers);
      HostTensor together(DType::kF32, {c.n, c.outputs});
      ASSERT_TRUE(linear(runner.context(), data.args(together, all)).ok());
      HostTensor alone(DType::kF32, {c.n, c.outputs});
      for (std::int64_t r = 0; r < c.n; ++r) {
        LinearArgs args = data.args(alone, one);
        args.x = args.x.rows(r, 1);
        args.out = args.out.rows(r, 1);
        if (!args.residual.empty()) args.residual = args.residual.rows(r, 1);
        ASSERT_TRUE(linear(runner.context(), args).ok());
      }
      EXPECT_TRUE(together.same_bytes(alone)) << workers << " workers";
      if (workers == 1) std::ranges::copy(together.as<float>(), expected.as<float>().begin());
      EXPECT_TRUE(together.same_bytes(expected)) << workers << " workers";
    }
  }
}

TEST(Linear, EveryInstructionSetOfThisMachineStaysWithinTheBound) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (const LinearCase& c : kLinearCases) {
      const LinearData data(c, base::Rng(3));
      Runner runner(make_cpu_fast_kernels(), 1);
      HostTensor out(DType::kF32, {c.n, c.outputs});
      const HostTensor active = i32_tensor({static_cast<std::int32_t>(c.n)});
      ASSERT_TRUE(linear(runner.context(), data.args(out, active)).ok());
      expect_linear(data, out.as<float>());
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(Linear, ActiveRowsIsReadWhenTheKernelRunsAndLeavesOtherRowsAlone) {
  const LinearCase c{5, 64, 9, DType::kBF16, true};
  const LinearData data(c, base::Rng(4));
  for (const auto& runner : all_runners()) {
    for (const std::int32_t active_count : {3, 0, -7, 99}) {
      HostTensor active = i32_tensor({active_count});
      HostTensor out(DType::kF32, {c.n, c.outputs});
      const HostTensor untouched(DType::kF32, {c.n, c.outputs});
      ASSERT_TRUE(linear(runner->context(), data.args(out, active)).ok());
      const std::int64_t rows = std::clamp<std::int64_t>(active_count, 0, c.n);
      for (std::int64_t i = 0; i < c.n * c.outputs; ++i) {
        const bool same = std::memcmp(&out.as<float>()[i], &untouched.as<float>()[i], 4) == 0;
        ASSERT_EQ(same, i >= rows * c.outputs) << "element " << i << " with " << active_count;
      }
    }
  }
}

TEST(Linear, ResidualMayBeTheOutput) {
  const LinearCase c{4, 32, 10, DType::kBF16, true, true};
  const LinearData data(c, base::Rng(5));
  const HostTensor active = i32_tensor({4});
  for (const auto& runner : all_runners()) {
    HostTensor apart(DType::kF32, {4, 10});
    ASSERT_TRUE(linear(runner->context(), data.args(apart, active)).ok());
    HostTensor in_place(DType::kF32, {4, 10});
    std::ranges::copy(data.residual.as<float>(), in_place.as<float>().begin());
    LinearArgs args = data.args(in_place, active);
    args.residual = in_place.view();
    ASSERT_TRUE(linear(runner->context(), args).ok());
    EXPECT_TRUE(apart.same_bytes(in_place));
  }
}

TEST(Linear, WrongOperandsAreNamedWithBothShapes) {
  const LinearData data({3, 8, 5, DType::kBF16, true}, base::Rng(6));
  Runner runner(make_cpu_reference_kernels());
  HostTensor out(DType::kF32, {3, 6});
  const HostTensor active = i32_tensor({3});
  const Status status = linear(runner.context(), data.args(out, active));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  EXPECT_EQ(status.error().message(), "linear: operand out is f32 [3, 6], must be f32 [3, 5]");
  LinearArgs missing = data.args(out, active);
  missing.weight = TensorView{};
  missing.weight.shape = Shape{5, 8};
  EXPECT_NE(linear(runner.context(), missing).error().message().find("weight is missing"),
            std::string::npos);
  HostTensor overlap(DType::kF32, {3, 8});
  LinearArgs aliased = data.args(out, active);
  aliased.weight.shape = Shape{8, 8};
  aliased.bias = TensorView{};
  aliased.out = aliased.x;
  EXPECT_NE(linear(runner.context(), aliased).error().message().find("overlap"),
            std::string::npos);
}

TEST(RmsNorm, EveryKernelStaysWithinFloat32SummationOfTheFormula) {
  for (const std::int64_t hidden : {1, 7, 16, 64, 100, 2880}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      base::Rng rng(static_cast<std::uint64_t>(hidden));
      const HostTensor x = random_tensor(rng, DType::kF32, {5, hidden}, 3.0f);
      const HostTensor weight = random_tensor(rng, dtype, {hidden});
      const HostTensor active = i32_tensor({4});
      for (const auto& runner : all_runners()) {
        HostTensor out(DType::kF32, {5, hidden});
        ASSERT_TRUE(rms_norm(runner->context(), {.x = x.view(), .weight = weight.view(),
                                                 .out = out.view(), .active_rows = active.view()})
                        .ok());
        const auto w = decode(weight.view());
        for (std::int64_t r = 0; r < 4; ++r) {
          double squares = 0;
          for (std::int64_t h = 0; h < hidden; ++h) {
            squares += std::pow(double{x.as<float>()[r * hidden + h]}, 2);
          }
          const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + 1e-5);
          // The mean square has relative error hidden * u at most, half of which is left by the
          // root.
          const double relative = (static_cast<double>(hidden) / 2 + 8) * kUnit;
          for (std::int64_t h = 0; h < hidden; ++h) {
            const double exact = x.as<float>()[r * hidden + h] * scale * w[h];
            ASSERT_NEAR(out.as<float>()[r * hidden + h], exact,
                        relative * std::fabs(exact) + 1e-45);
          }
        }
        EXPECT_EQ(out.as<std::uint8_t>()[4 * hidden * 4], 0xDD) << "row 4 is not active";
      }
    }
  }
}

TEST(RmsNorm, OutMayBeX) {
  base::Rng rng(1);
  const HostTensor x = random_tensor(rng, DType::kF32, {2, 37});
  const HostTensor weight = random_tensor(rng, DType::kBF16, {37});
  const HostTensor active = i32_tensor({2});
  for (const auto& runner : all_runners()) {
    HostTensor apart(DType::kF32, {2, 37});
    HostTensor in_place(DType::kF32, {2, 37});
    std::ranges::copy(x.as<float>(), in_place.as<float>().begin());
    RmsNormArgs args{.x = x.view(), .weight = weight.view(), .out = apart.view(),
                     .active_rows = active.view()};
    ASSERT_TRUE(rms_norm(runner->context(), args).ok());
    args.x = args.out = in_place.view();
    ASSERT_TRUE(rms_norm(runner->context(), args).ok());
    EXPECT_TRUE(apart.same_bytes(in_place));
  }
}

TEST(Embedding, CopiesItsRowExactlyAndGivesZerosForAnUnknownId) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    base::Rng rng(2);
    const HostTensor table = random_tensor(rng, dtype, {11, 19});
    const auto values = decode(table.view());
    const HostTensor ids = i32_tensor({10, 0, 11, -1, 3, 3});
    const HostTensor active = i32_tensor({5});
    for (const auto& runner : all_runners()) {
      HostTensor out(DType::kF32, {6, 19});
      ASSERT_TRUE(embedding(runner->context(), {.ids = ids.view(), .table = table.view(),
                                                .out = out.view(), .active_rows = active.view()})
                      .ok());
      for (std::int64_t i = 0; i < 5 * 19; ++i) {
        const std::int64_t id = ids.as<std::int32_t>()[i / 19];
        const float expected = id < 0 || id > 10 ? 0.0f : values[id * 19 + i % 19];
        ASSERT_EQ(out.as<float>()[i], expected);
      }
      EXPECT_EQ(out.as<std::uint8_t>()[5 * 19 * 4], 0xDD);
    }
  }
}

TEST(GatherRows, CopiesTheNamedRowsAndGivesZerosForOneThatIsNotThere) {
  base::Rng rng(3);
  const HostTensor x = random_tensor(rng, DType::kF32, {4, 5});
  const HostTensor rows = i32_tensor({3, 4, 0});
  const HostTensor active = i32_tensor({2});
  for (const auto& runner : all_runners()) {
    HostTensor out(DType::kF32, {3, 5});
    ASSERT_TRUE(gather_rows(runner->context(), {.x = x.view(), .rows = rows.view(),
                                                .out = out.view(), .active_rows = active.view()})
                    .ok());
    for (int i = 0; i < 5; ++i) EXPECT_EQ(out.as<float>()[i], x.as<float>()[15 + i]);
    for (int i = 5; i < 10; ++i) EXPECT_EQ(out.as<float>()[i], 0.0f);
    EXPECT_EQ(out.as<std::uint8_t>()[10 * 4], 0xDD);
  }
}

TEST(Rope, RotatesHalvesByTheRowsPositionAndLeavesOtherHeads) {
  for (const std::int64_t dim : {2, 10, 32, 64}) {
    base::Rng rng(4);
    const HostTensor original = random_tensor(rng, DType::kF32, {4, 3 * dim + 1});
    const HostTensor cosine = random_tensor(rng, DType::kF32, {9, dim / 2});
    const HostTensor sine = random_tensor(rng, DType::kF32, {9, dim / 2});
    const HostTensor positions = i32_tensor({8, 9, 0, 5});
    const HostTensor active = i32_tensor({3});
    const std::int64_t width = 3 * dim + 1;
    for (const auto& runner : all_runners()) {
      HostTensor x(DType::kF32, {4, width});
      std::ranges::copy(original.as<float>(), x.as<float>().begin());
      ASSERT_TRUE(rope(runner->context(), {.x = x.view(), .positions = positions.view(),
                                           .cos_table = cosine.view(), .sin_table = sine.view(),
                                           .active_rows = active.view(), .head_count = 2,
                                           .head_dim = dim})
                      .ok());
      for (std::int64_t i = 0; i < 4 * width; ++i) {
        const std::int64_t r = i / width;
        const std::int64_t column = i % width;
        const std::int64_t position = positions.as<std::int32_t>()[r];
        double exact = original.as<float>()[i];
        if (r < 3 && position < 9 && column < 2 * dim) {
          const std::int64_t half = dim / 2;
          const bool low = column % dim < half;
          const std::int64_t t = position * half + column % dim % half;
          const double other = original.as<float>()[low ? i + half : i - half];
          exact = exact * cosine.as<float>()[t] + (low ? -1 : 1) * other * sine.as<float>()[t];
        }
        ASSERT_NEAR(x.as<float>()[i], exact, 4 * kUnit) << "row " << r << ", column " << column;
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::ops
