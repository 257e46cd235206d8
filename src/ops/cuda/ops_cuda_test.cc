// Every op on the GPU against the CPU's reference loops: fresh random inputs, outputs poisoned,
// row counts across the tile borders; and the bits of a row alone and among others.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/cuda/cuda_test_device.h"
#include "ops/choose_math.h"
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

// The largest error of linear in units of 2^-17 sqrt(sum of (x w)^2): x goes in as two bf16, so a
// product is off by up to 2^-17 of itself, in no one direction; f32 sums add less.
double worst_of_linear(const HostTensor& x, const HostTensor& weight, std::int64_t active,
                       const std::vector<float>& actual, const std::vector<float>& expected) {
  const std::vector<float> xs = decode(x.view());
  const std::vector<float> ws = decode(weight.view());
  const auto inputs = static_cast<std::size_t>(x.view().shape[1]);
  const auto outputs = static_cast<std::size_t>(weight.view().shape[0]);
  double most = 0;
  for (std::size_t r = 0; r < actual.size() / outputs; ++r) {
    for (std::size_t o = 0; o < outputs; ++o) {
      const double difference =
          std::abs(double{actual[r * outputs + o]} - double{expected[r * outputs + o]});
      if (r >= static_cast<std::size_t>(active)) {
        if (std::memcmp(&actual[r * outputs + o], &expected[r * outputs + o], 4) != 0) {
          return INFINITY;  // a row that is not active was written
        }
        continue;
      }
      double squares = 1e-9;
      for (std::size_t k = 0; k < inputs; ++k) {
        const double product = double{xs[r * inputs + k]} * double{ws[o * inputs + k]};
        squares += product * product;
      }
      const double error = difference / (std::sqrt(squares) / 131072.0);
      most = std::isfinite(error) ? std::max(most, error) : INFINITY;
    }
  }
  return most;
}

// Runs linear on both devices with the first `active` of `rows` rows.
struct LinearCase {
  std::int64_t rows, active, inputs, outputs;
  bool bias, residual, f32_weight;
};

void check_linear(device::Device& gpu, const LinearCase& c, std::uint64_t seed) {
  base::Rng rng(seed);
  const HostTensor x = random_tensor(rng, DType::kF32, {c.rows, c.inputs});
  const HostTensor weight = random_tensor(rng, c.f32_weight ? DType::kF32 : DType::kBF16,
                                          {c.outputs, c.inputs});
  const HostTensor bias = random_tensor(rng, DType::kBF16, {c.outputs});
  const HostTensor residual = random_tensor(rng, DType::kF32, {c.rows, c.outputs});
  const HostTensor active = i32_tensor({static_cast<std::int32_t>(c.active)});
  HostTensor expected(DType::kF32, {c.rows, c.outputs});
  HostTensor actual(DType::kF32, {c.rows, c.outputs});
  poison(expected);
  poison(actual);
  testing::Runner cpu(make_cpu_reference_kernels());
  LinearArgs args{.x = x.view(),
                  .weight = weight.view(),
                  .bias = c.bias ? bias.view() : TensorView{},
                  .residual = c.residual ? residual.view() : TensorView{},
                  .out = expected.view(),
                  .active_rows = active.view()};
  linear(cpu.context(), args).value();
  GpuBench bench(gpu);
  const TensorView out = bench.put(actual);
  args.x = bench.put(x);
  args.weight = bench.put(weight);
  if (c.bias) args.bias = bench.put(bias);
  if (c.residual) args.residual = bench.put(residual);
  args.active_rows = bench.put(active);
  args.out = out;
  linear(bench.context(), args).value();
  bench.finish();
  bench.get(out, actual);
  EXPECT_LT(worst_of_linear(x, weight, c.active, decode(actual.view()), decode(expected.view())),
            6.0)
      << c.rows << " rows, " << c.active << " active, " << c.inputs << " -> " << c.outputs;
}

