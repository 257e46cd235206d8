// kv_write, paged_attention and router_top_k: against a naive computation in double precision, and
// bit for bit across batches, chunkings, page sizes and worker counts.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <limits>
#include <numeric>

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

struct AttentionCase {
  std::int64_t query_heads, kv_heads, dim;
  std::int64_t page_size;
  std::int64_t window;
  std::vector<std::int64_t> lengths;  // tokens of each sequence, all of them rows of the batch
  float range = 1.0f;
};

// Sequences whose rows all sit in one batch, their pages in a shuffled order.
struct AttentionData {
  AttentionCase shape;
  std::int64_t rows = 0;
  std::vector<std::int32_t> positions, sequences, slots, tables;
  std::int64_t blocks = 0, pages = 0;
  HostTensor qkv, sinks;

  AttentionData(const AttentionCase& c, base::Rng rng)
      : shape(c),
        rows(std::accumulate(c.lengths.begin(), c.lengths.end(), std::int64_t{0})),
        qkv(random_tensor(rng, DType::kF32, {rows, (c.query_heads + 2 * c.kv_heads) * c.dim},
                          c.range)),
        sinks(random_tensor(rng, DType::kBF16, {c.query_heads}, 2.0f)) {
    const std::int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
    blocks = (longest + c.page_size - 1) / c.page_size + 1;
    pages = blocks * std::ssize(c.lengths) + 3;
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[rng.next_below(i)]);
    }
    tables.assign(order.begin(), order.begin() + blocks * std::ssize(c.lengths));
    for (std::int32_t s = 0; s < std::ssize(c.lengths); ++s) {
      for (std::int32_t p = 0; p < c.lengths[s]; ++p) {
        positions.push_back(p);
        sequences.push_back(s);
        const std::int64_t page = tables[s * blocks + p / c.page_size];
        slots.push_back(static_cast<std::int32_t>(page * c.page_size + p % c.page_size));
      }
    }
  }

  // exact[row * Hq * d + ...] and, for the error bound, the largest |v| a head saw.
  std::vector<double> naive() const;
};

std::vector<double> AttentionData::naive() const {
  const AttentionCase& c = shape;
  const std::int64_t width = (c.query_heads + 2 * c.kv_heads) * c.dim;
  const auto sink = decode(sinks.view());
  const auto x = qkv.as<float>();
  std::vector<double> out(static_cast<std::size_t>(rows * c.query_heads * c.dim));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t h = 0; h < c.query_heads; ++h) {
      const std::int64_t kv = h / (c.query_heads / c.kv_heads);
      double denominator = std::exp(double{sink[h]});
      for (std::int64_t j = 0; j < rows; ++j) {
        const std::int64_t distance = positions[r] - positions[j];
        if (sequences[j] != sequences[r] || distance < 0) continue;
        if (c.window > 0 && distance >= c.window) continue;
        const float* key = &x[j * width + (c.query_heads + kv) * c.dim];
        const float* value = key + c.kv_heads * c.dim;
        double score = 0;
        for (std::int64_t i = 0; i < c.dim; ++i) {
          score += double{x[r * width + h * c.dim + i]} * key[i];
        }
        const double p = std::exp(score * 0.25);
        denominator += p;
        for (std::int64_t i = 0; i < c.dim; ++i) {
          out[(r * c.query_heads + h) * c.dim + i] += p * value[i];
        }
      }
      for (std::int64_t i = 0; i < c.dim; ++i) {
        out[(r * c.query_heads + h) * c.dim + i] /= denominator;
      }
    }
  }
  return out;
}

// Pages, and everything a launch points at.
struct AttentionRun {
  HostTensor keys, values, positions, sequences, slots, tables, active, out;

  AttentionRun(const AttentionData& data, std::int32_t active_count)
      : keys(DType::kF32, page_shape(data)),
        values(DType::kF32, page_shape(data)),
        positions(i32_tensor(data.positions)),
        sequences(i32_tensor(data.sequences)),
        slots(i32_tensor(data.slots)),
        tables(DType::kI32, {std::ssize(data.shape.lengths), data.blocks}),
        active(i32_tensor({active_count})),
        out(DType::kF32, {data.rows, data.shape.query_heads * data.shape.dim}) {
    std::ranges::copy(data.tables, tables.as<std::int32_t>().begin());
  }
  static Shape page_shape(const AttentionData& data) {
    return {data.pages, data.shape.page_size, data.shape.kv_heads, data.shape.dim};
  }

