// The source of the kernels of page selection, run on the host: threads of a step in random order, a thread of the host
// for each CTA of a cluster.
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "testing/host_cta.h"
#include "tests/kernels/select_case.h"

// The kernels come after what they run on.
// clang-format off
#include "tests/kernels/host_instructions.h"
#include "kernels/cache/codes.cuh"
#include "kernels/cache/select.cuh"
// clang-format on

namespace fovea::kernels {
namespace {

using namespace kernel_test;

// What the CTAs of a list share; each has its own numbers and order of threads.
struct HostCluster {
  HostCluster(std::uint32_t ranks, std::uint32_t cache_words)
      : barrier(static_cast<std::ptrdiff_t>(ranks)), memory(ranks) {
    for (auto& one : memory) one.assign(sizeof(SelectShared) / 16 + cache_words / 4 + 2, Chunk{});
  }
  SelectShared& shared(std::uint32_t rank) { return *reinterpret_cast<SelectShared*>(memory[rank].data()); }
  std::uint32_t* cache(std::uint32_t rank) { return reinterpret_cast<std::uint32_t*>(&shared(rank) + 1); }
  struct alignas(16) Chunk {
    std::uint32_t words[4] = {0x5a5a5a5au, 0x5a5a5a5au, 0x5a5a5a5au, 0x5a5a5a5au};
  };
  std::barrier<> barrier;
  std::vector<std::vector<Chunk>> memory;  // a CTA's shared memory: SelectShared, then keys and entries
};

struct HostCta : fovea::HostCta {
  HostCta(std::mt19937_64& random, std::vector<std::uint32_t>& order, HostCluster& cluster, std::uint32_t rank)
      : fovea::HostCta{random, order}, cluster_(cluster), rank_(rank) {}
  std::uint32_t rank() const { return rank_; }
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(cluster_.memory.size()); }
  static constexpr bool kCachesAll = false;
  // A step without a barrier after it.
  template <typename Step>
  void each_thread_alone(const Step& step) const {
    each_thread(step);
  }
  template <typename Step>
  void each_thread_of_warps(const Step& step) const {
    each_thread(step);
  }
  template <SelectMessage, typename T>
  void send(std::uint32_t rank, const T& to, const T& value) const {
    const auto at =
        reinterpret_cast<const std::uint8_t*>(&to) - reinterpret_cast<const std::uint8_t*>(&cluster_.shared(rank_));
    std::memcpy(reinterpret_cast<std::uint8_t*>(&cluster_.shared(rank)) + at, &value, sizeof value);
  }
  template <SelectMessage>
  void receive(std::uint32_t) const {
    cluster_.barrier.arrive_and_wait();
  }
  template <typename Value, typename Use>
  void scan(std::uint32_t*, const Value& value, const Use& use) const {
    std::vector<std::uint32_t> values(order.size()), kept(order.size()), before(order.size());
    each_thread([&](std::uint32_t thread) { values[thread] = value(thread, kept[thread]); });
    std::exclusive_scan(values.begin(), values.end(), before.begin(), 0u);
    each_thread([&](std::uint32_t thread) { use(thread, before[thread], values[thread], kept[thread]); });
  }
  template <typename Use>
  void rank_words(const std::uint64_t* words, std::uint32_t count, std::uint32_t, const Use& use) const {
    for (std::uint32_t i = 0; i < count; ++i) {
      use(words[i], static_cast<std::uint32_t>(
                        std::count_if(words, words + count, [&](std::uint64_t word) { return word > words[i]; })));
    }
  }

 private:
  HostCluster& cluster_;
  std::uint32_t rank_;
};

// The weights as the kernel prepared them, one product after another.
struct HostScorer {
  void guess_at(const HostCta&, const abi::SelectArgs&) const {}
  void guess(const abi::SelectArgs&, std::uint32_t) const {}
  void find(const SelectWork&, const SelectKeys&) const {}
  void fill(const SelectWork&, const SelectKeys&, std::uint8_t*, std::uint32_t*) const {}
  void score(const HostCta& cta, const SelectWork& work, const SelectQuery& query, const SelectKeys& keys,
             const SelectBins& bins) const {
    for (std::uint32_t p = 0; p < keys.count; ++p) {
      const SelectPlace place = work.place_of(work.unit_at(keys.first + p));
      if (keys.entries != nullptr) keys.entries[p] = work.entry_of(place);
      const std::uint8_t* const record =
          static_cast<const std::uint8_t*>(work.args.stats.data) + work.record_of(place) * std::uint64_t{16};
      float best = -std::numeric_limits<float>::infinity();
      for (std::uint32_t g = 0; g < abi::kSelectGroup; ++g) {
        std::int32_t most = std::numeric_limits<std::int32_t>::min();
        for (std::uint32_t t = 0; t < 16; ++t) {
          std::int32_t sum = 0;
          for (std::uint32_t i = 0; i < abi::kCodeChannels; ++i) {
            sum += query.weights[abi::weight_place(g, i)] * (record[abi::code_place(i / 2, t)] >> i % 2 * 4 & 15);
          }
          most = std::max(most, sum);
        }
        best = std::max(best, query.constant(g) + query.scale[g] * static_cast<float>(most));
      }
      const std::uint32_t key = keys.key_of(keys.first + p, best);
      std::uint32_t& to = keys.at(keys.first + p - keys.start);
      if (!keys.shared) {
        to = key;
        bins.add(key);
      }
      for (std::uint32_t j = 0; keys.shared && j < cta.ranks(); ++j) cta.send<kKeysMessage>(j, to, key);
    }
  }
};

void run_list(const abi::SelectArgs& args, std::uint32_t list, std::uint64_t seed) {
  HostCluster cluster(args.splits, abi::select_key_words(args.cached_keys) + args.cached_entries);
  const auto run_cta = [&](std::uint32_t rank) {
    std::mt19937_64 random(seed + rank);
    std::vector<std::uint32_t> order(abi::kSelectThreads);
    std::iota(order.begin(), order.end(), 0u);
    std::vector<std::uint8_t> ring(abi::kSelectRingBytes, 0x5a);
    HostCta cta(random, order, cluster, rank);
    HostScorer scorer;
    Select<HostCta, HostScorer, KvDType::kBF16> select(cta, scorer, args, cluster.shared(rank), ring.data(),
                                                       cluster.cache(rank));
    select.prepare(list % args.num_heads);
    select.run(list / args.num_heads, list % args.num_heads);
  };
  std::vector<std::jthread> ctas;
  for (std::uint32_t rank = 1; rank < args.splits; ++rank) ctas.emplace_back(run_cta, rank);
  run_cta(0);
}

TEST(SelectKernelTest, ListsAreThoseOfTheHost) {
  std::mt19937_64 random(3);
  check_selections(120, 1, [&](const abi::SelectArgs& args) {
    std::vector<std::uint32_t> lists(args.requests * args.num_heads);
    std::iota(lists.begin(), lists.end(), 0u);
    std::shuffle(lists.begin(), lists.end(), random);
    for (const std::uint32_t list : lists) run_list(args, list, random());
  });
}

TEST(KeyCodesKernelTest, CodesAreTheNearest) {
  std::mt19937_64 random(4);
  for (std::uint64_t seed = 0; seed < 200 && !HasFatalFailure(); ++seed) {
    check_key_codes(seed, [&](const abi::CodesArgs& args) {
      launch_on_host(abi::codes_ctas(args), abi::kCodesThreads, random,
                     [&](std::uint32_t thread) { KeyCodes<KvDType::kBF16>::run(args, thread); });
    });
  }
}

}  // namespace
}  // namespace fovea::kernels