TEST(CudaOps, LinearAgreesWithTheReferenceAtEveryTileBorder) {
  HF_GPU_OR_SKIP(gpu);
  std::uint64_t seed = 1;
  for (const std::int64_t active : {1, 7, 8, 9, 16, 17, 33, 64, 65, 130}) {
    check_linear(gpu, {130, active, 256, 100, true, false, false}, seed++);
  }
  check_linear(gpu, {3, 3, 40, 17, false, true, false}, seed++);
  check_linear(gpu, {70, 65, 2880, 640, true, true, false}, seed++);
  check_linear(gpu, {9, 9, 64, 16400, false, false, false}, seed++);
  check_linear(gpu, {40, 40, 64, 16400, true, false, false}, seed++);
  check_linear(gpu, {5, 4, 96, 32, true, false, true}, seed++);
}

// With tiles that blocks take one after the other, widths of every kind, and more than one row of x
// can be held at once.
TEST(CudaOps, OneRowOfLinearAgreesWithTheReference) {
  HF_GPU_OR_SKIP(gpu);
  std::uint64_t seed = 50;
  check_linear(gpu, {1, 1, 8, 3, true, true, false}, seed++);
  check_linear(gpu, {1, 1, 40, 100, false, true, false}, seed++);
  check_linear(gpu, {1, 1, 2880, 640, true, true, false}, seed++);
  check_linear(gpu, {1, 1, 4096, 48, true, true, false}, seed++);
  check_linear(gpu, {1, 1, 4104, 48, true, true, false}, seed++);
  check_linear(gpu, {1, 1, 136, 4240, true, true, false}, seed++);
  check_linear(gpu, {1, 1, 1416, 10000, false, false, false}, seed++);
  check_linear(gpu, {1, 1, 72, 40000, true, false, false}, seed++);
  check_linear(gpu, {1, 0, 2880, 640, true, true, false}, seed++);
  check_linear(gpu, {1, 0, 72, 40000, true, false, false}, seed++);
}

TEST(CudaOps, ARowOfLinearHasTheSameBitsAloneAndAmongOthers) {
  HF_GPU_OR_SKIP(gpu);
  base::Rng rng(77);
  const std::int64_t n = 130;
  const HostTensor x = random_tensor(rng, DType::kF32, {n, 512});
  const HostTensor weight = random_tensor(rng, DType::kBF16, {300, 512});
  GpuBench bench(gpu);
  const TensorView x_view = bench.put(x);
  const TensorView w_view = bench.put(weight);
  const auto run = [&](std::int64_t begin, std::int64_t count) {
    HostTensor out(DType::kF32, {count, 300});
    poison(out);
    const TensorView out_view = bench.put(out);
    const HostTensor active = i32_tensor({static_cast<std::int32_t>(count)});
    linear(bench.context(), {.x = x_view.rows(begin, count),
                             .weight = w_view,
                             .bias = {},
                             .residual = {},
                             .out = out_view,
                             .active_rows = bench.put(active)})
        .value();
    bench.finish();
    bench.get(out_view, out);
    return decode(out.view());
  };
  const std::vector<float> all = run(0, n);
  for (const std::int64_t row : {0, 1, 63, 64, 100, 129}) {
    const std::vector<float> alone = run(row, 1);
    for (std::size_t i = 0; i < 300; ++i) {
      ASSERT_EQ(alone[i], all[static_cast<std::size_t>(row) * 300 + i]) << "row " << row;
    }
  }
}