  // Rows [begin, begin + count) as a step of their own.
  Status attend(Runner& runner, const AttentionData& data, std::int64_t begin, std::int64_t count) {
    const TensorView rows = data.qkv.view().rows(begin, count);
    HF_TRY(kv_write(runner.context(), {.qkv = rows,
                                       .slot_mapping = slots.view().rows(begin, count),
                                       .key_pages = keys.view(),
                                       .value_pages = values.view(),
                                       .active_rows = active.view()}));
    return paged_attention(runner.context(),
                           {.qkv = rows,
                            .positions = positions.view().rows(begin, count),
                            .row_sequence = sequences.view().rows(begin, count),
                            .block_tables = tables.view(),
                            .key_pages = keys.view(),
                            .value_pages = values.view(),
                            .sinks = data.sinks.view(),
                            .out = out.view().rows(begin, count),
                            .active_rows = active.view(),
                            .window = data.shape.window,
                            .scale = 0.25f});
  }
};

const AttentionCase kAttentionCases[] = {
    {1, 1, 4, 1, 0, {1}},
    {8, 2, 32, 16, 0, {70, 3}},
    {8, 2, 32, 16, 32, {33, 31, 65}},
    {64, 8, 64, 32, 128, {140}},
    {6, 2, 20, 5, 0, {9, 150}},       // groups of 3, a dim that is no whole vector
    {22, 2, 64, 64, 7, {66}},         // groups of 11
    {4, 1, 256, 16, 0, {130}, 4.0f},  // the largest dim, scores of up to hundreds
    {2, 2, 8, 3, 1, {10}},            // a window of one key: its own
};

std::vector<std::unique_ptr<Runner>> all_runners() {
  std::vector<std::unique_ptr<Runner>> runners;
  runners.push_back(std::make_unique<Runner>(make_cpu_reference_kernels(), 1));
  for (int workers = 1; workers <= 3; ++workers) {
    runners.push_back(std::make_unique<Runner>(make_cpu_fast_kernels(), workers));
  }
  return runners;
}

// A score has absolute error (dim + 2) u scale |q| |k|, which becomes a relative error of its
// weight; a weighted mean of values of at most `range` adds (keys + 8) u. exp adds 2 u.
double attention_bound(const AttentionCase& c) {
  const double score = 0.25 * static_cast<double>(c.dim) * c.range * c.range;
  const double keys = static_cast<double>(*std::max_element(c.lengths.begin(), c.lengths.end()));
  return (2 * static_cast<double>(c.dim + 2) * score + keys + 16) * 0x1p-24 * c.range;
}

TEST(PagedAttention, EveryKernelIsWithinFloat32OfANaiveSumOverShuffledPages) {
  std::uint64_t seed = 1;
  for (const AttentionCase& c : kAttentionCases) {
    const AttentionData data(c, base::Rng(seed++));
    const auto exact = data.naive();
    for (const auto& runner : all_runners()) {
      AttentionRun run(data, static_cast<std::int32_t>(data.rows));
      ASSERT_TRUE(run.attend(*runner, data, 0, data.rows).ok());
      for (std::size_t i = 0; i < exact.size(); ++i) {
        ASSERT_NEAR(run.out.as<float>()[i], exact[i], attention_bound(c))
            << "element " << i << " of case " << seed - 2;
      }
    }
  }
}

