// The fork-join pool: every worker once, visibility, barriers, nesting, callers from several threads. Run under TSan
// too.
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <numeric>

#include "base/cgroup.h"

namespace fovea {
namespace {

class ThreadPoolSizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolSizes, testing::Values(1, 2, 3, 8));

TEST_P(ThreadPoolSizes, EachWorkerRunsOnceARoundAndItsWritesAreSeen) {
  ThreadPool pool(GetParam());
  ASSERT_EQ(pool.size(), GetParam());
  std::vector<int> counts(static_cast<std::size_t>(pool.size()));  // plain ints: TSan checks the hand-over
  for (int round = 1; round <= 300; ++round) {
    pool.run([&](int worker) { ++counts[static_cast<std::size_t>(worker)]; });
    for (const int count : counts) ASSERT_EQ(count, round);
  }
}

TEST_P(ThreadPoolSizes, ParallelForCoversEachIndexOnce) {
  ThreadPool pool(GetParam());
  for (const std::int64_t n : {0, 1, 7, 64, 1000}) {
    for (const std::int64_t grain : {0, 1, 3, 64, 5000}) {
      std::vector<int> hits(static_cast<std::size_t>(n));
      pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_LE(end - begin, std::max<std::int64_t>(1, grain));
        for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
      });
      for (const int hit : hits) ASSERT_EQ(hit, 1);
    }
  }
}

TEST_P(ThreadPoolSizes, ParallelForTellsTheWorker) {
  ThreadPool pool(GetParam());
  std::vector<std::int64_t> sums(static_cast<std::size_t>(pool.size()));  // scratch of one worker each
  pool.parallel_for(10000, 10, [&](std::int64_t begin, std::int64_t end, int worker) {
    for (std::int64_t i = begin; i < end; ++i) sums[static_cast<std::size_t>(worker)] += i;
  });
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::int64_t{0}), 10000 * 9999 / 2);
}

TEST_P(ThreadPoolSizes, BarrierSeparatesPhases) {
  ThreadPool pool(GetParam());
  const std::size_t n = static_cast<std::size_t>(pool.size());
  std::vector<int> values(n), next(n);
  pool.run([&](int worker) {
    const std::size_t me = static_cast<std::size_t>(worker);
    for (int step = 0; step < 100; ++step) {
      next[me] = values[(me + 1) % n] + 1;
      pool.barrier(worker);
      values[me] = next[me];
      pool.barrier(worker);
    }
  });
  for (const int value : values) EXPECT_EQ(value, 100);
}

TEST_P(ThreadPoolSizes, NestedRunsAreInline) {
  ThreadPool pool(GetParam());
  std::atomic<int> inner{0};
  pool.run([&](int) {
    const std::thread::id self = std::this_thread::get_id();
    pool.run([&](int) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      ++inner;
    });
    pool.parallel_for(10, 1, [&](std::int64_t begin, std::int64_t end) { inner += static_cast<int>(end - begin); });
  });
  EXPECT_EQ(inner, pool.size() * pool.size() + 10 * pool.size());
  pool.run([&](int worker) { pool.barrier(worker); });  // still a pool afterwards
}

TEST(ThreadPool, CallersFromSeveralThreadsTakeTurns) {
  ThreadPool pool(3);
  std::vector<int> shared(3);  // a race here would mean that two rounds overlap
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) pool.run([&](int worker) { ++shared[static_cast<std::size_t>(worker)]; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(shared, (std::vector<int>{400, 400, 400}));
}

TEST(ThreadPool, WakesFromSleep) {
  ThreadPool pool(2);
  int total = 0;
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far beyond the spin time
    std::atomic<int> ran{0};
    pool.run([&](int) { ++ran; });
    total += ran;
  }
  EXPECT_EQ(total, 40);
}

TEST(ThreadPool, SlowWorkerIsWaitedFor) {
  ThreadPool pool(2);
  bool done = false;
  pool.run([&](int worker) {
    if (worker == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      done = true;
    }
  });
  EXPECT_TRUE(done);
}

TEST(ThreadPool, IdleCostsNoCpu) {
  ThreadPool pool(usable_cpus() + 1);
  pool.run([](int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto cpu_seconds = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.01);
}

TEST(ThreadPool, DefaultSizeFollowsTheEnvironment) {
  setenv("FOVEA_NUM_THREADS", "3", 1);
  EXPECT_EQ(default_num_threads(), 3);
  setenv("FOVEA_NUM_THREADS", "many", 1);
  EXPECT_EQ(default_num_threads(), usable_cpus());
  unsetenv("FOVEA_NUM_THREADS");
  EXPECT_EQ(default_num_threads(), usable_cpus());
}

TEST(ThreadPoolDeathTest, BarrierOutsideOfARoundIsABug) {
  ThreadPool pool(1);
  EXPECT_DEATH(pool.barrier(0), "check failed");
}

}  // namespace
}  // namespace fovea