TEST(CudaOps, RowOpsAgreeWithTheReference) {
  HF_GPU_OR_SKIP(gpu);
  base::Rng rng(5);
  const std::int64_t n = 9;
  const std::int64_t hidden = 2880;
  const HostTensor active = i32_tensor({7});
  const HostTensor x = random_tensor(rng, DType::kF32, {n, hidden});
  const HostTensor norm = random_tensor(rng, DType::kBF16, {hidden});
  const HostTensor table = random_tensor(rng, DType::kBF16, {50, hidden});
  const HostTensor ids = i32_tensor({3, 49, 0, -1, 50, 7, 7, 1, 2});
  const auto compare = [&](const char* name, auto&& launch) {
    HostTensor expected(DType::kF32, {n, hidden});
    HostTensor actual(DType::kF32, {n, hidden});
    poison(expected);
    poison(actual);
    testing::Runner cpu(make_cpu_reference_kernels());
    launch(cpu.context(), [](const HostTensor& t) { return t.view(); }, expected.view());
    GpuBench bench(gpu);
    const TensorView out = bench.put(actual);
    launch(bench.context(), [&](const HostTensor& t) { return bench.put(t); }, out);
    bench.finish();
    bench.get(out, actual);
    EXPECT_LT(worst(decode(actual.view()), decode(expected.view())), 2e-6) << name;
  };
  compare("embedding", [&](const OpContext& c, auto&& at, const TensorView& out) {
    embedding(c, {at(ids), at(table), out, at(active)}).value();
  });
  compare("rms_norm", [&](const OpContext& c, auto&& at, const TensorView& out) {
    rms_norm(c, {at(x), at(norm), out, at(active)}).value();
  });
  compare("gather_rows", [&](const OpContext& c, auto&& at, const TensorView& out) {
    gather_rows(c, {at(x), at(ids), out, at(active)}).value();
  });
}

TEST(CudaOps, RopeAgreesWithTheReference) {
  HF_GPU_OR_SKIP(gpu);
  base::Rng rng(6);
  const HostTensor active = i32_tensor({3});
  const HostTensor positions = i32_tensor({0, 31, 40, 5});
  const HostTensor cosine = random_tensor(rng, DType::kF32, {32, 16});
  const HostTensor sine = random_tensor(rng, DType::kF32, {32, 16});
  const HostTensor start = random_tensor(rng, DType::kF32, {4, 5 * 32});
  HostTensor expected(DType::kF32, {4, 5 * 32});
  HostTensor actual(DType::kF32, {4, 5 * 32});
  std::copy_n(start.view().address, start.bytes(), expected.view().address);
  std::copy_n(start.view().address, start.bytes(), actual.view().address);
  testing::Runner cpu(make_cpu_reference_kernels());
  rope(cpu.context(), {expected.view(), positions.view(), cosine.view(), sine.view(),
                       active.view(), 3, 32})
      .value();
  GpuBench bench(gpu);
  const TensorView out = bench.put(actual);
  rope(bench.context(), {out, bench.put(positions), bench.put(cosine), bench.put(sine),
                         bench.put(active), 3, 32})
      .value();
  bench.finish();
  bench.get(out, actual);
  EXPECT_LT(worst(decode(actual.view()), decode(expected.view())), 1e-6);
}

TEST(CudaOps, RouterPicksTheSameExpertsAndWeights) {
  HF_GPU_OR_SKIP(gpu);
  base::Rng rng(7);
  const std::int64_t n = 40;
  HostTensor logits = random_tensor(rng, DType::kF32, {n, 48});
  for (std::int64_t i = 0; i < 48; ++i) logits.as<float>()[48 + i] = 0.25f;  // ties
  logits.as<float>()[2 * 48 + 3] = NAN;
  logits.as<float>()[3 * 48 + 9] = INFINITY;
  const HostTensor active = i32_tensor({n});
  HostTensor ids(DType::kI32, {n, 4});
  HostTensor weights(DType::kF32, {n, 4});
  HostTensor gpu_ids(DType::kI32, {n, 4});
  HostTensor gpu_weights(DType::kF32, {n, 4});
  poison(gpu_ids);
  poison(gpu_weights);
  testing::Runner cpu(make_cpu_reference_kernels());
  router_top_k(cpu.context(), {logits.view(), ids.view(), weights.view(), active.view()}).value();
  GpuBench bench(gpu);
  const TensorView id_view = bench.put(gpu_ids);
  const TensorView weight_view = bench.put(gpu_weights);
  router_top_k(bench.context(), {bench.put(logits), id_view, weight_view, bench.put(active)})
      .value();
  bench.finish();
  bench.get(id_view, gpu_ids);
  bench.get(weight_view, gpu_weights);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n) * 4; ++i) {
    ASSERT_EQ(gpu_ids.as<std::int32_t>()[i], ids.as<std::int32_t>()[i]) << i;
  }
  EXPECT_LT(worst(decode(gpu_weights.view()), decode(weights.view())), 1e-6);
}