TEST(PagedAttention, EveryInstructionSetOfThisMachineIsWithinTheBound) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (const AttentionCase& c : kAttentionCases) {
      const AttentionData data(c, base::Rng(5));
      const auto exact = data.naive();
      Runner runner(make_cpu_fast_kernels(), 1);
      AttentionRun run(data, static_cast<std::int32_t>(data.rows));
      ASSERT_TRUE(run.attend(runner, data, 0, data.rows).ok());
      for (std::size_t i = 0; i < exact.size(); ++i) {
        ASSERT_NEAR(run.out.as<float>()[i], exact[i], attention_bound(c))
            << hwy::TargetName(target);
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(PagedAttention, ARowHasTheSameBitsInAnyChunkingPageSizeAndWorkerCount) {
  for (const AttentionCase& c : kAttentionCases) {
    const AttentionData data(c, base::Rng(9));
    Runner single(make_cpu_fast_kernels(), 1);
    AttentionRun whole(data, static_cast<std::int32_t>(data.rows));
    ASSERT_TRUE(whole.attend(single, data, 0, data.rows).ok());
    for (int workers = 1; workers <= 3; ++workers) {
      Runner runner(make_cpu_fast_kernels(), workers);
      for (const std::int64_t chunk : {1, 5, 64}) {
        AttentionCase other_pages = c;
        other_pages.page_size = c.page_size + 3;
        const AttentionData paged(other_pages, base::Rng(9));
        AttentionRun run(paged, static_cast<std::int32_t>(chunk));
        for (std::int64_t begin = 0; begin < data.rows; begin += chunk) {
          const std::int64_t count = std::min(chunk, data.rows - begin);
          ASSERT_TRUE(run.attend(runner, paged, begin, count).ok());
        }
        EXPECT_TRUE(run.out.same_bytes(whole.out)) << workers << " workers, chunks of " << chunk;
      }
    }
  }
}

TEST(PagedAttention, RowsBeyondActiveRowsAreLeftAloneAndPaddingRowsAreZero) {
  const AttentionCase c{4, 2, 16, 4, 0, {6}};
  AttentionData data(c, base::Rng(2));
  data.positions[1] = -1;
  data.sequences[2] = 1;  // there is only sequence 0
  data.slots[1] = -1;
  for (const auto& runner : all_runners()) {
    AttentionRun run(data, 4);
    ASSERT_TRUE(run.attend(*runner, data, 0, data.rows).ok());
    const auto out = run.out.as<float>();
    for (int i = 0; i < 64; ++i) {
      EXPECT_NE(out[i], 0.0f);
      EXPECT_EQ(out[64 + i], 0.0f);
      EXPECT_EQ(out[128 + i], 0.0f);
      EXPECT_EQ(run.out.as<std::uint8_t>()[4 * 64 * 4 + i], 0xDD);
    }
  }
}

TEST(PagedAttention, APageThatIsOutOfRangeIsNotRead) {
  const AttentionCase c{4, 2, 16, 4, 0, {9}};
  AttentionData data(c, base::Rng(3));
  for (const auto& runner : all_runners()) {
    AttentionRun run(data, 9);
    ASSERT_TRUE(run.attend(*runner, data, 0, data.rows).ok());
    run.tables.as<std::int32_t>()[0] = 1 << 28;
    run.tables.as<std::int32_t>()[1] = -5;
    ASSERT_TRUE(paged_attention(runner->context(),
                                {.qkv = data.qkv.view(), .positions = run.positions.view(),
                                 .row_sequence = run.sequences.view(),
                                 .block_tables = run.tables.view(), .key_pages = run.keys.view(),
                                 .value_pages = run.values.view(), .sinks = data.sinks.view(),
                                 .out = run.out.view(), .active_rows = run.active.view(),
                                 .scale = 0.25f})
                    .ok());
    for (const float value : run.out.as<float>()) EXPECT_TRUE(std::isfinite(value));
    EXPECT_EQ(run.out.as<float>()[0], 0.0f);
    EXPECT_NE(run.out.as<float>()[8 * 64], 0.0f);
  }
}

TEST(PagedAttention, ASinkOfMinusInfinityMakesItAPlainSoftmax) {
  const AttentionCase c{2, 1, 8, 4, 0, {1}};
  AttentionData data(c, base::Rng(4));
  for (std::uint16_t& bits : data.sinks.as<std::uint16_t>()) bits = 0xFF80;
  for (const auto& runner : all_runners()) {
    AttentionRun run(data, 1);
    ASSERT_TRUE(run.attend(*runner, data, 0, 1).ok());
    for (int i = 0; i < 16; ++i) {
      EXPECT_FLOAT_EQ(run.out.as<float>()[i], data.qkv.as<float>()[3 * 8 + i % 8]);
    }
  }
}

TEST(PagedAttention, ANaNInAVisibleKeyOrValueReachesTheOutput) {
  const AttentionCase c{8, 1, 16, 4, 0, {3}};
  const std::int64_t width = 10 * 16;
  for (const std::int64_t column : {8 * 16, 9 * 16}) {
    AttentionData damaged(c, base::Rng(6));
    damaged.qkv.as<float>()[width + column] = std::numeric_limits<float>::quiet_NaN();
    for (const auto& runner : all_runners()) {
      AttentionRun run(damaged, 3);
      ASSERT_TRUE(run.attend(*runner, damaged, 0, 3).ok());
      EXPECT_TRUE(std::isfinite(run.out.as<float>()[0])) << "row 0 does not see it";
      EXPECT_TRUE(std::isnan(run.out.as<float>()[8 * 16])) << "column " << column;
      EXPECT_TRUE(std::isnan(run.out.as<float>()[2 * 8 * 16])) << "column " << column;
    }
  }
}

TEST(PagedAttention, HeadsThatDoNotFitAreRefusedWithBothNumbers) {
  Runner runner(make_cpu_fast_kernels());
  const AttentionData data({4, 2, 16, 4, 0, {3}}, base::Rng(1));
  AttentionRun run(data, 3);
  HostTensor narrow(DType::kF32, {3, 100});
  const Status status =
      kv_write(runner.context(), {.qkv = narrow.view(), .slot_mapping = run.slots.view(),
                                  .key_pages = run.keys.view(), .value_pages = run.values.view(),
                                  .active_rows = run.active.view()});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  EXPECT_NE(status.error().message().find("100"), std::string::npos);
  EXPECT_NE(status.error().message().find("2 kv heads of 16"), std::string::npos);
}

// ---- router_top_k

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routed route(Runner& runner, const std::vector<float>& logits, std::int64_t k) {
  const auto experts = static_cast<std::int64_t>(logits.size());
  HostTensor row(DType::kF32, {1, experts});
  std::ranges::copy(logits, row.as<float>().begin());
  HostTensor ids(DType::kI32, {1, k});
  HostTensor weights(DType::kF32, {1, k});
  const HostTensor active = i32_tensor({1});
  EXPECT_TRUE(router_top_k(runner.context(), {.logits = row.view(), .ids = ids.view(),
                                              .weights = weights.view(),
                                              .active_rows = active.view()})
                  .ok());
  return {{ids.as<std::int32_t>().begin(), ids.as<std::int32_t>().end()},
          {weights.as<float>().begin(), weights.as<float>().end()}};
}

TEST(RouterTopK, TakesTheLargestFirstAndASoftmaxOverThem) {
  for (const auto& runner : all_runners()) {
    const Routed routed = route(*runner, {0.5f, 3.0f, -1.0f, 2.0f}, 3);
    EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{1, 3, 0}));
    const double sum = 1 + std::exp(-1.0) + std::exp(-2.5);
    EXPECT_NEAR(routed.weights[0], 1 / sum, 1e-7);
    EXPECT_NEAR(routed.weights[1], std::exp(-1.0) / sum, 1e-7);
    EXPECT_NEAR(routed.weights[2], std::exp(-2.5) / sum, 1e-7);
  }
}

