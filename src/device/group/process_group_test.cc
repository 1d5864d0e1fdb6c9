// ProcessGroup over threads: sums and their order, gathers of any width, records longer than the ring, and ends.
#include "device/group/process_group.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "base/random.h"

namespace fovea {
namespace {

using Groups = std::vector<std::shared_ptr<ProcessGroup>>;

Groups make(int size) {
  auto groups = ProcessGroup::of_threads(size);
  EXPECT_TRUE(groups.ok()) << groups.status().message();
  return groups.ok() ? *groups : Groups{};
}

// Calls f(group, pool) on a thread a rank.
void on_all(const Groups& groups, const std::function<void(ProcessGroup&, ThreadPool&)>& f) {
  std::vector<std::thread> threads;
  threads.reserve(groups.size());
  for (const auto& group : groups) {
    threads.emplace_back([&f, &group] {
      ThreadPool pool(2);
      f(*group, pool);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void all_leave(const Groups& groups) {
  for (const auto& group : groups) group->leave();
}

std::vector<float> numbers(int rank, std::size_t count) {
  PhiloxRng rng(static_cast<std::uint64_t>(rank) + 1);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(rng.next_below(1u << 24)) * 0x1p-20f - 8.0f;
  return out;
}

TEST(ProcessGroup, SumsInTheOrderOfRanks) {
  for (const int size : {2, 3, 5}) {
    const Groups groups = make(size);
    for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{300'001}}) {
      std::vector<float> expected = numbers(0, count);
      for (int rank = 1; rank < size; ++rank) {
        const std::vector<float> more = numbers(rank, count);
        for (std::size_t i = 0; i < count; ++i) expected[i] += more[i];
      }
      on_all(groups, [&](ProcessGroup& group, ThreadPool& pool) {
        std::vector<float> x = numbers(group.rank(), count);
        const Status status = group.all_reduce(x.data(), static_cast<std::int64_t>(count), pool);
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(x, expected);
      });
    }
    all_leave(groups);
  }
}

TEST(ProcessGroup, GathersColumnsOfAnyWidth) {
  const Groups groups = make(3);
  struct Case {
    std::int64_t rows, width, step, stride;
  };
  for (const Case& c :
       {Case{5, 100, 34, 128}, Case{1, 7, 3, 7}, Case{700, 600, 200, 600}, Case{2, 400'000, 140'000, 400'001}}) {
    std::vector<float> expected(static_cast<std::size_t>(c.rows * c.stride));
    std::iota(expected.begin(), expected.end(), 1.0f);
    on_all(groups, [&](ProcessGroup& group, ThreadPool&) {
      std::vector<float> rows = expected;
      for (std::int64_t row = 0; row < c.rows; ++row) {
        for (std::int64_t column = 0; column < c.width; ++column) {
          if (column / c.step != group.rank()) rows[static_cast<std::size_t>(row * c.stride + column)] = -1.0f;
        }
      }
      const Status status = group.all_gather(rows.data(), c.rows, c.stride, c.width, c.step);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(rows, expected);
    });
  }
  on_all(groups, [&](ProcessGroup& group, ThreadPool&) {
    const std::int64_t mine = group.rank() * 10;
    std::int64_t all[3] = {};
    EXPECT_TRUE(group.all_gather(&mine, sizeof mine, all).ok());
    EXPECT_EQ(all[0] + 1, 1);
    EXPECT_EQ(all[1], 10);
    EXPECT_EQ(all[2], 20);
  });
  all_leave(groups);
}

TEST(ProcessGroup, RecordsOfRankZeroReachAll) {
  const Groups groups = make(3);
  const std::size_t lengths[] = {0, 1, 70, 400'000, 3, 1'000'000};
  on_all(groups, [&](ProcessGroup& group, ThreadPool&) {
    for (const std::size_t length : lengths) {
      std::vector<std::int32_t> words;
      std::vector<std::int32_t> expected(length);
      std::iota(expected.begin(), expected.end(), static_cast<std::int32_t>(length));
      if (group.rank() == 0) words = expected;
      const Status status = group.broadcast(words);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(words, expected);
    }
  });
  all_leave(groups);
}

TEST(ProcessGroup, AFailureReachesWhoeverWaits) {
  const Groups groups = make(3);
  on_all(groups, [&](ProcessGroup& group, ThreadPool& pool) {
    if (group.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      group.end(Status(StatusCode::kResourceExhausted, "rank 2 is out of memory"));
      return;
    }
    std::vector<float> x(10, 1.0f);
    const Status status = group.all_reduce(x.data(), 10, pool);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(status.message(), "rank 2 is out of memory");
    std::vector<std::int32_t> words;
    EXPECT_FALSE(group.broadcast(words).ok());
  });
}

TEST(ProcessGroup, ADeathEndsTheOthers) {
  for (const int dead : {0, 1, 2}) {
    Groups groups = make(3);
    std::atomic<int> told{0};
    for (const auto& group : groups) {
      if (group->rank() != dead) group->on_end([&told](const Status&) { ++told; });
    }
    groups[static_cast<std::size_t>(dead)].reset();
    std::erase(groups, nullptr);
    on_all(groups, [&](ProcessGroup& group, ThreadPool&) {
      const Status status = group.barrier();
      EXPECT_EQ(status.code(), StatusCode::kUnavailable);
      EXPECT_NE(status.message().find("rank " + std::to_string(dead) + " of 3"), std::string::npos) << status.message();
    });
    const auto begin = std::chrono::steady_clock::now();
    while (told < 2 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(told, 2);
  }
}

TEST(ProcessGroup, WhoHasLeftMayGo) {
  Groups groups = make(2);
  all_leave(groups);
  groups.pop_back();
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  EXPECT_TRUE(groups[0]->status().ok()) << groups[0]->status().message();
}

TEST(ProcessGroup, RanksFindEachOtherByName) {
  const std::string name = "fovea-test-" + std::to_string(::getpid());
  std::vector<std::thread> threads;
  for (int rank = 1; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto socket = connect_rank(name, 30.0);
      ASSERT_TRUE(socket.ok()) << socket.status().message();
      auto group = ProcessGroup::join(std::move(*socket), rank, 3);
      ASSERT_TRUE(group.ok()) << group.status().message();
      EXPECT_TRUE((*group)->barrier().ok());
      (*group)->leave();
    });
  }
  auto sockets = accept_ranks(name, 3, 30.0);
  ASSERT_TRUE(sockets.ok()) << sockets.status().message();
  auto group = ProcessGroup::lead(std::move(*sockets));
  ASSERT_TRUE(group.ok()) << group.status().message();
  EXPECT_TRUE((*group)->barrier().ok());
  (*group)->leave();
  for (std::thread& thread : threads) thread.join();
}

TEST(ProcessGroup, WhoIsNoRankOfItIsRefused) {
  auto ends = GroupSocket::pair();
  ASSERT_TRUE(ends.ok());
  ASSERT_TRUE(ends->second.send_hello(2, 3).ok());
  std::vector<GroupSocket> sockets;
  sockets.push_back(std::move(ends->first));
  const auto group = ProcessGroup::lead(std::move(sockets));
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().message(), "rank 1 of 2 did not join: it says that it is rank 2 of 3, expected 1 to 1 of 2");
  EXPECT_FALSE(ProcessGroup::of_threads(1).ok());
  EXPECT_FALSE(ProcessGroup::of_threads(17).ok());
}

}  // namespace
}  // namespace fovea