// Query heads over key heads of `dim`; six rows at other positions each, `copies` times.
struct AttentionCase {
  std::int64_t heads, kv_heads, dim, window, copies = 1, blocks = 40;
};
std::vector<float> check_attention(device::Device& gpu, const AttentionCase& c) {
  base::Rng rng(static_cast<std::uint64_t>(c.heads * 1000 + c.dim + c.window));
  const std::int64_t n = 6 * c.copies;
  const std::int64_t page = 16;
  const std::int64_t page_count = 90;
  const HostTensor keys = random_tensor(rng, DType::kF32, {page_count, page, c.kv_heads, c.dim});
  const HostTensor values = random_tensor(rng, DType::kF32, {page_count, page, c.kv_heads, c.dim});
  const HostTensor sinks = random_tensor(rng, DType::kBF16, {c.heads});
  std::vector<std::int32_t> table;
  for (std::int64_t i = 0; i < 2 * c.blocks; ++i) {
    table.push_back(static_cast<std::int32_t>(rng.next_below(page_count)));
  }
  table[5] = -1;
  HostTensor tables(DType::kI32, {2, c.blocks});
  std::copy(table.begin(), table.end(), tables.as<std::int32_t>().begin());
  const std::int64_t width = (c.heads + 2 * c.kv_heads) * c.dim;
  const HostTensor six = random_tensor(rng, DType::kF32, {6, width}, 2.0f);
  const auto last = static_cast<std::int32_t>(c.blocks * page - 1);
  const std::int32_t six_positions[] = {0, 31, 32, last, -1, 300};
  const std::int32_t six_sequences[] = {0, 1, 0, 1, 0, 2};
  HostTensor qkv(DType::kF32, {n, width});
  HostTensor positions(DType::kI32, {n}), sequences(DType::kI32, {n});
  for (std::int64_t r = 0; r < n; ++r) {
    const std::int64_t of = r % 6;
    std::memcpy(qkv.view().row(r).address, six.view().row(of).address, six.bytes() / 6);
    positions.as<std::int32_t>()[static_cast<std::size_t>(r)] = six_positions[of];
    sequences.as<std::int32_t>()[static_cast<std::size_t>(r)] = six_sequences[of];
  }
  const HostTensor active = i32_tensor({static_cast<std::int32_t>(n)});
  HostTensor expected(DType::kF32, {n, c.heads * c.dim});
  HostTensor actual(DType::kF32, {n, c.heads * c.dim});
  poison(expected);
  poison(actual);
  const auto launch = [&](const OpContext& context, auto&& at, const TensorView& out) {
    paged_attention(context,
                    {.qkv = at(qkv), .positions = at(positions), .row_sequence = at(sequences),
                     .block_tables = at(tables), .key_pages = at(keys),
                     .value_pages = at(values), .sinks = at(sinks), .out = out,
                     .active_rows = at(active), .window = c.window, .scale = 0.2f})
        .value();
  };
  testing::Runner cpu(make_cpu_reference_kernels());
  launch(cpu.context(), [](const HostTensor& t) { return t.view(); }, expected.view());
  GpuBench bench(gpu);
  const TensorView out = bench.put(actual);
  launch(bench.context(), [&](const HostTensor& t) { return bench.put(t); }, out);
  bench.finish();
  bench.get(out, actual);
  EXPECT_LT(worst(decode(actual.view()), decode(expected.view())), 1e-5)
      << c.heads << "/" << c.kv_heads << " heads of " << c.dim << ", window " << c.window << ", "
      << n << " rows";
  return decode(actual.view());
}

