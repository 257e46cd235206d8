// Routed experts through a whole engine, against the ids that an eager step shows layer by layer.
#include <gtest/gtest.h>

#include <map>

#include "engine/read_device.h"
#include "engine/test_support.h"
#include "ops/ops.h"

namespace holdfast::engine {
namespace {

// One request's, and its tokens.
struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<std::int16_t> prompt, output;
};

std::vector<Routed> run_routed(EngineCore& core, const std::vector<Request>& requests) {
  std::map<std::uint64_t, Routed> by_id;
  for (const Request& request : requests) {
    by_id[core.submit(request).value().value].ids = request.prompt_ids;
  }
  while (!core.idle()) {
    const auto events = core.step();
    if (!events.ok()) {
      ADD_FAILURE() << events.error().to_string();
      break;
    }
    for (const Event& event : *events) {
      Routed& routed = by_id.at(event.request.value);
      if (event.prompt) routed.prompt = event.prompt->routed_experts;
      if (event.token) routed.ids.push_back(event.token->id);
      routed.output.insert(routed.output.end(), event.routed_experts.begin(),
                           event.routed_experts.end());
    }
  }
  std::vector<Routed> results;
  for (auto& [id, routed] : by_id) results.push_back(std::move(routed));
  return results;
}

// [positions, layers, k] of one eager step over `ids`, from what the step shows of each layer.
std::vector<std::int16_t> eager_experts(Runtime& runtime, const std::vector<std::int32_t>& ids) {
  const model::DecoderSlots& slots = runtime.decoder().slots();
  const auto write = [&runtime](storage::SlotId slot, const std::vector<std::int32_t>& values) {
    ASSERT_TRUE(runtime.device()
                    .write(runtime.registry().view(slot).address,
                           reinterpret_cast<const std::byte*>(values.data()), values.size() * 4)
                    .ok());
  };
  const auto rows = static_cast<std::int32_t>(ids.size());
  std::vector<std::int32_t> counting, pages;
  for (std::int32_t i = 0; i < rows; ++i) {
    counting.push_back(i);
    if (i % static_cast<std::int32_t>(kPageSize) == 0) {
      pages.push_back(static_cast<std::int32_t>(pages.size()));
    }
  }
  write(slots.token_ids, ids);
  for (const auto slot : {slots.positions, slots.slot_mapping}) write(slot, counting);
  write(slots.row_sequence, std::vector<std::int32_t>(ids.size(), 0));
  write(slots.block_tables, pages);
  write(slots.row_count, {rows});
  write(slots.logit_count, {0});
  const auto layers = static_cast<std::size_t>(runtime.config().layer_count);
  const auto k = static_cast<std::size_t>(runtime.config().experts_per_token);
  std::vector<std::int16_t> experts(ids.size() * layers * k, -1);
  const auto kernels = ops::make_cpu_reference_kernels();
  const auto stream = runtime.device().create_stream(1).value();
  const Status stepped = runtime.decoder().step(
      {.stream = *stream, .kernels = *kernels}, rows,
      [&](std::string_view name, const ops::TensorView& view) {
        if (!name.ends_with(".topk_ids")) return;
        const auto layer = static_cast<std::size_t>(std::stoi(std::string(name.substr(7))));
        for (std::size_t r = 0; r < ids.size(); ++r) {
          for (std::size_t e = 0; e < k; ++e) {
            experts.at((r * layers + layer) * k + e) =
                static_cast<std::int16_t>(view.as<std::int32_t>()[r * k + e]);
          }
        }
      });
  EXPECT_TRUE(stepped.ok());
  return experts;
}

std::vector<Request> routed_requests() {
  const auto prompts = read_reference_prompts("gptoss-tiny-A");
  std::vector<Request> requests;
  for (const std::size_t i : {1, 2, 5}) {
    requests.push_back(greedy_request(prompts.at(i)));
    requests.back().max_tokens = 12;
    requests.back().routed_experts = true;
  }
  return requests;
}

TEST(RoutedExperts, AreThoseOfTheReferenceKernelsAtEveryPositionAndLayer) {
  EngineOptions options = test_options(model_a());
  options.kernels = "reference";
  options.prefill_chunk = 7;
  const auto core = open_core(options);
  const auto requests = routed_requests();
  const auto results = run_routed(*core, requests);
  const std::size_t width = static_cast<std::size_t>(core->runtime().config().layer_count *
                                                     core->runtime().config().experts_per_token);
  // Steps of this engine are too short for an eager one over all positions.
  EngineOptions wide = test_options(model_a());
  wide.prefill_chunk = 256;
  const auto other = open_core(wide);
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::vector<std::int32_t> ids = results[i].ids;
    ids.pop_back();
    ASSERT_LE(std::ssize(ids), other->runtime().settings().max_rows);
    std::vector<std::int16_t> all = results[i].prompt;
    EXPECT_EQ(all.size(), (requests[i].prompt_ids.size() - 1) * width);
    all.insert(all.end(), results[i].output.begin(), results[i].output.end());
    EXPECT_EQ(all, eager_experts(other->runtime(), ids)) << "prompt " << i;
  }
}

TEST(RoutedExperts, AreTheSameAloneAndFromADeviceThatTheHostCannotAddress) {
  const auto core = open_core(test_options(model_a()));
  const auto requests = routed_requests();
  const auto together = run_routed(*core, requests);
  const auto far = EngineCore::open(test_options(model_a()), std::make_unique<ReadDevice>());
  ASSERT_TRUE(far.ok()) << far.error().to_string();
  const auto read_back = run_routed(**far, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Routed alone = run_routed(*core, {requests[i]}).front();
    EXPECT_FALSE(alone.output.empty());
    EXPECT_EQ(together[i].prompt, alone.prompt);
    EXPECT_EQ(together[i].output, alone.output);
    EXPECT_EQ(read_back[i].prompt, alone.prompt);
    EXPECT_EQ(read_back[i].output, alone.output);
  }
}

TEST(RoutedExperts, AreReadOnceAStepAndOnlyWhenAsked) {
  auto owned = std::make_unique<ReadDevice>();
  ReadDevice& device = *owned;
  const auto core = EngineCore::open(test_options(model_a()), std::move(owned)).value();
  std::vector<Request> requests = routed_requests();
  for (Request& request : requests) request.prompt_ids.resize(3);
  const auto reads_with = [&](std::size_t wanting) {
    for (std::size_t i = 0; i < requests.size(); ++i) requests[i].routed_experts = i < wanting;
    device.reads = 0;
    run_routed(*core, requests);
    return device.reads;
  };
  const int without = reads_with(0);  // the logits
  EXPECT_EQ(reads_with(1), without + 12) << "one for each step";
  EXPECT_EQ(reads_with(3), without + 12);
}

}  // namespace
}  // namespace holdfast::engine
