// I2 on the CPU device: what a capture records, what it refuses, and what a replay reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "device/arena.h"
#include "device/cpu/cpu_device.h"
#include "device/test_home.h"

namespace holdfast::device {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::TensorView;
using testing::HasSubstr;

struct AddArgs {
  TensorView x;
  TensorView weight;
  TensorView out;
  float scale = 1.0f;
};

void run_add(const AddArgs& args, WorkerPool& workers) {
  workers.parallel_for(args.out.shape.element_count(), 4,
                       [&args](std::int64_t begin, std::int64_t end, int) {
                         for (std::int64_t i = begin; i < end; ++i) {
                           args.out.as<float>()[i] = args.x.as<float>()[i] +
                                                     args.scale * args.weight.as<float>()[i];
                         }
                       });
}

Status add(Stream& stream, const AddArgs& args) {
  return launch_cpu<&run_add>(stream, "add", args,
                              {reads("x", args.x), reads("weight", args.weight),
                               writes("out", args.out)});
}

// Kernels that keep something from the manifest.
struct HiddenArgs {
  TensorView out;
  const float* hidden;
};
void run_hidden(const HiddenArgs& args, WorkerPool&) { args.out.as<float>()[0] = *args.hidden; }
Status hidden(Stream& stream, const HiddenArgs& args) {
  return launch_cpu<&run_hidden>(stream, "hidden", args, {writes("out", args.out)});
}

struct __attribute__((packed)) PackedArgs {
  std::int32_t count;
  float* out;
};
void run_packed(const PackedArgs& args, WorkerPool&) { *args.out = 1.0f; }

class CaptureTest : public testing::Test {
 protected:
  static constexpr std::int64_t kCount = 13;

  void SetUp() override {
    arena_ = Arena::create(*device_, "test", 4096).value();
    x_ = slot();
    weight_ = slot();
    out_ = slot();
    arena_->seal();
  }

  TensorView slot() {
    std::byte* address = arena_->allocate(kCount * 4, 64).value();
    home_.add(address, kCount * 4);
    TensorView view{address, DType::kF32, Shape{kCount}};
    std::iota(view.as<float>(), view.as<float>() + kCount, 1.0f);
    return view;
  }

