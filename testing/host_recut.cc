#include "testing/host_recut.h"

#include <algorithm>
#include <numeric>
#include <vector>

// The kernel comes after what it runs on.
// clang-format off
#define __forceinline__ inline
#include "kernels/any/recut.cuh"
// clang-format on

namespace fovea {
namespace {

struct HostCta {
  std::mt19937_64& random;
  std::vector<std::uint32_t>& order;
  std::uint32_t threads() const { return static_cast<std::uint32_t>(order.size()); }
  template <typename Step>
  void each_thread(const Step& step) const {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::uint32_t thread : order) step(thread);
  }
};

}  // namespace

void recut_on_host(const abi::RecutArgs& args, std::mt19937_64& random) {
  std::vector<std::uint32_t> order(abi::kRecutThreads);
  std::iota(order.begin(), order.end(), 0u);
  std::vector<std::uint8_t> smem(args.smem_bytes);
  const HostCta cta{random, order};
  kernels::Recut<HostCta>(cta, args, smem.data()).run();
}

}  // namespace fovea
