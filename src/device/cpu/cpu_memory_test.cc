// The CPU device's memory: poison, pool, limits, protection and the exchange of pages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <span>
#include <thread>

#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_memory.h"

namespace holdfast::device {
namespace {

using testing::HasSubstr;

std::span<std::byte> bytes_of(Memory memory) { return {memory.address, memory.bytes}; }

bool all_are(Memory memory, int value) {
  for (std::byte byte : bytes_of(memory)) {
    if (byte != static_cast<std::byte>(value)) return false;
  }
  return true;
}

class CpuMemoryTest : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device();
};

TEST_F(CpuMemoryTest, AnAllocationIsWholePagesOfPoison) {
  const Memory memory = device_->allocate(5000).value();
  EXPECT_EQ(memory.bytes, 8192u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.address) % device_->page_bytes(), 0u);
  EXPECT_TRUE(all_are(memory, 0xDD));
  device_->free(memory);
}

TEST_F(CpuMemoryTest, ALargeAllocationIsAlignedToHugePages) {
  const Memory memory = device_->allocate((std::size_t{5} << 20) + 1).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.address) % kHugePageBytes, 0u);
  EXPECT_EQ(memory.bytes, (std::size_t{5} << 20) + device_->page_bytes());
  device_->free(memory);
}

TEST_F(CpuMemoryTest, AFreedBlockIsHandedOutAgainFirstAndHoldsPoison) {
  const Memory first = device_->allocate(4096).value();
  std::memset(first.address, 7, first.bytes);
  device_->free(first);
  EXPECT_EQ(device_->usage().pooled_bytes, 4096u);
  const Memory again = device_->allocate(4096).value();
  EXPECT_EQ(again.address, first.address);
  EXPECT_TRUE(all_are(again, 0xDD));
  EXPECT_EQ(device_->usage().pooled_bytes, 0u);
  device_->free(again);
}

TEST_F(CpuMemoryTest, AReadOnlyBlockCanBeFreedAndReused) {
  const Memory memory = device_->allocate(4096).value();
  ASSERT_TRUE(device_->protect(memory, Protection::kReadOnly).ok());
  device_->free(memory);
  const Memory again = device_->allocate(4096).value();
  again.address[0] = std::byte{1};
  device_->free(again);
}

#ifndef __SANITIZE_ADDRESS__
TEST_F(CpuMemoryTest, APointerIntoAFreedBlockReadsPoisonAndThenAStrangersData) {
  const Memory memory = device_->allocate(4096).value();
  std::memset(memory.address, 7, memory.bytes);
  const volatile std::byte* stale = memory.address + 100;
  device_->free(memory);
  EXPECT_EQ(std::byte{*stale}, kPoisonByte);
  const Memory stranger = device_->allocate(4096).value();
  std::memset(stranger.address, 9, stranger.bytes);
  EXPECT_EQ(std::byte{*stale}, std::byte{9});
  device_->free(stranger);
}
#endif

using CpuMemoryDeathTest = CpuMemoryTest;

#ifdef __SANITIZE_ADDRESS__
TEST_F(CpuMemoryDeathTest, AReadOfAFreedBlockIsAUseAfterFree) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Memory memory = device_->allocate(4096).value();
  const volatile std::byte* stale = memory.address + 100;
  device_->free(memory);
  EXPECT_DEATH((void)*stale, "use-after-poison");
}
#endif

TEST_F(CpuMemoryDeathTest, AReadOfALargeFreedBlockFaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const Memory memory = device_->allocate(std::size_t{17} << 20).value();
        const volatile std::byte* stale = memory.address;
        device_->free(memory);
        (void)*stale;
      },
      "");
}

TEST_F(CpuMemoryDeathTest, AFreeOfWhatIsNotLiveIsAnAssertion) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Memory memory = device_->allocate(8192).value();
  EXPECT_DEATH(device_->free({memory.address, 4096}), "not live");
  EXPECT_DEATH(device_->free({memory.address + 4096, 4096}), "not live");
  device_->free(memory);
  EXPECT_DEATH(device_->free(memory), "freed twice");
}

TEST_F(CpuMemoryDeathTest, ADeviceThatEndsWithLiveAllocationsIsAnAssertion) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto device = make_cpu_device();
        (void)device->allocate(1);
      },
      "1 allocations live");
}

