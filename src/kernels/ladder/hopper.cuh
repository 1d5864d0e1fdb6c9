// What the rungs for sm_90a share: tiles of 128 rows and of 128 tokens in shared memory, brought by TMA, and products
// of a warpgroup's 64 rows.
#pragma once

#include "kernels/ladder/problem.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/wgmma_tile.cuh"

#if FOVEA_ARCH >= 900

namespace fovea::ladder {

inline constexpr uint32_t kRows = 128, kTokens = 128, kGroupRows = 64, kGroupThreads = 128;
// A tile is two panels of 64 dims, each a box: 128 rows of 128 bytes under the swizzle of 128 bytes.
inline constexpr uint32_t kPanelBytes = 128 * 128, kTileBytes = 2 * kPanelBytes;

using Maps = abi::LadderMaps;

// 128 rows from `first` on; zeros behind the last token.
__device__ __forceinline__ void copy_tile(uint32_t to, const abi::TensorMap& map, uint32_t barrier, uint32_t head,
                                          uint32_t first) {
  for (uint32_t panel = 0; panel < 2; ++panel) {
    ptx::tma_load_shared_box(to + panel * kPanelBytes, &map, barrier, 0, static_cast<int32_t>(head),
                             static_cast<int32_t>(panel), static_cast<int32_t>(first), 0);
  }
}

// s = Q K^T: 64 rows from `q` on, 128 tokens.
__device__ __forceinline__ void issue_logits(float (&s)[64], uint32_t q, uint32_t k) {
  const uint32_t a = ptx::wgmma_base(q), b = ptx::wgmma_base(k);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint32_t at = step / 4 * kPanelBytes + step % 4 * 32;
    ptx::wgmma_shared<true>(s, ptx::wgmma_at(a, at), ptx::wgmma_at(b, at), step == 0);
  }
  ptx::wgmma_commit();
}

// o += P V.
__device__ __forceinline__ void issue_outputs(float (&o)[64], const uint32_t (&p)[8][4], uint32_t v) {
  const uint32_t b = ptx::wgmma_base(v, kPanelBytes);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step) ptx::wgmma<true, true>(o, p[step], ptx::wgmma_at(b, step * 16 * 128), 0);
  ptx::wgmma_commit();
}

__device__ __forceinline__ void pack(const float (&s)[64], uint32_t (&p)[8][4]) {
#pragma unroll
  for (int step = 0; step < 8; ++step) pack_step(s, step, p[step]);
}

}  // namespace fovea::ladder

#endif