  AddArgs args() { return {.x = x_, .weight = weight_, .out = out_}; }
  Result<std::unique_ptr<Graph>> capture_add(const AddArgs& add_args) {
    return capture(*stream_, home_, "decode", [&] { return add(*stream_, add_args); });
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->create_stream(2).value();
  std::unique_ptr<Arena> arena_;
  FakeHome home_;
  TensorView x_, weight_, out_;
};

TEST_F(CaptureTest, RecordsLaunchesWithoutRunningThem) {
  const float before = out_.as<float>()[0];
  auto graph = capture_add(args());
  ASSERT_TRUE(graph.ok()) << graph.error().to_string();
  EXPECT_EQ(out_.as<float>()[0], before);
  EXPECT_FALSE(stream_->capturing());
  EXPECT_EQ((*graph)->label(), "decode");
}

TEST_F(CaptureTest, TheManifestNamesEveryOperandWithItsRangeAndAccess) {
  auto graph = capture_add(args()).value();
  const AddressManifest& manifest = graph->manifest();
  ASSERT_EQ(manifest.nodes, std::vector<std::string>{"add"});
  ASSERT_EQ(manifest.entries.size(), 3u);
  EXPECT_EQ(manifest.entries[1].role, "weight");
  EXPECT_EQ(manifest.entries[1].range.begin, reinterpret_cast<std::uintptr_t>(weight_.address));
  EXPECT_EQ(manifest.entries[1].range.bytes, std::size_t{kCount * 4});
  EXPECT_EQ(manifest.entries[1].access, Access::kRead);
  EXPECT_EQ(manifest.entries[2].access, Access::kWrite);
}

TEST_F(CaptureTest, AReplayUsesTheArgumentsAsTheyWereRecorded) {
  AddArgs mutable_args = args();
  mutable_args.scale = 2.0f;
  auto graph = capture_add(mutable_args).value();
  mutable_args.scale = -7.0f;
  mutable_args.out = {};
  ASSERT_TRUE(graph->launch(*stream_).ok());
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(out_.as<float>()[i], 3.0f * float(i + 1));
}

TEST_F(CaptureTest, AReplayReadsWhatTheAddressesHoldNow) {
  auto graph = capture_add(args()).value();
  weight_.as<float>()[5] = 100.0f;
  ASSERT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(out_.as<float>()[5], 106.0f);
  weight_.as<float>()[5] = 200.0f;
  ASSERT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(out_.as<float>()[5], 206.0f);
}

TEST_F(CaptureTest, AReplayReadsNewBytesAfterAnExchangeAtTheSameAddress) {
  auto graph = capture_add(args()).value();
  auto staged = arena_->create_backing().value();
  std::memcpy(staged.memory().address, arena_->memory().address, arena_->memory().bytes);
  const std::ptrdiff_t offset = weight_.address - arena_->memory().address;
  reinterpret_cast<float*>(staged.memory().address + offset)[3] = 1000.0f;
  ASSERT_TRUE(arena_->exchange(staged).ok());
  ASSERT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(out_.as<float>()[3], 1004.0f);
  ASSERT_TRUE(arena_->exchange(staged).ok());
  ASSERT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(out_.as<float>()[3], 8.0f);
}

TEST_F(CaptureTest, CopiesAreNodesOfTheGraph) {
  auto graph = capture(*stream_, home_, "copy", [&] {
                 return stream_->copy(out_.address, weight_.address, kCount * 4);
               }).value();
  ASSERT_EQ(graph->manifest().nodes, std::vector<std::string>{"copy"});
  ASSERT_EQ(graph->manifest().entries.size(), 2u);
  weight_.as<float>()[12] = 55.0f;
  ASSERT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(out_.as<float>()[12], 55.0f);
}

TEST_F(CaptureTest, NodesReplayInLaunchOrder) {
  auto graph = capture(*stream_, home_, "two", [&]() -> Status {
                 HF_TRY(add(*stream_, args()));
                 return add(*stream_, {.x = out_, .weight = weight_, .out = x_});
               }).value();
  ASSERT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(x_.as<float>()[1], 6.0f);
}

TEST_F(CaptureTest, AnUnsealedHomeIsRefused) {
  home_.is_sealed = false;
  auto graph = capture_add(args());
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(graph.error().message(), HasSubstr("not sealed"));
}

TEST_F(CaptureTest, AnOperandInAPlainBufferHasNoHome) {
  std::vector<float> buffer(kCount, 1.0f);
  AddArgs bad = args();
  bad.weight.address = reinterpret_cast<std::byte*>(buffer.data());
  auto graph = capture_add(bad);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code(), ErrorCode::kMismatch);
  EXPECT_THAT(graph.error().message(), HasSubstr("node 0 (add), operand weight"));
  EXPECT_THAT(graph.error().message(),
              HasSubstr(fmt::format("{:#x}", reinterpret_cast<std::uintptr_t>(buffer.data()))));
  EXPECT_THAT(graph.error().message(), HasSubstr("no slot"));
}

TEST_F(CaptureTest, AnInteriorPointerThatRunsPastItsSlotHasNoHome) {
  AddArgs bad = args();
  bad.weight.address += 4;  // begins inside its slot, ends 4 bytes behind it
  auto graph = capture_add(bad);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code(), ErrorCode::kMismatch);
  EXPECT_THAT(graph.error().message(), HasSubstr("operand weight"));
}

TEST_F(CaptureTest, AnInteriorPointerThatStaysInItsSlotIsFine) {
  AddArgs inner = args();
  inner.x = x_.rows(2, 3);
  inner.weight = weight_.rows(10, 3);
  inner.out = out_.rows(0, 3);
  EXPECT_TRUE(capture_add(inner).ok());
}

TEST_F(CaptureTest, AHiddenPointerToASlotIsRefused) {
  auto graph = capture(*stream_, home_, "decode", [&] {
    return hidden(*stream_, {.out = out_, .hidden = weight_.as<const float>() + 2});
  });
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code(), ErrorCode::kMismatch);
  EXPECT_THAT(graph.error().message(), HasSubstr("node 0 (hidden)"));
  EXPECT_THAT(graph.error().message(), HasSubstr("no operand declares"));
  EXPECT_THAT(graph.error().message(), HasSubstr("a fake slot"));
}

TEST_F(CaptureTest, AHiddenPointerInAPackedArgumentIsRefused) {
  auto graph = capture(*stream_, home_, "decode", [&] {
    return launch_cpu<&run_packed>(*stream_, "packed", PackedArgs{1, out_.as<float>()}, {});
  });
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.error().message(), HasSubstr("at byte 4"));
}

TEST_F(CaptureTest, AHiddenPointerToTheHeapOrTheStackIsRefused) {
  const auto on_heap = std::make_unique<float>(1.0f);
  const volatile float on_stack = 1.0f;
  for (const float* pointer : {const_cast<const float*>(on_heap.get()),
                               const_cast<const float*>(&on_stack)}) {
    auto graph = capture(*stream_, home_, "decode", [&] {
      return hidden(*stream_, {.out = out_, .hidden = pointer});
    });
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.error().code(), ErrorCode::kMismatch);
    EXPECT_THAT(graph.error().message(), HasSubstr("no operand declares"));
  }
}

