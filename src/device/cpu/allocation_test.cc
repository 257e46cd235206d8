// I8 on the CPU device: a replay allocates nothing. Counts every operator new of the test program;
// the sanitizers bring their own, so there this file holds no test.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "device/cpu/cpu_device.h"
#include "device/test_home.h"

namespace {
std::atomic<std::uint64_t> allocation_count{0};
}

void* operator new(std::size_t bytes) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace holdfast::device {
namespace {

struct SumArgs {
  tensor::TensorView x;
  tensor::TensorView out;
};
void run_sum(const SumArgs& args, WorkerPool& workers) {
  workers.parallel_for(64, 1, [&args](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) args.out.as<float>()[i] += args.x.as<float>()[i];
  });
}

TEST(Allocation, AReplayAllocatesNothing) {
  auto device = make_cpu_device();
  auto stream = device->create_stream(2).value();
  const Memory memory = device->allocate(4096).value();
  FakeHome home;
  home.add(memory.address, memory.bytes);
  const tensor::Shape shape{64};
  const SumArgs args{{memory.address, tensor::DType::kF32, shape},
                     {memory.address + 1024, tensor::DType::kF32, shape}};
  auto graph = capture(*stream, home, "decode", [&]() -> Status {
                 for (int i = 0; i < 100; ++i) {
                   HF_TRY(launch_cpu<&run_sum>(*stream, "sum", args,
                                               {reads("x", args.x), updates("out", args.out)}));
                 }
                 return stream->copy(memory.address + 2048, memory.address, 256);
               }).value();
  const std::uint64_t before = allocation_count;
  bool ok = true;
  for (int i = 0; i < 10; ++i) ok = graph->launch(*stream).ok() && ok;
  EXPECT_EQ(allocation_count, before);
  EXPECT_TRUE(ok);
  device->free(memory);
}

}  // namespace
}  // namespace holdfast::device
#endif
