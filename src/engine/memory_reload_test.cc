// Reloads from tensors that lie in this process's memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "engine/test_support.h"
#include "engine/test_weights.h"

namespace holdfast::engine {
namespace {

using Tensors = std::vector<MemoryTensor>;

const checkpoint::Checkpoint& checkpoint_b() {
  static const auto checkpoint = checkpoint::Checkpoint::open(model_b()).value();
  return *checkpoint;
}
// Where the file is mapped.
Tensors tensors_of_b() {
  Tensors tensors;
  for (const checkpoint::LocatedTensor& located : checkpoint_b().tensors()) {
    const auto dims = located.entry->shape.dims();
    tensors.push_back(
        {.info = {.name = located.entry->name,
                  .dtype = std::string(tensor::safetensors_dtype_name(located.entry->dtype)),
                  .shape = {dims.begin(), dims.end()}},
         .bytes = located.file->data(*located.entry)});
  }
  return tensors;
}
MemoryTensor& find(Tensors& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(),
                       [&](const MemoryTensor& tensor) { return tensor.info.name == name; });
}
constexpr const char* kNorm = "model.norm.weight";

std::unique_ptr<EngineCore> open_a() { return EngineCore::open(test_options(model_a())).value(); }

TEST(MemoryReload, GivesTheWeightsOfTheDirectoryByEveryStrategy) {
  const auto cold = weights(*EngineCore::open(test_options(model_b())).value());
  for (const char* commit : {"remap", "copy", "stream"}) {
    SCOPED_TRACE(commit);
    const auto core = open_a();
    ASSERT_NE(weights(*core), cold);
    ASSERT_TRUE(core->begin_reload(tensors_of_b(), {.commit = commit, .version = "b"}).ok());
    const ReloadReport report = core->finish_reload().value();
    EXPECT_EQ(report.source, "tensors in memory");
    EXPECT_EQ(report.state, "committed");
    EXPECT_EQ(core->version(), "b");
    EXPECT_EQ(core->epoch(), 2u);
    EXPECT_EQ(weights(*core), cold);
  }
}

TEST(MemoryReload, OfTensorsOutsideTheScopeNothingIsRead) {
  const auto from_directory = open_a();
  const auto from_memory = open_a();
  ReloadOptions options;
  options.scope.parameters = {kNorm};
  ASSERT_TRUE(from_directory->begin_reload(model_b(), options).ok());
  ASSERT_TRUE(from_directory->finish_reload().ok());
  // Memory that nobody may read: address 8.
  Tensors tensors = tensors_of_b();
  for (MemoryTensor& tensor : tensors) {
    if (tensor.info.name == kNorm) continue;
    tensor.bytes = {reinterpret_cast<const std::byte*>(std::uintptr_t{8}), tensor.bytes.size()};
  }
  ASSERT_TRUE(from_memory->begin_reload(tensors, options).ok());
  ASSERT_TRUE(from_memory->finish_reload().ok());
  EXPECT_EQ(weights(*from_memory), weights(*from_directory));
}

TEST(MemoryReload, WhatIsNotQuantisedMayBeF32) {
  const auto cold = weights(*EngineCore::open(test_options(model_b())).value());
  Tensors tensors = tensors_of_b();
  std::vector<std::byte> wide[2];
  const char* const names[] = {kNorm, "model.layers.1.mlp.experts.gate_up_proj_bias"};
  for (int t = 0; t < 2; ++t) {
    MemoryTensor& tensor = find(tensors, names[t]);
    ASSERT_EQ(tensor.info.dtype, "BF16");
    wide[t].resize(tensor.bytes.size() * 2);
    for (std::size_t i = 0; i * 2 < tensor.bytes.size(); ++i) {
      std::memcpy(&wide[t][i * 4 + 2], &tensor.bytes[i * 2], 2);
    }
    tensor.info.dtype = "F32";
    tensor.bytes = wide[t];
  }
  const auto core = open_a();
  ASSERT_TRUE(core->begin_reload(tensors, {}).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(weights(*core), cold);
}

TEST(MemoryReload, WhatIsWrongWithATensorIsSaidByItsNameAndChangesNothing) {
  const auto core = open_a();
  const auto before = weights(*core);
  const auto begun = [&](const std::function<void(Tensors&)>& change,
                         const ReloadOptions& options = {}) {
    Tensors tensors = tensors_of_b();
    change(tensors);
    return core->begin_reload(tensors, options);
  };
  const auto expect = [&](const Status& status, ErrorCode code, const std::string& text) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), code);
    EXPECT_NE(status.error().message().find(text), std::string::npos) << status.error().message();
    EXPECT_EQ(weights(*core), before);
  };
  // At once.
  expect(begun([](Tensors& t) { find(t, kNorm).bytes = find(t, kNorm).bytes.first(6); }),
         ErrorCode::kInvalidArgument, "has 512 bytes, and 6 bytes of memory were given");
  expect(begun([](Tensors& t) { find(t, kNorm).info.dtype = "bf16"; }),
         ErrorCode::kInvalidArgument, "tensor model.norm.weight is announced as dtype \"bf16\"");
  expect(begun([](Tensors&) {}, {.apply_constants = true}), ErrorCode::kInvalidArgument,
         "apply_constants");
  EXPECT_EQ(core->reload_phase(), ReloadPhase::kNone);
  // By the plan.
  const auto planned = [&](const std::function<void(Tensors&)>& change) -> Status {
    HF_TRY(begun(change));
    const auto report = core->finish_reload();
    if (report.ok()) return {};
    return report.error();
  };
  expect(planned([](Tensors& t) { find(t, kNorm).info.name = "model.nrom.weight"; }),
         ErrorCode::kMismatch, "nearest");
  expect(planned([](Tensors& t) { t.push_back(find(t, kNorm)); }), ErrorCode::kMismatch, "twice");
  expect(planned([](Tensors& t) { t.pop_back(); }), ErrorCode::kNotFound, "is missing");
  expect(planned([](Tensors& t) { t.clear(); }), ErrorCode::kNotFound, "is missing");
  EXPECT_TRUE(planned([](Tensors&) {}).ok());
}

TEST(MemoryReload, ACpuHasNothingToPageLock) {
  const auto core = open_a();
  std::vector<std::byte> memory(4096);
  const auto locked = core->runtime().device().page_lock(memory);
  ASSERT_FALSE(locked.ok());
  EXPECT_EQ(locked.error().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace holdfast::engine
