// Replaces the test program's operator new, to count: I8 is about what the engine thread allocates.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "engine/test_support.h"

namespace {

thread_local bool counting = false;
thread_local std::size_t allocations = 0;

}  // namespace

// At -O1 GCC inlines one of a pair and takes it for a mismatch.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (counting) ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace holdfast::engine {

std::size_t count_allocations(const std::function<void()>& body) {
  allocations = 0;
  counting = true;
  body();
  counting = false;
  return allocations;
}

TEST(CountAllocations, SeesWhatTheBodyAllocatesAndNothingElse) {
  EXPECT_EQ(count_allocations([] {}), 0u);
  std::vector<int> kept;
  EXPECT_EQ(count_allocations([&kept] { kept.resize(100); }), 1u);
}

}  // namespace holdfast::engine
