// Rung 2: FlashAttention-2 (arXiv:2307.08691, section 3). A CTA keeps 64 rows; tiles of 64 tokens come to shared memory
// by cp.async, the next one while this one is multiplied, and are read once for all rows. mma.sync multiplies: a warp
// has 16 rows, and its logits become weights in the registers that hold them.
#pragma once

#include "kernels/ladder/problem.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mbarrier.cuh"

namespace fovea::ladder::tensor_cores {

inline constexpr uint32_t kRows = 64, kTokens = 64, kThreads = 128, kChunks = kHeadDim * 2 / 16;
inline constexpr uint32_t kTileBytes = kTokens * kHeadDim * 2;
inline constexpr uint32_t kSharedBytes = 5 * kTileBytes;  // queries, and two tiles of keys and of values

// Byte offset of 16-byte chunk `chunk` of a row; the exclusive or keeps 8 rows of a chunk out of one another's banks.
__device__ __forceinline__ uint32_t chunk_at(uint32_t row, uint32_t chunk) {
  return row * kHeadDim * 2 + ((chunk ^ row % 8) << 4);
}

// 64 rows from `first` on.
__device__ __forceinline__ void copy_tile(const Problem& problem, uint32_t to, const uint16_t* from, uint32_t first,
                                          uint32_t heads, uint32_t head) {
  for (uint32_t i = threadIdx.x; i < kTokens * kChunks; i += kThreads) {
    const uint32_t row = i / kChunks, chunk = i % kChunks;
    ptx::cp_async_16(to + chunk_at(row, chunk), from + row_at(problem, first + row, heads, head) + chunk * 8);
  }
}

}  // namespace fovea::ladder::tensor_cores

extern "C" __global__ void __launch_bounds__(fovea::ladder::tensor_cores::kThreads)
    fovea_ladder_tensor_cores(fovea::abi::LadderArgs problem) {
  using namespace fovea;
  using namespace fovea::ladder;
  using namespace fovea::ladder::tensor_cores;
  extern __shared__ __align__(1024) uint8_t memory[];
  const Tile tile = Tile::of(problem, kRows);
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_heads = problem.heads / problem.group;
  const uint32_t queries = ptx::smem_address(memory), keys = queries + kTileBytes, values = keys + 2 * kTileBytes;
  const uint32_t row = tile.first_row + warp * 16 + lane / 4;
  const uint32_t tiles = Tile::count(problem, tile.first_row + kRows, kTokens);

  // 1. Queries and the first tile.
  const auto copy_kv = [&](uint32_t n) {
    copy_tile(problem, keys + n % 2 * kTileBytes, problem.k, n * kTokens, kv_heads, tile.kv_head);
    copy_tile(problem, values + n % 2 * kTileBytes, problem.v, n * kTokens, kv_heads, tile.kv_head);
    ptx::cp_async_commit();
  };
  copy_tile(problem, queries, problem.q, tile.first_row, problem.heads, tile.head);
  copy_kv(0);

  Softmax softmax;
  float o[64] = {};
  for (uint32_t n = 0; n < tiles; ++n) {
    if (n + 1 < tiles) {
      copy_kv(n + 1);
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_wait<0>();
    }
    __syncthreads();
    const uint32_t k_tile = keys + n % 2 * kTileBytes, v_tile = values + n % 2 * kTileBytes;

    // 2. Logits of 16 rows and 64 tokens.
    float s[32] = {};
#pragma unroll
    for (uint32_t step = 0; step < kHeadDim / 16; ++step) {
      uint32_t a[4];
      ptx::ldmatrix_x4(a, queries + chunk_at(warp * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (uint32_t pair = 0; pair < kTokens / 16; ++pair) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b, k_tile + chunk_at(pair * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
        ptx::mma_16816<true>(reinterpret_cast<float(&)[4]>(s[pair * 8]), a, b[0], b[1]);
        ptx::mma_16816<true>(reinterpret_cast<float(&)[4]>(s[pair * 8 + 4]), a, b[2], b[3]);
      }
    }

    // 3. Weights.
    float alpha[2];
    if (n + 1 == tiles) mask_causal(s, row, n * kTokens, lane);
    softmax.step(s, problem.scale, alpha);
    multiply_rows(o, alpha);

    // 4. Outputs.
#pragma unroll
    for (uint32_t step = 0; step < kTokens / 16; ++step) {
      uint32_t a[4];
      pack_step(s, static_cast<int>(step), a);
#pragma unroll
      for (uint32_t pair = 0; pair < kHeadDim / 16; ++pair) {
        uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, v_tile + chunk_at(step * 16 + lane / 8 % 2 * 8 + lane % 8, pair * 2 + lane / 16));
        ptx::mma_16816<true>(reinterpret_cast<float(&)[4]>(o[pair * 8]), a, b[0], b[1]);
        ptx::mma_16816<true>(reinterpret_cast<float(&)[4]>(o[pair * 8 + 4]), a, b[2], b[3]);
      }
    }
    __syncthreads();
  }
  store_rows(problem, tile, row, lane, softmax, o);
}
