// Rung 3: the same on Hopper's instructions, still in turns. Two warpgroups have 64 rows each; a thread asks TMA for a
// tile, all wait for it, multiply by wgmma, find weights, multiply again. Tensor cores rest while anything else runs.
#pragma once

#include "kernels/ladder/hopper.cuh"

#if FOVEA_ARCH >= 900

extern "C" __global__ void __launch_bounds__(256, 1)
    fovea_ladder_wgmma(fovea::abi::LadderArgs problem, const __grid_constant__ fovea::abi::LadderMaps maps) {
  using namespace fovea;
  using namespace fovea::ladder;
  extern __shared__ __align__(1024) uint8_t memory[];
  const Tile tile = Tile::of(problem, kRows);
  const uint32_t lane = threadIdx.x % 32, group = threadIdx.x / kGroupThreads;
  const uint32_t queries = ptx::smem_address(memory), keys = queries + kTileBytes, values = keys + kTileBytes;
  const uint32_t landed = values + kTileBytes;
  const uint32_t row = tile.first_row + threadIdx.x / 32 * 16 + lane / 4;
  const uint32_t tiles = Tile::count(problem, tile.first_row + kRows, kTokens);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(landed, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  Softmax softmax;
  float o[64] = {};
  for (uint32_t n = 0; n < tiles; ++n) {
    // 1. A tile.
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect(landed, (n == 0 ? 3 : 2) * kTileBytes);
      if (n == 0) copy_tile(queries, maps.q, landed, tile.head, tile.first_row);
      copy_tile(keys, maps.k, landed, tile.kv_head, n * kTokens);
      copy_tile(values, maps.v, landed, tile.kv_head, n * kTokens);
    }
    ptx::mbarrier_wait(landed, n % 2);

    // 2. Logits.
    float s[64];
    issue_logits(s, queries + group * kGroupRows * 128, keys);
    ptx::wgmma_wait<0>();
    ptx::wgmma_settle(s);

    // 3. Weights.
    float alpha[2];
    uint32_t p[8][4];
    if (n + 1 == tiles) mask_causal(s, row, n * kTokens, lane);
    softmax.step(s, problem.scale, alpha);
    multiply_rows(o, alpha);
    pack(s, p);

    // 4. Outputs.
    issue_outputs(o, p, values);
    ptx::wgmma_wait<0>();
    ptx::wgmma_settle(o);
    __syncthreads();
  }
  store_rows(problem, tile, row, lane, softmax, o);
}

#endif
