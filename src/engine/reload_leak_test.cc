// A thousand reloads of a tiny model, and pushes: what the process holds must not grow.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "checkpoint/checkpoint.h"
#include "engine/test_support.h"

namespace holdfast::engine {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Freed memory is kept in quarantine there, so resident memory says nothing.
constexpr bool kCountsMemory = false;
constexpr int kReloads = 60;
#else
constexpr bool kCountsMemory = true;
constexpr int kReloads = 1000;
#endif
constexpr int kWarmUp = kReloads / 10;
// Over the reloads after the warm-up: half a page a reload, and less than one set of weights.
constexpr std::int64_t kMemoryTolerance = std::int64_t{2} << 20;
// The reload's own thread may not have ended yet.
constexpr std::ptrdiff_t kThreadTolerance = 1;

struct Held {
  std::int64_t resident_bytes = 0;
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t threads = 0;
};

std::ptrdiff_t entries(const char* directory) {
  const std::filesystem::directory_iterator all(directory);
  return std::distance(begin(all), end(all));
}

Held held() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return {.resident_bytes = resident_pages * ::sysconf(_SC_PAGESIZE),
          .descriptors = entries("/proc/self/fd"),
          .threads = entries("/proc/self/task")};
}

void expect_flat(const Held& warm, const Held& after) {
  EXPECT_EQ(after.descriptors, warm.descriptors);
  EXPECT_NEAR(static_cast<double>(after.threads), static_cast<double>(warm.threads),
              static_cast<double>(kThreadTolerance));
  const std::int64_t grown = after.resident_bytes - warm.resident_bytes;
  testing::Test::RecordProperty("grown_bytes", std::to_string(grown));
  if (kCountsMemory) {
    EXPECT_LT(grown, kMemoryTolerance);
  }
}

TEST(ReloadLeak, AThousandReloadsLeaveMemoryDescriptorsAndThreadsAsTheyWere) {
  EngineOptions options = test_options(model_a());
  options.max_context = 64;
  options.max_sequences = 1;
  const auto core = open_core(options);
  const std::size_t live_bytes = core->runtime().device().usage().live_bytes;
  const char* const strategies[] = {"remap", "copy", "stream"};
  Held warm;
  for (int i = 0; i < kReloads; ++i) {
    if (i == kWarmUp) warm = held();
    ReloadOptions reload{.commit = strategies[i % 3]};
    // Now and then one that fails, and one of a part.
    if (i % 10 == 4) reload.scope.layers = {99};
    if (i % 10 == 7) reload.scope.layers = {i % 4};
    ASSERT_TRUE(core->begin_reload(i % 2 == 0 ? model_b() : model_a(), reload).ok());
    const auto report = core->finish_reload();
    ASSERT_EQ(report.ok(), i % 10 != 4) << i;
  }
  const Held after = held();
  EXPECT_EQ(core->runtime().device().usage().live_bytes, live_bytes);
  expect_flat(warm, after);
}

TEST(ReloadLeak, TwoHundredPushesLeaveMemoryDescriptorsAndThreadsAsTheyWere) {
  EngineOptions options = test_options(model_a());
  options.max_context = 64;
  options.max_sequences = 1;
  const auto core = open_core(options);
  const std::size_t live_bytes = core->runtime().device().usage().live_bytes;
  const auto a = checkpoint::Checkpoint::open(model_a()).value();
  const auto b = checkpoint::Checkpoint::open(model_b()).value();
  constexpr int kPushes = kReloads / 5;
  Held warm;
  for (int i = 0; i < kPushes; ++i) {
    if (i == kPushes / 5) warm = held();
    const std::uint64_t id = core->begin_push({}, {.commit = i % 3 ? "remap" : "copy"}).value();
    for (const checkpoint::LocatedTensor& located : (i % 2 == 0 ? b : a)->tensors()) {
      const auto bytes = located.file->data(*located.entry);
      ASSERT_TRUE(core->push(id, located.entry->name, 0, bytes).ok());
      // Now and then one that is aborted, and one that ends too early.
      if (i % 5 >= 3) break;
    }
    if (i % 5 == 3) {
      ASSERT_TRUE(core->abort_reload().ok());
      continue;
    }
    ASSERT_EQ(core->end_push(id).ok(), i % 5 != 4);
    ASSERT_EQ(core->finish_reload().ok(), i % 5 != 4);
  }
  EXPECT_EQ(core->runtime().device().usage().live_bytes, live_bytes);
  expect_flat(warm, held());
}

}  // namespace
}  // namespace holdfast::engine
