#include "testing/host_reschedule.h"

#include <numeric>
#include <vector>

#include "testing/host_cta.h"

// The kernel comes after what it runs on.
// clang-format off
#define __forceinline__ inline
#include "kernels/plan/reschedule.cuh"
// clang-format on

namespace fovea {

void reschedule_on_host(const abi::RescheduleArgs& args, std::mt19937_64& random) {
  std::vector<std::uint32_t> order(abi::kRescheduleThreads);
  std::iota(order.begin(), order.end(), 0u);
  std::vector<std::uint8_t> smem(args.smem_bytes);
  const HostCta cta{random, order};
  kernels::Rescheduler<HostCta>(cta, args, smem.data()).run();
}

}  // namespace fovea
