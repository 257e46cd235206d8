#include "device/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"

namespace holdfast::device {
namespace {

using testing::HasSubstr;

class ArenaTest : public testing::Test {
 protected:
  std::unique_ptr<Arena> sealed_arena(std::size_t bytes = 4096) {
    auto arena = Arena::create(device_, "weights", bytes).value();
    arena->seal();
    return arena;
  }
  static int first(Memory memory) { return static_cast<int>(*memory.address); }

  SimDevice device_{make_cpu_device()};
};

TEST_F(ArenaTest, AllocationsAreAlignedAndFollowEachOther) {
  auto arena = Arena::create(device_, "weights", 4096).value();
  std::byte* a = arena->allocate(5, 1).value();
  std::byte* b = arena->allocate(8, 64).value();
  EXPECT_EQ(a, arena->memory().address);
  EXPECT_EQ(b, a + 64);
  EXPECT_EQ(arena->used_bytes(), 72u);
}

TEST_F(ArenaTest, AFullArenaSaysWhatWasAskedAndWhatIsLeft) {
  auto arena = Arena::create(device_, "weights", 4096).value();
  ASSERT_TRUE(arena->allocate(4000, 1).ok());
  const auto more = arena->allocate(97, 1);
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(more.error().message(), HasSubstr("asked for 97 bytes"));
  EXPECT_THAT(more.error().message(), HasSubstr("96 of 4096"));
  EXPECT_FALSE(arena->allocate(~std::size_t{0}, 64).ok());
  EXPECT_TRUE(arena->allocate(96, 1).ok());
}

TEST_F(ArenaTest, BadArgumentsAreRefused) {
  EXPECT_EQ(Arena::create(device_, "weights", 0).error().code(), ErrorCode::kInvalidArgument);
  auto arena = Arena::create(device_, "weights", 4096).value();
  EXPECT_EQ(arena->allocate(1, 0).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(arena->allocate(1, 48).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(ArenaTest, ASealedArenaGivesNothingAndAnUnsealedOneExchangesNothing) {
  auto arena = Arena::create(device_, "weights", 4096).value();
  auto backing = arena->create_backing().value();
  EXPECT_EQ(arena->exchange(backing).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(arena->protect(Protection::kReadOnly).error().code(), ErrorCode::kFailedPrecondition);
  arena->seal();
  EXPECT_EQ(arena->allocate(1, 1).error().code(), ErrorCode::kFailedPrecondition);
}

TEST_F(ArenaTest, AnExchangeShowsTheStagedContentAndASecondOneUndoesIt) {
  auto arena = sealed_arena();
  std::memset(arena->memory().address, 1, 4096);
  auto backing = arena->create_backing().value();
  std::memset(backing.memory().address, 2, 4096);
  std::byte* const address = arena->memory().address;
  ASSERT_TRUE(arena->exchange(backing).ok());
  EXPECT_EQ(first(arena->memory()), 2);
  EXPECT_EQ(first(backing.memory()), 1);
  ASSERT_TRUE(arena->exchange(backing).ok());
  EXPECT_EQ(first(arena->memory()), 1);
  EXPECT_EQ(arena->memory().address, address);
}

TEST_F(ArenaTest, ABackingOfAnotherSizeOrDeviceIsAMismatchAndChangesNothing) {
  auto arena = sealed_arena();
  std::memset(arena->memory().address, 1, 4096);
  auto large = sealed_arena(8192)->create_backing().value();
  EXPECT_EQ(arena->exchange(large).error().code(), ErrorCode::kMismatch);
  Backing empty;
  EXPECT_EQ(arena->exchange(empty).error().code(), ErrorCode::kMismatch);
  SimDevice other(make_cpu_device());
  auto foreign = Arena::create(other, "other", 4096).value()->create_backing().value();
  const Status status = arena->exchange(foreign);
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  EXPECT_THAT(status.error().message(), HasSubstr("another device"));
  EXPECT_EQ(first(arena->memory()), 1);
}

TEST_F(ArenaTest, AFailedExchangeLeavesBothRangesAsTheyWere) {
  auto arena = sealed_arena();
  std::memset(arena->memory().address, 1, 4096);
  ASSERT_TRUE(arena->protect(Protection::kReadOnly).ok());
  auto backing = arena->create_backing().value();
  std::memset(backing.memory().address, 2, 4096);
  for (Fault fault : {Fault::kExchangeFails, Fault::kProtectFails, Fault::kDeviceLost}) {
    device_.arm({{.fault = fault}});
    const Status status = arena->exchange(backing);
    ASSERT_FALSE(status.ok()) << fault_name(fault);
    EXPECT_EQ(status.error().code(), ErrorCode::kDevice);
    EXPECT_THAT(status.error().message(), HasSubstr("arena weights"));
    EXPECT_EQ(first(arena->memory()), 1);
    EXPECT_EQ(first(backing.memory()), 2);
    EXPECT_EQ(arena->protection(), Protection::kReadOnly);
  }
  device_.disarm();
  ASSERT_TRUE(arena->exchange(backing).ok());
  EXPECT_EQ(first(arena->memory()), 2);
}

using ArenaDeathTest = ArenaTest;

TEST_F(ArenaDeathTest, AReadOnlyArenaIsReadOnlyAfterAnExchangeAndThePreviousContentToo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto arena = sealed_arena();
  ASSERT_TRUE(arena->protect(Protection::kReadOnly).ok());
  auto backing = arena->create_backing().value();
  ASSERT_TRUE(arena->exchange(backing).ok());
  EXPECT_DEATH(*static_cast<volatile std::byte*>(arena->memory().address) = std::byte{1}, "");
  EXPECT_DEATH(*static_cast<volatile std::byte*>(backing.memory().address) = std::byte{1}, "");
  ASSERT_TRUE(backing.protect(Protection::kReadWrite).ok());
  *backing.memory().address = std::byte{1};
  ASSERT_TRUE(arena->exchange(backing).ok());
  EXPECT_DEATH(*static_cast<volatile std::byte*>(arena->memory().address) = std::byte{1}, "");
}

TEST_F(ArenaTest, BackingsAndArenasGiveTheirPagesBack) {
  {
    auto arena = sealed_arena();
    Backing backing = arena->create_backing().value();
    Backing moved = std::move(backing);
    EXPECT_TRUE(backing.empty());
    EXPECT_EQ(backing.protect(Protection::kReadOnly).error().code(),
              ErrorCode::kFailedPrecondition);
    moved = arena->create_backing().value();
    EXPECT_EQ(device_.usage().live_bytes, 2 * 4096u);
  }
  EXPECT_EQ(device_.usage().live_bytes, 0u);
}

TEST_F(ArenaTest, AnAllocationThatFailsNamesTheArena) {
  device_.arm({{.fault = Fault::kAllocationFails, .at_call = 1}});
  auto arena = sealed_arena();
  const auto backing = arena->create_backing();
  ASSERT_FALSE(backing.ok());
  EXPECT_EQ(backing.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(backing.error().message(), HasSubstr("backing of arena weights"));
}

}  // namespace
}  // namespace holdfast::device