TEST_F(CpuMemoryTest, ThePoolIsBounded) {
  auto device = make_cpu_device({.max_pooled_block_bytes = 8192, .max_pooled_bytes = 12288});
  const Memory large = device->allocate(12288).value();
  const Memory a = device->allocate(8192).value();
  const Memory b = device->allocate(8192).value();
  device->free(large);
  EXPECT_EQ(device->usage().pooled_bytes, 0u);
  device->free(a);
  device->free(b);
  EXPECT_EQ(device->usage().pooled_bytes, 8192u);
}

TEST_F(CpuMemoryTest, UsageCountsLiveAndPeakBytes) {
  const Memory a = device_->allocate(4096).value();
  const Memory b = device_->allocate(8192).value();
  device_->free(a);
  EXPECT_EQ(device_->usage().live_bytes, 8192u);
  EXPECT_EQ(device_->usage().peak_bytes, 12288u);
  device_->reset_peak();
  EXPECT_EQ(device_->usage().peak_bytes, 8192u);
  device_->free(b);
  EXPECT_EQ(device_->usage().live_bytes, 0u);
}

TEST_F(CpuMemoryTest, MoreThanTheSystemHasIsRefusedWithBothNumbers) {
  for (std::size_t bytes : {std::size_t{1} << 50, std::numeric_limits<std::size_t>::max()}) {
    const auto memory = device_->allocate(bytes);
    ASSERT_FALSE(memory.ok());
    EXPECT_EQ(memory.error().code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(memory.error().message(), HasSubstr(std::to_string(bytes)));
    EXPECT_THAT(memory.error().message(), HasSubstr("the system has "));
  }
  EXPECT_EQ(device_->allocate(0).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(device_->usage().live_bytes, 0u);
}

TEST_F(CpuMemoryTest, ProtectOfPartOfAPageIsRefused) {
  const Memory memory = device_->allocate(8192).value();
  for (const Memory& part : {Memory{memory.address + 1, 4096}, Memory{memory.address, 100},
                             Memory{memory.address, 0}, Memory{}}) {
    const Status status = device_->protect(part, Protection::kReadOnly);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  }
  device_->free(memory);
}

TEST_F(CpuMemoryDeathTest, AWriteToReadOnlyMemoryAndAReadOfNoneFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Memory memory = device_->allocate(4096).value();
  volatile std::byte* target = memory.address;
  ASSERT_TRUE(device_->protect(memory, Protection::kReadOnly).ok());
  EXPECT_EQ(std::byte{*target}, kPoisonByte);
  EXPECT_DEATH(*target = std::byte{1}, "");
  ASSERT_TRUE(device_->protect(memory, Protection::kNone).ok());
  EXPECT_DEATH((void)*target, "");
  device_->free(memory);
}

// Sizes around the page and the huge page, and one that is no multiple of the latter.
class ExchangeTest : public testing::TestWithParam<std::size_t> {
 protected:
  std::unique_ptr<Device> device_ = make_cpu_device();
};

TEST_P(ExchangeTest, ContentsChangePlacesAndAddressesStay) {
  const Memory a = device_->allocate(GetParam()).value();
  const Memory b = device_->allocate(GetParam()).value();
  std::memset(a.address, 0x11, a.bytes);
  std::memset(b.address, 0x22, b.bytes);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(device_->exchange_backing(a, b).ok());
    EXPECT_TRUE(all_are(a, round % 2 == 0 ? 0x22 : 0x11));
    EXPECT_TRUE(all_are(b, round % 2 == 0 ? 0x11 : 0x22));
  }
  EXPECT_EQ(device_->usage().live_bytes, a.bytes + b.bytes);
  device_->free(a);
  device_->free(b);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ExchangeTest,
                         testing::Values(4096, 3 * 4096, (2 << 20), (2 << 20) + 4096, 9 << 20));

TEST_F(CpuMemoryDeathTest, TheProtectionTravelsWithThePages) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Memory a = device_->allocate(4096).value();
  const Memory b = device_->allocate(4096).value();
  ASSERT_TRUE(device_->protect(a, Protection::kReadOnly).ok());
  ASSERT_TRUE(device_->exchange_backing(a, b).ok());
  a.address[0] = std::byte{1};
  volatile std::byte* target = b.address;
  EXPECT_DEATH(*target = std::byte{1}, "");
  device_->free(a);
  device_->free(b);
}