TEST(RouterTopK, TiesGoToTheLowerIndex) {
  for (const auto& runner : all_runners()) {
    EXPECT_EQ(route(*runner, {1, 2, 2, 1, 2, 1}, 4).ids, (std::vector<std::int32_t>{1, 2, 4, 0}));
    EXPECT_EQ(route(*runner, {0.0f, -0.0f, 0.0f}, 2).ids, (std::vector<std::int32_t>{0, 1}));
  }
}

TEST(RouterTopK, NaNCountsAsMinusInfinityAndTheWeightsStayNumbers) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const auto& runner : all_runners()) {
    const Routed one = route(*runner, {kNaN, 1.0f, kNaN, -kInf}, 3);
    EXPECT_EQ(one.ids, (std::vector<std::int32_t>{1, 0, 2}));
    EXPECT_EQ(one.weights, (std::vector<float>{1, 0, 0}));
    const Routed all = route(*runner, {kNaN, kNaN, kNaN, kNaN}, 2);
    EXPECT_EQ(all.ids, (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(all.weights, (std::vector<float>{0.5f, 0.5f}));
    const Routed infinite = route(*runner, {kInf, 0.0f, kInf}, 3);
    EXPECT_EQ(infinite.weights, (std::vector<float>{0.5f, 0.5f, 0}));
  }
}

TEST(RouterTopK, MoreThanTheExpertsThatThereAreIsRefused) {
  Runner runner(make_cpu_fast_kernels());
  HostTensor logits(DType::kF32, {1, 3});
  HostTensor ids(DType::kI32, {1, 4});
  HostTensor weights(DType::kF32, {1, 4});
  const HostTensor active = i32_tensor({1});
  const Status status =
      router_top_k(runner.context(), {.logits = logits.view(), .ids = ids.view(),
                                      .weights = weights.view(), .active_rows = active.view()});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message(), "router_top_k: k is 4, must be 1 to 3 experts");
}

}  // namespace
}  // namespace holdfast::ops
