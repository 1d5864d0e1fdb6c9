// The fork-join pool: every worker once, visibility, barriers, nesting, callers from several threads, forks. Run under
// TSan too.
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <system_error>
#include <thread>

#include "base/cgroup.h"
#include "base/fork_test_util.h"

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

// Whether every worker runs, beside all others.
bool works(ThreadPool& pool) {
  std::vector<int> counts(static_cast<std::size_t>(pool.size()));
  for (int round = 0; round < 20; ++round) {
    pool.run([&](int worker) {
      pool.barrier(worker);
      ++counts[static_cast<std::size_t>(worker)];
    });
  }
  return counts == std::vector<int>(counts.size(), 20);
}

TEST_P(ThreadPoolSizes, AChildOfForkStartsTheThreadsAgain) {
  ThreadPool used(GetParam());
  ThreadPool unused(GetParam());
  EXPECT_TRUE(works(used));
  const auto in_turn = [&] {
    ThreadPool own(GetParam());
    return works(used) && works(own) && works(used);
  };
  EXPECT_STREQ(in_child(in_turn), "well");
  EXPECT_STREQ(in_child([&] { return works(used) && std::string_view(in_child(in_turn)) == "well" && works(used); }),
               "well");
  EXPECT_TRUE(works(used));
  EXPECT_TRUE(works(unused));
}

TEST(ThreadPool, AForkAtAnyMomentOfOtherThreads) {
  ThreadPool pool(3);
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      while (!stop) pool.run([](int) {});
    });
  }
  others.emplace_back([&] {
    while (!stop) ThreadPool(2).run([](int) {});
  });
  for (int i = 0; i < 30; ++i) ASSERT_STREQ(in_child([&] { return works(pool); }), "well");
  stop = true;
  for (std::thread& other : others) other.join();
  EXPECT_TRUE(works(pool));
}

TEST(ThreadPool, APoolOfTheParentMayEndInItsChild) {
  auto pool = std::make_unique<ThreadPool>(3);
  const auto end = [&] {
    pool.reset();
    return true;
  };
  EXPECT_STREQ(in_child(end), "well");
  EXPECT_STREQ(in_child([&] { return works(*pool) && end(); }), "well");
  EXPECT_TRUE(works(*pool));
}

TEST(ThreadPool, WithoutThreadsItSaysSo) {
  ThreadPool pool(3);
  EXPECT_STREQ(in_child([&] {
                 const rlimit none{0, 0};
                 if (::setrlimit(RLIMIT_NPROC, &none) != 0) return false;
                 if (::geteuid() == 0 && ::setuid(65534) != 0) return false;  // root has no such limit
                 for (const auto& use : {+[](ThreadPool& given) { given.run([](int) {}); },
                                         +[](ThreadPool&) { const ThreadPool own(3); }}) {
                   try {
                     use(pool);
                     return false;
                   } catch (const std::system_error&) {
                   }
                 }
                 return true;
               }),
               "well");
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