TEST_F(CpuMemoryDeathTest, AnExchangeOfUnequalSizesIsAnAssertion) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Memory a = device_->allocate(4096).value();
  const Memory b = device_->allocate(8192).value();
  EXPECT_DEATH((void)device_->exchange_backing(a, b), "of one size");
  EXPECT_DEATH((void)device_->exchange_backing(a, a), "of one size");
  device_->free(a);
  device_->free(b);
}

// A mremap that refuses the call after the next `calls_until_refusal`.
int calls_until_refusal = 0;
bool refusing_move(std::byte* from, std::byte* to, std::size_t bytes, bool keep) {
  if (calls_until_refusal-- == 0) {
    errno = ENOMEM;
    return false;
  }
  return move_pages_by_mremap(from, to, bytes, keep);
}

TEST(CpuMemoryExchange, WhicheverStepTheSystemRefusesBothRangesAreAsTheyWere) {
  CpuMemory memory({}, &refusing_move);
  const Memory a = memory.allocate(8192).value();
  const Memory b = memory.allocate(8192).value();
  std::memset(a.address, 0x11, a.bytes);
  std::memset(b.address, 0x22, b.bytes);
  for (int step = 0; step < 3; ++step) {
    calls_until_refusal = step;
    const Status status = memory.exchange(a, b);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kDevice);
    EXPECT_TRUE(all_are(a, 0x11)) << step;
    EXPECT_TRUE(all_are(b, 0x22)) << step;
    a.address[0] = std::byte{0x11};  // and writable
    b.address[0] = std::byte{0x22};
  }
  calls_until_refusal = 3;
  ASSERT_TRUE(memory.exchange(a, b).ok());
  EXPECT_TRUE(all_are(a, 0x22));
  memory.free(a);
  memory.free(b);
}

// A mremap of before Linux 5.7, which knows no MREMAP_DONTUNMAP.
bool old_kernel_move(std::byte* from, std::byte* to, std::size_t bytes, bool keep) {
  if (!keep) return move_pages_by_mremap(from, to, bytes, false);
  errno = EINVAL;
  return false;
}

TEST(CpuMemoryExchange, AKernelThatCannotKeepTheEmptyMappingExchangesToo) {
  CpuMemory memory({}, &old_kernel_move);
  const Memory a = memory.allocate(8192).value();
  const Memory b = memory.allocate(8192).value();
  std::memset(a.address, 0x11, a.bytes);
  ASSERT_TRUE(memory.exchange(a, b).ok());
  EXPECT_TRUE(all_are(a, 0xDD));
  EXPECT_TRUE(all_are(b, 0x11));
  memory.free(a);
  memory.free(b);
}

TEST_F(CpuMemoryTest, NoOtherThreadsAllocationLandsInTheRangesOfAnExchange) {
  const Memory a = device_->allocate(std::size_t{4} << 20).value();
  const Memory b = device_->allocate(std::size_t{4} << 20).value();
  std::memset(a.address, 0x11, a.bytes);
  std::memset(b.address, 0x22, b.bytes);
  std::atomic<bool> stop{false};
  std::atomic<int> spoiled{0};
  std::thread other([&] {
    auto device = make_cpu_device({.max_pooled_bytes = 0});
    while (!stop) {
      const Memory mine = device->allocate(std::size_t{4} << 20).value();
      std::memset(mine.address, 0x33, mine.bytes);
      if (!all_are(mine, 0x33)) ++spoiled;
      device->free(mine);
    }
  });
  for (int round = 0; round < 50; ++round) {
    ASSERT_TRUE(device_->exchange_backing(a, b).ok());
    ASSERT_TRUE(all_are(a, round % 2 == 0 ? 0x22 : 0x11));
  }
  stop = true;
  other.join();
  EXPECT_EQ(spoiled, 0);
  device_->free(a);
  device_->free(b);
}

TEST_F(CpuMemoryTest, AStreamOfAnAbsurdWorkerCountIsRefused) {
  for (int workers : {-1, 1025, 1 << 30}) {
    EXPECT_EQ(device_->create_stream(workers).error().code(), ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace holdfast::device
