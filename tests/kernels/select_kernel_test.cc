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
#include "kernels/any/codes.cuh"
#include "kernels/any/select.cuh"
// clang-format on

namespace fovea::kernels {
namespace {

using namespace kernel_test;

// What the CTAs of a list share; each has its own numbers and order of threads.
struct HostCluster {
  explicit HostCluster(std::uint32_t ranks) : barrier(static_cast<std::ptrdiff_t>(ranks)), shared(ranks) {}
  std::barrier<> barrier;
  std::vector<SelectShared> shared;
};

struct HostCta : fovea::HostCta {
  HostCta(std::mt19937_64& random, std::vector<std::uint32_t>& order, HostCluster& cluster, std::uint32_t rank)
      : fovea::HostCta{random, order}, cluster_(cluster), rank_(rank) {}
  std::uint32_t rank() const { return rank_; }
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(cluster_.shared.size()); }
  // A step without a barrier after it.
  template <typename Step>
  void each_thread_alone(const Step& step) const {
    each_thread(step);
  }
  template <SelectMessage, typename T>
  void send(std::uint32_t rank, const T& to, const T& value) const {
    const auto at =
        reinterpret_cast<const std::uint8_t*>(&to) - reinterpret_cast<const std::uint8_t*>(&cluster_.shared[rank_]);
    std::memcpy(reinterpret_cast<std::uint8_t*>(&cluster_.shared[rank]) + at, &value, sizeof value);
  }
  template <SelectMessage>
  void receive(std::uint32_t) const {
    cluster_.barrier.arrive_and_wait();
  }
  void exclusive_sums(const std::uint32_t* values, std::uint32_t* before, std::uint32_t*) const {
    std::exclusive_scan(values, values + order.size(), before, 0u);
  }

 private:
  HostCluster& cluster_;
  std::uint32_t rank_;
};

// The weights as the kernel prepared them, one product after another.
struct HostScorer {
  void find(const SelectWork&, const SelectKeys&) const {}
  void fill(const SelectWork&, const SelectKeys&, std::uint8_t*, std::uint32_t*) const {}
  void score(const HostCta&, const SelectWork& work, const SelectQuery& query, const SelectKeys& keys,
             SelectExtremes& extremes) const {
    for (std::uint32_t p = 0; p < keys.count; ++p) {
      const std::uint32_t unit = work.unit_at(keys.first + p);
      const std::uint8_t* const record = static_cast<const std::uint8_t*>(work.args.stats.data) +
                                         work.record_of(work.place_of(unit)) * std::uint64_t{16};
      float best = -std::numeric_limits<float>::infinity();
      for (std::uint32_t g = 0; g < abi::kSelectGroup; ++g) {
        std::int32_t most = std::numeric_limits<std::int32_t>::min();
        for (std::uint32_t t = 0; t < 16; ++t) {
          std::int32_t sum = 0;
          for (std::uint32_t i = 0; i < abi::kCodeChannels; ++i) {
            sum += query.weights[abi::weight_place(g, i)] * (record[i / 2 * 16 + t] >> i % 2 * 4 & 15);
          }
          most = std::max(most, sum);
        }
        best = std::max(best, query.constant(g) + query.scale[g] * static_cast<float>(most));
      }
      extremes.add(keys.put(p, best));
    }
  }
};

void run_list(const abi::SelectArgs& args, std::uint32_t list, std::uint64_t seed) {
  HostCluster cluster(args.splits);
  std::memset(cluster.shared.data(), 0x5a, args.splits * sizeof(SelectShared));
  const auto run_cta = [&](std::uint32_t rank) {
    std::mt19937_64 random(seed + rank);
    std::vector<std::uint32_t> order(abi::kSelectThreads);
    std::iota(order.begin(), order.end(), 0u);
    std::vector<std::uint8_t> ring(abi::kSelectRingBytes, 0x5a);
    std::vector<std::uint32_t> cache(args.cached_keys + args.cached_keys / 32 + 1, 0x5a5a5a5au);
    HostCta cta(random, order, cluster, rank);
    HostScorer scorer;
    Select<HostCta, HostScorer, KvDType::kBF16> select(cta, scorer, args, cluster.shared[rank], ring.data(),
                                                       cache.data());
    select.run(list);
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