TEST(CudaOps, ChooseTakesTheTokensThatTheHostWouldTake) {
  HF_GPU_OR_SKIP(gpu);
  base::Rng rng(21);
  const std::int64_t n = 6, active = 5, vocab = 9001;
  const HostTensor logits = random_tensor(rng, DType::kF32, {n, vocab}, 8.0f);
  logits.view().as<float>()[vocab + 7] = 50.0f;
  logits.view().as<float>()[vocab + 4500] = 50.0f;  // a tie: the lower id
  logits.view().as<float>()[4 * vocab + 8000] = NAN;
  HostTensor temperatures(DType::kF32, {n});
  HostTensor draws(DType::kI32, {n, 2});
  const float given[] = {1.0f, 0.0f, 0.7f, 2.0f, 0.0f, 0.0f};
  for (std::size_t r = 0; r < 6; ++r) {
    temperatures.as<float>()[r] = given[r];
    const double draw = r == 3 ? 1.0 - 1e-16 : rng.next_unit();
    std::memcpy(draws.view().address + r * 8, &draw, 8);
  }
  HostTensor choices(DType::kI32, {n, kChooseWords});
  poison(choices);
  GpuBench bench(gpu);
  const HostTensor scratch(DType::kI32, {n, choose_chunks(vocab), kChooseWords});
  const TensorView out = bench.put(choices);
  choose(bench.context(), {.logits = bench.put(logits), .temperatures = bench.put(temperatures),
                           .draws = bench.put(draws), .scratch = bench.put(scratch),
                           .choices = out, .active_rows = bench.put(i32_tensor({active}))})
      .value();
  bench.finish();
  bench.get(out, choices);
  for (std::int64_t r = 0; r < active; ++r) {
    Choice choice;
    std::memcpy(&choice, choices.view().address + r * 32, 32);
    ChooseRow row{.logits = logits.view().as<const float>() + r * vocab,
                  .vocab = vocab,
                  .temperature = given[r]};
    std::memcpy(&row.draw, draws.view().address + r * 8, 8);
    const Choice expected = choose_row(row);
    EXPECT_EQ(choice.broken, expected.broken) << "row " << r;
    EXPECT_EQ(choice.broken, r == 4 ? 8000 : -1);
    if (r == 4) continue;
    EXPECT_EQ(std::memcmp(&choice, &expected, sizeof(choice)), 0)
        << "row " << r << ": " << choice.id << " and " << expected.id << ", totals "
        << choice.total << " and " << expected.total;
  }
  EXPECT_EQ(choices.as<std::int32_t>()[static_cast<std::size_t>(active * 8)],
            static_cast<std::int32_t>(0xDDDDDDDD));
}

TEST(CudaOps, AttentionAgreesWithTheReference) {
  HF_GPU_OR_SKIP(gpu);
  check_attention(gpu, {64, 8, 64, 0});
  check_attention(gpu, {64, 8, 64, 128});
  check_attention(gpu, {4, 2, 16, 7});
  check_attention(gpu, {20, 2, 128, 0});
  check_attention(gpu, {3, 1, 256, 100});
}

// Up to 80 tiles of keys, so that strands have none, one and more of them.
TEST(CudaOps, AttentionHasTheSameBitsForFewRowsAndForMany) {
  HF_GPU_OR_SKIP(gpu);
  for (const std::int64_t window : {0, 128, 200, 2000}) {
    for (const std::int64_t heads : {64, 20}) {
      const std::int64_t kv_heads = heads == 64 ? 8 : 4;
      const AttentionCase few{heads, kv_heads, 64, window, 1, 160};
      AttentionCase many = few;
      many.copies = 7;
      const std::vector<float> alone = check_attention(gpu, few);
      const std::vector<float> all = check_attention(gpu, many);
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i], alone[i % alone.size()]) << "window " << window << ", " << heads;
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::ops
