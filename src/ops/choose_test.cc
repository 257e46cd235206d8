// choose on the CPU: its exponential, its draws against running sums as one would write them, and
// the op of both sets of kernels against the host's function, bit by bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "device/cpu/cpu_device.h"
#include "ops/choose_math.h"
#include "ops/host_tensor.h"

namespace holdfast::ops {
namespace {

using tensor::DType;
using testing::HostTensor;

std::vector<float> random_logits(std::int64_t vocab, std::uint64_t seed) {
  base::Rng rng(seed);
  std::vector<float> logits(static_cast<std::size_t>(vocab));
  for (float& logit : logits) logit = static_cast<float>(16.0 * rng.next_unit() - 8.0);
  return logits;
}

TEST(Choose, TheExponentialIsWithinTwoUnitsOfTheLastPlace) {
  EXPECT_EQ(choose_exp(0.0), 1.0);
  EXPECT_EQ(choose_exp(-708.5), 0.0);
  EXPECT_EQ(choose_exp(-std::numeric_limits<double>::infinity()), 0.0);
  base::Rng rng(4);
  for (int i = 0; i < 20000; ++i) {
    const double x = -std::exp(9.0 * rng.next_unit() - 2.5);  // -0.08 to -665
    const double expected = std::exp(x);
    EXPECT_NEAR(choose_exp(x) / expected, 1.0, 2 * std::numeric_limits<double>::epsilon()) << x;
  }
}

TEST(Choose, ADrawEndsWhereTheRunningSumPassesIt) {
  for (const std::int64_t vocab : {1, 15, 16, 17, 500, 4096, 4097, 9001}) {
    const std::vector<float> logits = random_logits(vocab, 7);
    const float largest = choose_row({logits.data(), vocab}).largest;
    std::vector<double> sums = {0.0};
    for (const float logit : logits) {
      sums.push_back(sums.back() + std::exp((double{logit} - double{largest}) / 0.75));
    }
    base::Rng rng(3);
    for (int i = 0; i < 40; ++i) {
      const double draw = i == 0 ? 0.0 : i == 1 ? 1.0 - 0x1.0p-53 : rng.next_unit();
      const Choice choice = choose_row({logits.data(), vocab, 0.75f, draw});
      const auto at = static_cast<std::size_t>(choice.id);
      const double slack = 1e-12 * sums.back();
      EXPECT_LE(sums[at], draw * sums.back() + slack) << vocab;
      EXPECT_GE(sums[at + 1], draw * sums.back() - slack) << vocab;
      EXPECT_EQ(choice.logit, logits[at]);
    }
  }
}

TEST(Choose, TheLargestIsTheFirstOfEqualsAndTheTotalIsAtTemperatureOne) {
  std::vector<float> logits = random_logits(5000, 9);
  logits[17] = logits[4700] = 20.0f;
  for (const float temperature : {0.0f, 0.5f, 1.0f}) {
    const Choice choice = choose_row({logits.data(), 5000, temperature, 0.5});
    double total = 0;
    for (const float logit : logits) total += std::exp(double{logit} - 20.0);
    EXPECT_NEAR(choice.total, total, 1e-12);
    EXPECT_EQ(choice.largest, 20.0f);
    EXPECT_EQ(choice.broken, -1);
  }
  EXPECT_EQ(choose_row({logits.data(), 5000}).id, 17);
  logits[4000] = std::numeric_limits<float>::infinity();
  logits[3000] = std::numeric_limits<float>::quiet_NaN();
  const Choice broken = choose_row({logits.data(), 5000, 1.0f, 0.5});
  EXPECT_EQ(broken.broken, 3000);
  EXPECT_TRUE(std::isnan(broken.logit));
}

TEST(Choose, BothSetsOfKernelsGiveEachActiveRowTheHostsChoice) {
  const std::int64_t n = 4, active = 3, vocab = 4500;
  HostTensor logits(DType::kF32, {n, vocab}), temperatures(DType::kF32, {n});
  HostTensor draws(DType::kI32, {n, 2});
  const HostTensor scratch(DType::kI32, {n, choose_chunks(vocab), kChooseWords});
  const auto values = random_logits(n * vocab, 11);
  std::memcpy(logits.view().address, values.data(), values.size() * 4);
  const double drawn[] = {0.0, 0.25, 0.875, 0.5};
  const float given[] = {0.0f, 1.0f, 0.6f, 1.0f};
  std::memcpy(draws.view().address, drawn, sizeof(drawn));
  std::memcpy(temperatures.view().address, given, sizeof(given));
  HostTensor rows(DType::kI32, {1});
  rows.as<std::int32_t>()[0] = active;
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream(2).value();
  for (const auto& kernels : {make_cpu_reference_kernels(), make_cpu_fast_kernels()}) {
    HostTensor choices(DType::kI32, {n, kChooseWords});
    std::memset(choices.view().address, 0xDD, choices.view().bytes());
    const Status chosen = choose({*stream, *kernels}, {.logits = logits.view(),
                                                       .temperatures = temperatures.view(),
                                                       .draws = draws.view(),
                                                       .scratch = scratch.view(),
                                                       .choices = choices.view(),
                                                       .active_rows = rows.view()});
    ASSERT_TRUE(chosen.ok());
    for (std::size_t r = 0; r < 3; ++r) {
      const Choice expected = choose_row({values.data() + r * 4500, vocab, given[r], drawn[r]});
      EXPECT_EQ(std::memcmp(choices.view().address + r * 32, &expected, 32), 0) << r;
    }
    EXPECT_EQ(static_cast<std::uint32_t>(choices.as<std::int32_t>()[3 * 8]), 0xDDDDDDDDu);
  }
}

}  // namespace
}  // namespace holdfast::ops
