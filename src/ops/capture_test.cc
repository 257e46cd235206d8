// Every op can be captured: its kernel's arguments name no address that is not an operand, and a
// replay reads rows, counts and weights as they are then.
#include <gtest/gtest.h>

#include "device/test_home.h"
#include "ops/host_tensor.h"

namespace holdfast::ops {
namespace {

using testing::DType;
using testing::HostTensor;
using testing::i32_tensor;
using testing::random_tensor;
using testing::Runner;

// Operands of one small layer: n 3 rows, H 8, 2 query heads on 1 kv head of 4.
struct Layer {
  base::Rng rng{1};
  HostTensor ids = i32_tensor({1, 2, 0});
  HostTensor active = i32_tensor({3});
  HostTensor positions = i32_tensor({0, 1, 2});
  HostTensor sequences = i32_tensor({0, 0, 0});
  HostTensor slots = i32_tensor({4, 5, 6});
  HostTensor last = i32_tensor({2, 1, 0});
  HostTensor tables = HostTensor(DType::kI32, {1, 1});
  HostTensor table = random_tensor(rng, DType::kBF16, {3, 8});
  HostTensor weight = random_tensor(rng, DType::kBF16, {8});
  HostTensor qkv_weight = random_tensor(rng, DType::kBF16, {16, 8});
  HostTensor bias = random_tensor(rng, DType::kBF16, {16});
  HostTensor sinks = random_tensor(rng, DType::kBF16, {2});
  HostTensor cosine = random_tensor(rng, DType::kF32, {5, 2});
  HostTensor sine = random_tensor(rng, DType::kF32, {5, 2});
  HostTensor keys = random_tensor(rng, DType::kF32, {2, 4, 1, 4});
  HostTensor values = random_tensor(rng, DType::kF32, {2, 4, 1, 4});
  HostTensor hidden = HostTensor(DType::kF32, {3, 8});
  HostTensor normed = HostTensor(DType::kF32, {3, 8});
  HostTensor qkv = HostTensor(DType::kF32, {3, 16});
  HostTensor attended = HostTensor(DType::kF32, {3, 8});
  HostTensor expert_ids = HostTensor(DType::kI32, {3, 2});
  HostTensor expert_weights = HostTensor(DType::kF32, {3, 2});
  HostTensor out = HostTensor(DType::kF32, {3, 8});

  Layer() { tables.as<std::int32_t>()[0] = 1; }

  Status run(const OpContext& context) const {
    const TensorView count = active.view();
    HF_TRY(embedding(context, {ids.view(), table.view(), hidden.view(), count}));
    HF_TRY(rms_norm(context, {hidden.view(), weight.view(), normed.view(), count}));
    HF_TRY(linear(context, {normed.view(), qkv_weight.view(), bias.view(), {}, qkv.view(), count}));
    HF_TRY(rope(context, {.x = qkv.view(), .positions = positions.view(),
                          .cos_table = cosine.view(), .sin_table = sine.view(),
                          .active_rows = count, .head_count = 3, .head_dim = 4}));
    HF_TRY(kv_write(context, {qkv.view(), slots.view(), keys.view(), values.view(), count}));
    HF_TRY(paged_attention(context, {.qkv = qkv.view(), .positions = positions.view(),
                                     .row_sequence = sequences.view(),
                                     .block_tables = tables.view(), .key_pages = keys.view(),
                                     .value_pages = values.view(), .sinks = sinks.view(),
                                     .out = attended.view(), .active_rows = count, .window = 2}));
    HF_TRY(router_top_k(context, {attended.view(), expert_ids.view(), expert_weights.view(),
                                  count}));
    return gather_rows(context, {attended.view(), last.view(), out.view(), count});
  }

  std::vector<const HostTensor*> all() const {
    return {&ids,  &active, &positions,  &sequences, &slots,  &last,   &tables,     &table,
            &weight, &qkv_weight, &bias, &sinks,     &cosine, &sine,   &keys,       &values,
            &hidden, &normed,     &qkv,  &attended,  &out,    &expert_ids, &expert_weights};
  }
};

TEST(OpCapture, AReplayGivesTheBitsOfAnEagerRunOnWhatIsInMemoryThen) {
  for (const bool fast : {false, true}) {
    Runner runner(fast ? make_cpu_fast_kernels() : make_cpu_reference_kernels(), 2);
    const Layer layer;
    device::FakeHome home;
    for (const HostTensor* tensor : layer.all()) home.add(tensor->view().address, tensor->bytes());
    const auto graph = device::capture(runner.stream(), home, "ops", [&] {
                         return layer.run(runner.context());
                       }).value();
    EXPECT_EQ(graph->manifest().nodes.size(), 8u);
    for (const std::int32_t id : {1, 2}) {
      layer.ids.as<std::int32_t>()[0] = id;
      layer.table.as<std::uint16_t>()[8] = static_cast<std::uint16_t>(0x3F80 + id);
      ASSERT_TRUE(layer.run(runner.context()).ok());
      const std::vector<float> eager(layer.out.as<float>().begin(), layer.out.as<float>().end());
      std::memset(layer.out.view().address, 0xDD, layer.out.bytes());
      ASSERT_TRUE(graph->launch(runner.stream()).ok());
      EXPECT_TRUE(std::ranges::equal(eager, layer.out.as<float>()));
    }
  }
}

TEST(OpCapture, AnOperandThatLiesInNoSlotFailsTheCaptureByName) {
  Runner runner(make_cpu_fast_kernels());
  const Layer layer;
  for (const HostTensor* missing : {&layer.sinks, &layer.bias, &layer.keys, &layer.active}) {
    device::FakeHome home;
    for (const HostTensor* tensor : layer.all()) {
      if (tensor != missing) home.add(tensor->view().address, tensor->bytes());
    }
    const auto graph = device::capture(runner.stream(), home, "ops",
                                       [&] { return layer.run(runner.context()); });
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.error().code(), ErrorCode::kMismatch);
  }
}

}  // namespace
}  // namespace holdfast::ops
