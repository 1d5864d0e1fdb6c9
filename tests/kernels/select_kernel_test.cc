// The source of the kernels of page selection, run on the host: threads of a step in random order, CTAs too.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

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

struct HostCta : fovea::HostCta {
  void exclusive_sums(const std::uint32_t* values, std::uint32_t* before, std::uint32_t*) const {
    std::exclusive_scan(values, values + order.size(), before, 0u);
  }
  bool is_last(std::uint32_t* counter, std::uint32_t count, std::uint32_t&) const {
    if (++*counter < count) return false;
    *counter = 0;
    return true;
  }
};

// The weights as the kernel prepared them, one product after another.
struct HostScorer {
  void score(const HostCta&, const SelectWork& work, const SelectQuery& query, std::uint32_t* keys) const {
    const std::uint32_t count = abi::span_count(work.span);
    for (std::uint32_t p = work.split; p < count; p += work.args.splits) {
      const std::uint32_t unit = work.unit_at(p);
      const std::uint8_t* const record =
          static_cast<const std::uint8_t*>(work.args.stats.data) + work.record_of(unit) * std::uint64_t{16};
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
        best = std::max(best, query.constant[g] + query.scale[g] * static_cast<float>(most));
      }
      keys[p] = work.key_of(unit, best);
    }
  }
};

TEST(SelectKernelTest, ListsAreThoseOfTheHost) {
  std::mt19937_64 random(3);
  std::vector<std::uint32_t> order(abi::kSelectThreads);
  std::iota(order.begin(), order.end(), 0u);
  const auto launch = [&](const abi::SelectArgs& args) {
    std::vector<std::uint32_t> ctas(abi::select_ctas(args));
    std::iota(ctas.begin(), ctas.end(), 0u);
    std::shuffle(ctas.begin(), ctas.end(), random);
    std::vector<std::uint32_t> cache(args.cached_keys, 0x5a5a5a5au);
    SelectShared shared;
    std::memset(&shared, 0x5a, sizeof shared);
    const HostCta cta{random, order};
    for (const std::uint32_t index : ctas) {
      Select<HostCta, HostScorer, KvDType::kBF16>(cta, HostScorer{}, args, shared, cache.data()).run(index);
    }
  };
  check_selections(120, 1, launch);
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
