// The engine on a GPU: the fixtures' references, what batches and chunks never show, and reloads
// under captured graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/cuda/cuda_test_device.h"
#include "device/devices.h"
#include "engine/test_support.h"

namespace holdfast::engine {
namespace {

std::unique_ptr<EngineCore> open_on_gpu(const EngineOptions& options) {
  auto core = EngineCore::open(options, device::make_device("cuda").value());
  if (!core.ok()) ADD_FAILURE() << core.error().to_string();
  return std::move(core).value();
}

// A model, the reference of tests/golden/reference that it must agree with, and what is done to it
// on the way; activations are not rounded, as in the references.
struct ReferenceCase {
  std::string directory;
  const char* reference;
  const char* quantize = "";
};

void expect_reference(const ReferenceCase& c) {
  SCOPED_TRACE(c.directory + " " + c.quantize);
  const auto prompts = read_reference_prompts(c.reference);
  EngineOptions options = test_options(c.directory);
  options.expert_activations = "none";
  options.quantize_experts = c.quantize;
  auto core = open_on_gpu(options);
  std::vector<Request> requests = greedy_requests(prompts);
  for (Request& request : requests) request.prompt_logprobs = true;
  const auto transcripts = run_together(*core, requests);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(transcripts[i].ids, prompts[i].greedy_ids) << "prompt " << i;
    ASSERT_EQ(transcripts[i].prompt_logprobs.size(), prompts[i].logprobs.size());
    for (std::size_t t = 0; t < prompts[i].logprobs.size(); ++t) {
      ASSERT_NEAR(transcripts[i].prompt_logprobs[t], prompts[i].logprobs[t], 1e-3);
    }
    for (std::size_t t = 0; t < prompts[i].greedy_logprobs.size(); ++t) {
      ASSERT_NEAR(transcripts[i].logprobs[t], prompts[i].greedy_logprobs[t], 1e-3);
    }
  }
}

TEST(CudaEngine, GreedyTokensAndLogprobsAreThoseOfTheReference) {
  HF_GPU_OR_SKIP(gpu);
  expect_reference({model_a(), "gptoss-tiny-A"});
  expect_reference({model_b(), "gptoss-tiny-B"});
  expect_reference({model_a_bf16(), "gptoss-tiny-A"});
  expect_reference({model_qwen_bf16(), "qwen3moe-tiny-bf16"});
  expect_reference({model_qwen_fp8(), "qwen3moe-tiny-fp8"});
  expect_reference({model_mixtral(), "mixtral-tiny-bf16"});
}

// bf16 values of an MXFP4 checkpoint come back as its bytes, those of an FP8 one as its codes.
TEST(CudaEngine, ExpertsQuantisedOnArrivalAreThoseOfAQuantisedCheckpoint) {
  HF_GPU_OR_SKIP(gpu);
  expect_reference({model_a_bf16(), "gptoss-tiny-A", "mxfp4"});
  expect_reference({model_qwen_bf16(), "qwen3moe-tiny-fp8", "fp8-block"});
  EngineOptions arriving = test_options(model_a_bf16());
  arriving.quantize_experts = "mxfp4";
  const CensusReport made = open_on_gpu(arriving)->census().value();
  const CensusReport read = open_on_gpu(test_options(model_a()))->census().value();
  ASSERT_EQ(made.slots.size(), read.slots.size());
  for (std::size_t i = 0; i < made.slots.size(); ++i) {
    EXPECT_EQ(made.slots[i].digest, read.slots[i].digest) << made.slots[i].name;
  }
}

TEST(CudaEngine, BatchesChunksAndGraphsNeverShowInTheBits) {
  HF_GPU_OR_SKIP(gpu);
  const std::pair<std::string, const char*> models[] = {
      {model_a(), "gptoss-tiny-A"},
      {model_qwen_fp8(), "qwen3moe-tiny-fp8"},  // with its activations rounded
      {model_mixtral(), "mixtral-tiny-bf16"}};
  for (const auto& [directory, reference] : models) {
    SCOPED_TRACE(directory);
    const auto requests = greedy_requests(read_reference_prompts(reference));
    auto core = open_on_gpu(test_options(directory));
    const auto alone = run_one_by_one(*core, requests);
    for (const std::int64_t chunk : {1, 3, 17, 200}) {
      EngineOptions options = test_options(directory);
      options.prefill_chunk = chunk;
      options.max_sequences = 5;
      auto other = open_on_gpu(options);
      const auto together = run_together(*other, requests);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        EXPECT_TRUE(together[i].same_tokens(alone[i])) << "chunk " << chunk << ", prompt " << i;
      }
    }
  }
}

