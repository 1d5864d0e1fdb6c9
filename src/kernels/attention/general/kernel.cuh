// The general attention kernel: persistent CTAs, one an SM, each running its queue of the plan (abi/device_plan.h).
// Grid: the plan's workers; block: kThreads; dynamic shared memory: sizeof(SharedMemory), see tune/attention_choice.h.
// docs/kernels/general.md explains the design; jit/attention_spec.h makes the instantiations; sm_80 and later run
// it, sm_90a with TMA and a register split. Runs every plan; those that share runs go to
// prefix_forest/kernel.cuh where that can be had.
#pragma once

#include "kernels/attention/general/cta.cuh"

extern "C" __global__ void __launch_bounds__(fovea::attention::kThreads, 1)
    fovea_attention(const __grid_constant__ fovea::abi::AttentionArgs args,
                    const __grid_constant__ fovea::abi::TensorMap k_map,
                    const __grid_constant__ fovea::abi::TensorMap v_map) {
  using namespace fovea;
  using namespace fovea::attention;
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  run_cta(args, &k_map, &v_map, *reinterpret_cast<SharedMemory*>(dynamic_shared),
          [&](const Queue& queue, SharedMemory& shared, uint32_t warp, uint32_t lane) {
            run_consumer(args, queue, shared, warp, lane);
          });
}
