// The attention kernel for plans in which requests share runs (abi::kPlanShares): loaders, queues and ring are those of
// general/kernel.cuh, with its grid, block and shared memory; the warps that compute are prefix_forest/units.cuh. Runs
// every plan, as a captured graph may ask it to. A kernel of its own, because both in one took twice as long to
// compile.
#pragma once

#include "kernels/attention/general/cta.cuh"
#include "kernels/attention/prefix_forest/units.cuh"

extern "C" __global__ void __launch_bounds__(fovea::attention::kThreads, 1)
    fovea_attention(const __grid_constant__ fovea::abi::AttentionArgs args,
                    const __grid_constant__ fovea::abi::TensorMap k_map,
                    const __grid_constant__ fovea::abi::TensorMap v_map) {
  using namespace fovea;
  using namespace fovea::attention;
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  run_cta(args, &k_map, &v_map, *reinterpret_cast<SharedMemory*>(dynamic_shared),
          [&](const Queue& queue, SharedMemory& shared, uint32_t warp, uint32_t lane) {
            prefix_forest::run_units(args, queue, shared, warp, lane);
          });
}
