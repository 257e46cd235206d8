// What the audit of a captured graph finds: every declared operand, and every planted pointer.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "device/arena.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_test_device.h"
#include "device/cuda/graph_audit.h"
#include "device/test_home.h"

namespace holdfast::device::cuda {
namespace {

struct AddArgs {
  const float* from;
  float* to;
  std::int64_t count;
};
__global__ void add_one(AddArgs a) {
  for (std::int64_t i = threadIdx.x; i < a.count; i += blockDim.x) a.to[i] = a.from[i] + 1.0f;
}

#pragma pack(push, 4)
struct PackedArgs {
  std::int32_t before;
  float* to;
};
#pragma pack(pop)
__global__ void set_packed(PackedArgs a) { a.to[0] = 5.0f; }

// An arena whose whole range is the home.
struct Fixture {
  explicit Fixture(Device& device)
      : gpu(device),
        arena(Arena::create(device, "slots", 4096).value()),
        stray(Arena::create(device, "stray", 4096).value()),
        stream(device.create_stream().value()) {
    arena->seal();
    home.add(arena->memory().address, arena->memory().bytes);
  }
  float* slot(std::size_t index) {
    return reinterpret_cast<float*>(arena->memory().address) + index;
  }
  Operand operand(const char* role, const float* at, std::size_t count, Access access) {
    return {role, {reinterpret_cast<std::uintptr_t>(at), count * sizeof(float)}, access};
  }
  Status launch_add(const float* from, float* to) {
    return launch_cuda(
        *stream, {"add_one", {.block = dim3(32)}}, add_one, AddArgs{from, to, 32},
        {operand("from", slot(0), 32, Access::kRead), operand("to", slot(64), 32, Access::kWrite)});
  }

  Device& gpu;
  std::unique_ptr<Arena> arena, stray;
  std::unique_ptr<Stream> stream;
  FakeHome home;
};

TEST(CudaAudit, ACaptureReplaysAndItsOperandsAreAllFound) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  float values[32];
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(i);
  gpu.write(f.arena->memory().address, reinterpret_cast<std::byte*>(values), sizeof(values))
      .value();
  auto graph =
      capture(*f.stream, f.home, "add", [&] { return f.launch_add(f.slot(0), f.slot(64)); });
  ASSERT_TRUE(graph.ok()) << graph.error().to_string();
  EXPECT_EQ((*graph)->manifest().entries.size(), 2u);
  (*graph)->launch(*f.stream).value();
  f.stream->synchronize().value();
  gpu.read(reinterpret_cast<std::byte*>(values), reinterpret_cast<std::byte*>(f.slot(64)),
           sizeof(values))
      .value();
  EXPECT_EQ(values[31], 32.0f);
}

TEST(CudaAudit, APointerThatNoOperandDeclaresIsRefused) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  const auto elsewhere = capture(*f.stream, f.home, "elsewhere", [&] {
    return f.launch_add(reinterpret_cast<const float*>(f.stray->memory().address), f.slot(64));
  });
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_EQ(elsewhere.error().code(), ErrorCode::kMismatch) << elsewhere.error().to_string();
  const auto undeclared = capture(*f.stream, f.home, "undeclared",
                                  [&] { return f.launch_add(f.slot(200), f.slot(64)); });
  ASSERT_FALSE(undeclared.ok());
  EXPECT_EQ(undeclared.error().code(), ErrorCode::kMismatch) << undeclared.error().to_string();
}

TEST(CudaAudit, APointerInAPackedStructIsFound) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  const auto launch = [&](float* to) {
    return launch_cuda(*f.stream, {"set_packed", {}}, set_packed, PackedArgs{7, to},
                       {f.operand("to", f.slot(0), 1, Access::kWrite)});
  };
  auto good = capture(*f.stream, f.home, "packed", [&] { return launch(f.slot(0)); });
  EXPECT_TRUE(good.ok()) << good.error().to_string();
  const auto bad = capture(*f.stream, f.home, "packed", [&] { return launch(f.slot(9)); });
  EXPECT_FALSE(bad.ok());
}

TEST(CudaAudit, ANodeThatNoLaunchOfOursMadeIsRefused) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  const auto graph = capture(*f.stream, f.home, "foreign", [&]() -> Status {
    HF_TRY(f.launch_add(f.slot(0), f.slot(64)));
    const auto handle = static_cast<CudaStream&>(*f.stream).handle();
    return check(cudaMemsetAsync(f.stray->memory().address, 0, 64, handle), "memset");
  });
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code(), ErrorCode::kUnsupported) << graph.error().to_string();
}

TEST(CudaDevice, ExchangedBackingShowsUnderTheSameAddressToACapturedGraph) {
  HF_GPU_OR_SKIP(gpu);
  Fixture f(gpu);
  const auto put = [&](std::byte* at, float value) {
    const std::vector<float> values(32, value);
    gpu.write(at, reinterpret_cast<const std::byte*>(values.data()), 128).value();
  };
  put(f.arena->memory().address, 1.0f);
  auto graph =
      capture(*f.stream, f.home, "add", [&] { return f.launch_add(f.slot(0), f.slot(64)); });
  ASSERT_TRUE(graph.ok()) << graph.error().to_string();
  auto backing = f.arena->create_backing().value();
  put(backing.memory().address, 10.0f);
  f.arena->exchange(backing).value();
  (*graph)->launch(*f.stream).value();
  f.stream->synchronize().value();
  float seen = 0;
  gpu.read(reinterpret_cast<std::byte*>(&seen), reinterpret_cast<std::byte*>(f.slot(64)), 4)
      .value();
  EXPECT_EQ(seen, 11.0f);
  gpu.read(reinterpret_cast<std::byte*>(&seen), backing.memory().address, 4).value();
  EXPECT_EQ(seen, 1.0f);
}

TEST(CudaDevice, FreedSmallBlocksGoOutAgainPoisoned) {
  HF_GPU_OR_SKIP(gpu);
  auto first = Arena::create(gpu, "a", 4096).value();
  std::byte* const address = first->memory().address;
  const float one = 1.0f;
  gpu.write(address, reinterpret_cast<const std::byte*>(&one), 4).value();
  first.reset();
  auto second = Arena::create(gpu, "b", 4096).value();
  EXPECT_EQ(second->memory().address, address);
  std::byte byte{};
  gpu.read(&byte, address, 1).value();
  EXPECT_EQ(byte, kPoisonByte);
}

}  // namespace
}  // namespace holdfast::device::cuda
