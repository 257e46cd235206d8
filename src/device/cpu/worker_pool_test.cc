#include "device/cpu/worker_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace holdfast::device {
namespace {

TEST(WorkerPool, CoversEveryIndexExactlyOnceForOddCountsAndGrains) {
  for (int workers = 1; workers <= 5; ++workers) {
    WorkerPool pool(workers);
    ASSERT_EQ(pool.worker_count(), workers);
    for (std::int64_t count : {0, 1, 2, 3, 5, 7, 16, 17, 63, 101, 1000, 1003}) {
      for (std::int64_t grain : {1, 2, 3, 7, 16, 100, 2000}) {
        std::vector<int> hits(static_cast<std::size_t>(count), 0);
        std::atomic<int> bad{0};
        pool.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, int worker) {
          if (begin % grain != 0 || (end % grain != 0 && end != count) || begin >= end) ++bad;
          if (worker < 0 || worker >= workers) ++bad;
          for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
        });
        ASSERT_EQ(bad, 0) << workers << " workers, " << count << " by " << grain;
        ASSERT_EQ(std::vector<int>(hits.size(), 1), hits)
            << workers << " workers, " << count << " by " << grain;
      }
    }
  }
}

TEST(WorkerPool, AWorkerSeesWhatTheCallerWroteAndTheCallerWhatTheWorkersWrote) {
  WorkerPool pool(4);
  std::vector<std::int64_t> values(64, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for(std::ssize(values), 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) values[static_cast<std::size_t>(i)] += 1;
    });
    for (std::int64_t& value : values) value += 1;
  }
  EXPECT_EQ(values, std::vector<std::int64_t>(64, 4000));
}

using Range = std::pair<std::int64_t, std::int64_t>;

// The ranges of one parallel_for, in order.
std::vector<Range> ranges_of(WorkerPool& pool, std::int64_t count, std::int64_t grain) {
  std::mutex mutex;
  std::vector<Range> ranges;
  pool.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, int) {
    const std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST(WorkerPool, TheSharesAreTheSameHoweverTheyAreTaken) {
  WorkerPool pool(4);
  const std::vector<Range> one_share_each = {{0, 30}, {30, 70}, {70, 110}, {110, 145}};
  const std::vector<Range> two_shares_each = {{0, 50},    {50, 100},  {100, 150}, {150, 200},
                                              {200, 250}, {250, 300}, {300, 350}, {350, 395}};
  for (int round = 0; round < 500; ++round) {
    ASSERT_EQ(ranges_of(pool, 145, 10), one_share_each);
    ASSERT_EQ(ranges_of(pool, 395, 10), two_shares_each);
    ASSERT_EQ(ranges_of(pool, 100000, 1).size(), 16u);
  }
}

// Runs 16 shares on `workers` workers; the first that `held` gets ends when all others are done.
// False when they were not done in many looks: somebody waited for the held one.
bool others_finish_beside(int held, int workers) {
  WorkerPool pool(workers);
  std::atomic<int> done{0};
  std::atomic<bool> holding{false};
  std::atomic<bool> finished{true};
  const auto shares = static_cast<int>(ranges_of(pool, 1600, 1).size());
  while (!holding) {  // until the held worker got any
    done = 0;
    pool.parallel_for(1600, 1, [&](std::int64_t, std::int64_t, int worker) {
      if (worker == held && !holding.exchange(true)) {
        int looks = 0;
        while (done != shares - 1 && ++looks < 5'000'000) std::this_thread::yield();
        finished = done == shares - 1;
      }
      // The others leave the held worker time to begin.
      for (int look = 0; look < 1000 && !holding; ++look) std::this_thread::yield();
      ++done;
    });
  }
  return finished;
}

TEST(WorkerPool, AWorkerHeldInAShareKeepsNoOtherShareFromBeingRun) {
  EXPECT_TRUE(others_finish_beside(1, 2));
  EXPECT_TRUE(others_finish_beside(2, 4));
}

TEST(WorkerPool, ACallerHeldInAShareKeepsNoOtherShareFromBeingRun) {
  EXPECT_TRUE(others_finish_beside(0, 2));
  EXPECT_TRUE(others_finish_beside(0, 4));
}

// More workers than any core can serve at once: most wake late, when their shares are taken, often
// in the middle of a later job. Each job lives on the stack of one call and counts its own parts.
TEST(WorkerPool, ALateWorkerRunsSharesOfTheJobThatIsRunningOnly) {
  WorkerPool pool(16);
  std::int64_t current = 0;
  std::atomic<int> strays{0};
  for (std::int64_t job = 1; job <= 5000; ++job) {
    current = job;
    std::atomic<std::int64_t> sum{0};
    const std::int64_t count = 2 + job % 97;
    pool.parallel_for(count, 1, [&, job](std::int64_t begin, std::int64_t end, int) {
      if (job % 4 == 0) std::this_thread::yield();  // lets others claim some
      if (current != job) ++strays;
      sum += end - begin;
    });
    ASSERT_EQ(sum, count) << "job " << job;
  }
  EXPECT_EQ(strays, 0);
}

TEST(WorkerPool, CallsWithOneWorkerNumberFollowEachOther) {
  WorkerPool pool(8);
  std::vector<std::int64_t> used(8, 0);  // no atomics: the number is the lock
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for(640, 1, [&](std::int64_t begin, std::int64_t end, int worker) {
      for (std::int64_t i = begin; i < end; ++i) ++used[static_cast<std::size_t>(worker)];
    });
  }
  std::int64_t total = 0;
  for (const std::int64_t units : used) total += units;
  EXPECT_EQ(total, 2000 * 640);
}

TEST(WorkerPool, ManyPoolsEndWhileTheirWorkersAreStillWaking) {
  for (int round = 0; round < 200; ++round) {
    WorkerPool pool(4);
    if (round % 2 == 0) {
      ASSERT_EQ(ranges_of(pool, 8, 1).size(), 4u);
    }
  }
}

TEST(WorkerPool, AllCoresIsAtLeastOneWorker) { EXPECT_GE(WorkerPool(0).worker_count(), 1); }

TEST(WorkerPoolDeathTest, ANestedCallIsAnAssertion) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        WorkerPool pool(2);
        pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int) {
          pool.parallel_for(2, 1, [](std::int64_t, std::int64_t, int) {});
        });
      },
      "inside parallel_for");
}

}  // namespace
}  // namespace holdfast::device
