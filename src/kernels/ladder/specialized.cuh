// Rungs 4 and 5: a third warpgroup loads, so that tiles are there before they are needed, and gives most of its
// registers away (FlashAttention-3, arXiv:2407.08608, section 3.1). FOVEA_LADDER_OVERLAPPED 1 is rung 5: outputs are
// multiplied while the next weights are found (section 3.2), and the warpgroups take turns at issuing, so that one
// multiplies while the other is at its softmax (section 3.1).
#pragma once

#include "kernels/ladder/hopper.cuh"

#if FOVEA_ARCH >= 900

namespace fovea::ladder {

inline constexpr uint32_t kSlots = 2, kThreads = 3 * kGroupThreads, kTurnBarrier = 1;
inline constexpr uint32_t kReaders = 2 * kGroupThreads / 32;  // warps that release a slot

struct Memory {
  alignas(1024) uint8_t q[kTileBytes];
  alignas(1024) uint8_t k[kSlots][kTileBytes];
  alignas(1024) uint8_t v[kSlots][kTileBytes];
  uint64_t q_full;
  uint64_t k_full[kSlots], v_full[kSlots], k_empty[kSlots], v_empty[kSlots];
};

__device__ __forceinline__ void wait_for(const uint64_t& barrier, uint32_t parity) {
  ptx::mbarrier_wait(ptx::smem_address(&barrier), parity);
}
// By each warp, whose own part of the products is done: the slot may be filled again.
__device__ __forceinline__ void release(const uint64_t& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::smem_address(&barrier));
}

// By one thread: tiles in order, as slots are free.
__device__ __forceinline__ void load_tiles(const Maps& maps, const Tile& tile, uint32_t tiles, Memory& shared) {
  const auto load = [&](uint8_t* to, const abi::TensorMap& map, const uint64_t& full, uint32_t head, uint32_t first) {
    const uint32_t barrier = ptx::smem_address(&full);
    ptx::mbarrier_arrive_expect(barrier, kTileBytes);
    copy_tile(ptx::smem_address(to), map, barrier, head, first);
  };
  load(shared.q, maps.q, shared.q_full, tile.head, tile.first_row);
  for (uint32_t n = 0; n < tiles; ++n) {
    const uint32_t slot = n % kSlots, free = n / kSlots % 2 ^ 1;
    wait_for(shared.k_empty[slot], free);
    load(shared.k[slot], maps.k, shared.k_full[slot], tile.kv_head, n * kTokens);
    wait_for(shared.v_empty[slot], free);
    load(shared.v[slot], maps.v, shared.v_full[slot], tile.kv_head, n * kTokens);
  }
}

// A warpgroup's rows, tile by tile.
struct Worker {
  const Problem& problem;
  Memory& shared;
  uint32_t group, row, lane, tiles;
  Softmax softmax;
  float o[64] = {};
  uint32_t p[8][4];

  __device__ __forceinline__ void multiply_keys(uint32_t n, float (&s)[64]) {
    wait_for(shared.k_full[n % kSlots], n / kSlots % 2);
    issue_logits(s, ptx::smem_address(shared.q) + group * kGroupRows * 128, ptx::smem_address(shared.k[n % kSlots]));
  }
  __device__ __forceinline__ void multiply_values(uint32_t n) {
    wait_for(shared.v_full[n % kSlots], n / kSlots % 2);
    issue_outputs(o, p, ptx::smem_address(shared.v[n % kSlots]));
  }
  __device__ __forceinline__ void find_weights(uint32_t n, float (&s)[64], float (&alpha)[2]) {
    if (n + 1 == tiles) mask_causal(s, row, n * kTokens, lane);
    softmax.step(s, problem.scale, alpha);
  }

#if !FOVEA_LADDER_OVERLAPPED
  __device__ __forceinline__ void run() {
    for (uint32_t n = 0; n < tiles; ++n) {
      float s[64], alpha[2];
      multiply_keys(n, s);
      ptx::wgmma_wait<0>();
      ptx::wgmma_settle(s);
      release(shared.k_empty[n % kSlots]);
      find_weights(n, s, alpha);
      multiply_rows(o, alpha);
      pack(s, p);
      multiply_values(n);
      ptx::wgmma_wait<0>();
      ptx::wgmma_settle(o);
      release(shared.v_empty[n % kSlots]);
    }
  }
#else
  __device__ __forceinline__ void wait_turn() { ptx::barrier_sync(kTurnBarrier + group, 2 * kGroupThreads); }
  __device__ __forceinline__ void pass_turn() { ptx::barrier_arrive(kTurnBarrier + (group ^ 1), 2 * kGroupThreads); }

  __device__ __forceinline__ void run() {
    if (group == 1) pass_turn();  // the first begins
    float s[64], alpha[2];
    multiply_keys(0, s);
    ptx::wgmma_wait<0>();
    ptx::wgmma_settle(s);
    release(shared.k_empty[0]);
    find_weights(0, s, alpha);
    pack(s, p);
    for (uint32_t n = 0; n + 1 < tiles; ++n) {
      // The next logits, then these outputs; the next weights while the outputs are under way.
      wait_turn();
      multiply_keys(n + 1, s);
      multiply_values(n);
      pass_turn();
      ptx::wgmma_wait<1>();
      ptx::wgmma_settle(s);
      release(shared.k_empty[(n + 1) % kSlots]);
      find_weights(n + 1, s, alpha);
      ptx::wgmma_wait<0>();
      ptx::wgmma_settle(o);
      release(shared.v_empty[n % kSlots]);
      multiply_rows(o, alpha);
      pack(s, p);
    }
    wait_turn();
    multiply_values(tiles - 1);
    if (group == 0) pass_turn();  // behind the last turn of the second nobody waits
    ptx::wgmma_wait<0>();
    ptx::wgmma_settle(o);
  }
#endif
};

}  // namespace fovea::ladder

extern "C" __global__ void __launch_bounds__(fovea::ladder::kThreads, 1)
    fovea_ladder_specialized(fovea::abi::LadderArgs problem, const __grid_constant__ fovea::abi::LadderMaps maps) {
  using namespace fovea;
  using namespace fovea::ladder;
  extern __shared__ __align__(1024) uint8_t memory[];
  Memory& shared = *reinterpret_cast<Memory*>(memory);
  const Tile tile = Tile::of(problem, kRows);
  const uint32_t tiles = Tile::count(problem, tile.first_row + kRows, kTokens), group = threadIdx.x / kGroupThreads;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(ptx::smem_address(&shared.q_full), 1);
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      ptx::mbarrier_init(ptx::smem_address(&shared.k_full[slot]), 1);
      ptx::mbarrier_init(ptx::smem_address(&shared.v_full[slot]), 1);
      ptx::mbarrier_init(ptx::smem_address(&shared.k_empty[slot]), kReaders);
      ptx::mbarrier_init(ptx::smem_address(&shared.v_empty[slot]), kReaders);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (group == 2) {
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x == 2 * kGroupThreads) load_tiles(maps, tile, tiles, shared);
    return;
  }
  ptx::setmaxnreg_inc<240>();
  const uint32_t lane = threadIdx.x % 32, row = tile.first_row + threadIdx.x / 32 * 16 + lane / 4;
  Worker worker{problem, shared, group, row, lane, tiles};
  wait_for(shared.q_full, 0);
  worker.run();
  store_rows(problem, tile, row, lane, worker.softmax, worker.o);
}

#endif
