#include "device/cpu/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
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

TEST(WorkerPool, EachWorkerGetsOneContiguousShareOfEqualSize) {
  WorkerPool pool(4);
  std::vector<std::int64_t> sizes(4, 0);
  pool.parallel_for(400, 10, [&](std::int64_t begin, std::int64_t end, int worker) {
    EXPECT_EQ(begin, worker * 100);
    sizes[static_cast<std::size_t>(worker)] = end - begin;
  });
  EXPECT_EQ(sizes, std::vector<std::int64_t>(4, 100));
}

TEST(WorkerPool, AllCoresIsAtLeastOneWorker) { EXPECT_GE(WorkerPool(0).worker_count(), 1); }

TEST(WorkerPoolDeathTest, ANestedCallIsAnAssertion) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        WorkerPool pool(2);
        pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int worker) {
          if (worker == 0) pool.parallel_for(2, 1, [](std::int64_t, std::int64_t, int) {});
        });
      },
      "inside parallel_for");
}

}  // namespace
}  // namespace holdfast::device