TEST(CudaEngine, AWarmReloadEqualsAColdStartAndMovesNothing) {
  HF_GPU_OR_SKIP(gpu);
  const auto requests = greedy_requests(read_reference_prompts("gptoss-tiny-B"));
  auto cold = open_on_gpu(test_options(model_b()));
  const auto expected = run_together(*cold, requests);
  const CensusReport cold_census = cold->census().value();
  for (const char* strategy : {"remap", "copy", "stream"}) {
    auto core = open_on_gpu(test_options(model_a()));
    const CensusReport before = core->census().value();
    run_together(*core, requests);
    ReloadOptions options;
    options.commit = strategy;
    core->begin_reload(model_b(), options).value();
    const auto report = core->finish_reload();
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    EXPECT_EQ(report->state, "committed");
    EXPECT_EQ(report->slots_moved, 0u);
    const CensusReport after = core->census().value();
    EXPECT_TRUE(after.homeless.empty());
    EXPECT_TRUE(after.rehomed.empty());
    for (std::size_t i = 0; i < after.slots.size(); ++i) {
      EXPECT_EQ(after.slots[i].address, before.slots[i].address) << after.slots[i].name;
      EXPECT_EQ(after.slots[i].digest, cold_census.slots[i].digest) << after.slots[i].name;
    }
    const auto warm = run_together(*core, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(warm[i].same_tokens(expected[i])) << strategy << ", prompt " << i;
    }
    EXPECT_TRUE(core->verify().value().defects.empty());
  }
}

// Page-locked memory, which the device fetches itself, and ordinary memory, which it does not.
TEST(CudaEngine, AReloadFromMemoryEqualsAColdStart) {
  HF_GPU_OR_SKIP(gpu);
  const CensusReport cold = open_on_gpu(test_options(model_b()))->census().value();
  const auto checkpoint = checkpoint::Checkpoint::open(model_b()).value();
  for (const bool locked : {true, false}) {
    SCOPED_TRACE(locked ? "page-locked" : "ordinary");
    const auto core = open_on_gpu(test_options(model_a()));
    std::vector<std::vector<std::byte>> copies;
    std::vector<std::shared_ptr<const void>> locks;
    std::vector<MemoryTensor> tensors;
    for (const checkpoint::LocatedTensor& located : checkpoint->tensors()) {
      const auto bytes = located.file->data(*located.entry);
      const auto dims = located.entry->shape.dims();
      copies.emplace_back(bytes.begin(), bytes.end());
      if (locked) locks.push_back(core->runtime().device().page_lock(copies.back()).value());
      tensors.push_back(
          {.info = {.name = located.entry->name,
                    .dtype = std::string(tensor::safetensors_dtype_name(located.entry->dtype)),
                    .shape = {dims.begin(), dims.end()}},
           .bytes = copies.back()});
    }
    ASSERT_TRUE(core->begin_reload(tensors, {}).ok());
    const auto report = core->finish_reload();
    ASSERT_TRUE(report.ok()) << report.error().to_string();
    const CensusReport warm = core->census().value();
    ASSERT_EQ(warm.slots.size(), cold.slots.size());
    for (std::size_t i = 0; i < warm.slots.size(); ++i) {
      EXPECT_EQ(warm.slots[i].digest, cold.slots[i].digest) << warm.slots[i].name;
    }
    locks.clear();
  }
}

TEST(CudaEngine, AStreamThatFailsPoisonsAndTheNextReloadRecovers) {
  HF_GPU_OR_SKIP(gpu);
  const auto requests = greedy_requests(read_reference_prompts("gptoss-tiny-B"));
  auto cold = open_on_gpu(test_options(model_b()));
  const auto expected = run_together(*cold, requests);
  auto core = open_on_gpu(test_options(model_a()));
  ReloadOptions options;
  options.commit = "stream";
  options.inject = "nan";
  core->begin_reload(model_b(), options).value();
  EXPECT_FALSE(core->finish_reload().ok());
  EXPECT_TRUE(core->poisoned());
  core->begin_reload(model_b(), {}).value();
  ASSERT_TRUE(core->finish_reload().ok());
  const auto after = run_together(*core, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(after[i].same_tokens(expected[i]));
  }
}

TEST(CudaEngine, EachGraphsAuditFindsPointersAndNothingThatItCannotRead) {
  HF_GPU_OR_SKIP(gpu);
  auto core = open_on_gpu(test_options(model_a()));
  core->begin_reload(model_b(), {}).value();
  ASSERT_TRUE(core->finish_reload().ok());
  const GraphSet& graphs = core->runtime().graphs();
  const device::AuditFigures audit = graphs.audited();
  EXPECT_GT(audit.nodes, 10 * graphs.graphs().size());
  EXPECT_GT(audit.words, audit.pointers);
  EXPECT_GT(audit.pointers, audit.nodes);
  EXPECT_EQ(audit.unaudited, 0u);
  EXPECT_GT(graphs.rechecked().slots, 100u);
  EXPECT_EQ(graphs.rechecked().moved, 0u);
}

}  // namespace
}  // namespace holdfast::engine