TEST_F(CaptureTest, AHiddenPointerToDeviceMemoryOutsideEverySlotIsRefused) {
  auto stray = device_->allocate(64).value();
  auto graph = capture(*stream_, home_, "decode", [&] {
    return hidden(*stream_,
                  {.out = out_, .hidden = reinterpret_cast<const float*>(stray.address)});
  });
  EXPECT_FALSE(graph.ok());
  device_->free(stray);
}

TEST_F(CaptureTest, APointerToReadOnlyProgramDataIsFine) {
  static const float kTable[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  EXPECT_TRUE(capture(*stream_, home_, "decode", [&] {
                return hidden(*stream_, {.out = out_, .hidden = kTable});
              }).ok());
}

TEST_F(CaptureTest, StaleBytesInThePaddingOfArgumentsAreNoPointers) {
  // The padding behind `dtype` may hold the rest of an old pointer; here it is made to.
  alignas(AddArgs) std::byte raw[sizeof(AddArgs)];
  const std::byte* stale = weight_.address;
  for (std::size_t i = 0; i < sizeof(raw); i += sizeof(stale)) {
    std::memcpy(raw + i, &stale, std::min(sizeof(stale), sizeof(raw) - i));
  }
  auto* dirty = reinterpret_cast<AddArgs*>(raw);
  for (TensorView* view : {&dirty->x, &dirty->weight, &dirty->out}) {
    view->address = x_.address;
    view->dtype = DType::kF32;
    view->shape = x_.shape;
  }
  dirty->scale = 1.0f;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(capture_add(*dirty).ok());
}

TEST_F(CaptureTest, AFailedCaptureLeavesNothingRecordedAndTheStreamUsable) {
  auto failed = capture(*stream_, home_, "decode", [&]() -> Status {
    HF_TRY(add(*stream_, args()));
    return make_error(ErrorCode::kUnsupported, "the body gave up");
  });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::kUnsupported);
  EXPECT_FALSE(stream_->capturing());
  ASSERT_TRUE(add(*stream_, args()).ok());  // runs at once
  EXPECT_EQ(out_.as<float>()[2], 6.0f);
  EXPECT_EQ(capture_add(args()).value()->manifest().nodes.size(), 1u);
}

TEST_F(CaptureTest, ACaptureInsideACaptureIsRefusedAndTheOuterOneGoesOn) {
  auto outer = capture(*stream_, home_, "outer", [&]() -> Status {
    auto inner = capture_add(args());
    EXPECT_FALSE(inner.ok());
    EXPECT_EQ(inner.error().code(), ErrorCode::kFailedPrecondition);
    return add(*stream_, args());
  });
  ASSERT_TRUE(outer.ok()) << outer.error().to_string();
  EXPECT_EQ((*outer)->manifest().nodes.size(), 1u);
}

TEST_F(CaptureTest, AGraphCannotBeLaunchedInsideACapture) {
  auto graph = capture_add(args()).value();
  auto outer = capture(*stream_, home_, "outer", [&] { return graph->launch(*stream_); });
  ASSERT_FALSE(outer.ok());
  EXPECT_EQ(outer.error().code(), ErrorCode::kFailedPrecondition);
}

TEST_F(CaptureTest, ALaunchAfterALayoutChangeIsRefusedAndRunsNothing) {
  auto graph = capture_add(args()).value();
  const float before = out_.as<float>()[0];
  home_.generation = 2;
  Status launched = graph->launch(*stream_);
  ASSERT_FALSE(launched.ok());
  EXPECT_EQ(launched.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(launched.error().message(), HasSubstr("layout generation 1, now it is 2"));
  EXPECT_EQ(out_.as<float>()[0], before);
}

TEST_F(CaptureTest, AnEmptyViewIsNotRecorded) {
  AddArgs partial = args();
  auto graph = capture(*stream_, home_, "decode", [&] {
                 return launch_cpu<&run_add>(*stream_, "add", partial,
                                             {reads("x", partial.x), reads("bias", TensorView{}),
                                              reads("weight", partial.weight),
                                              writes("out", partial.out)});
               }).value();
  EXPECT_EQ(graph->manifest().entries.size(), 3u);
}

TEST_F(CaptureTest, AGraphRunsTheSameOnAnyWorkerCount) {
  auto graph = capture_add(args()).value();
  for (int workers = 1; workers <= 3; ++workers) {
    auto other = device_->create_stream(workers).value();
    std::memset(out_.address, 0, out_.bytes());
    ASSERT_TRUE(graph->launch(*other).ok());
    for (int i = 0; i < kCount; ++i) EXPECT_EQ(out_.as<float>()[i], 2.0f * float(i + 1));
  }
}

}  // namespace
}  // namespace holdfast::device
