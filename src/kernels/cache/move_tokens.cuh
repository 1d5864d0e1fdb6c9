// fovea_move_tokens: K and V of tokens, and their scales, from one slot of the cache to another, in all layers by one
// launch: what becomes of accepted draft tokens. Launched by device/cuda; arguments in abi/token_moves.h.
//
//   Grid: a CTA of kMoveThreads threads for each plane; no shared memory.
//   A thread has one access of each moved token: it alone reads and writes there, so moves whose places are each
//   other's need no order between threads. kMovesAtOnce are read before the first of them is written.
#pragma once

#include "abi/token_moves.h"
#include "kernels/ptx/sync.cuh"

namespace fovea::kernels {

inline constexpr uint32_t kMovesAtOnce = 8;

template <typename Access>
__device__ __forceinline__ void move_tokens(const abi::MoveTokensArgs& args, const abi::KvPlane& plane) {
  const uint32_t accesses = plane.row_bytes / sizeof(Access);  // a row
  for (uint32_t i = threadIdx.x; i < plane.heads * accesses; i += blockDim.x) {
    const uint32_t head = i / accesses;
    uint8_t* const first =
        static_cast<uint8_t*>(plane.base) + head * plane.head_stride + (i - head * accesses) * sizeof(Access);
    const auto at = [&](int32_t slot) {
      return reinterpret_cast<Access*>(first + abi::place_in_plane(plane, args.page_tokens, slot));
    };
    for (uint32_t begin = 0; begin < args.num_moves; begin += kMovesAtOnce) {
      const abi::TokenMove* const moves = args.moves + begin * args.num_groups + plane.group;
      Access moving[kMovesAtOnce];
#pragma unroll
      for (uint32_t m = 0; m < kMovesAtOnce; ++m) {
        if (begin + m < args.num_moves) moving[m] = *at(moves[m * args.num_groups].from);
      }
#pragma unroll
      for (uint32_t m = 0; m < kMovesAtOnce; ++m) {
        if (begin + m < args.num_moves) *at(moves[m * args.num_groups].to) = moving[m];
      }
    }
  }
}

}  // namespace fovea::kernels

#if defined(FOVEA_MOVE_TOKENS)
extern "C" __global__ void __launch_bounds__(fovea::abi::kMoveThreads)
    fovea_move_tokens(const __grid_constant__ fovea::abi::MoveTokensArgs args) {
  fovea::ptx::griddepcontrol_wait();
  fovea::ptx::griddepcontrol_launch_dependents();
  const fovea::abi::KvPlane plane = args.planes[blockIdx.x];
  if (plane.row_bytes % sizeof(uint4) == 0) {
    fovea::kernels::move_tokens<uint4>(args, plane);
  } else {
    fovea::kernels::move_tokens<uint32_t>(args, plane);
  }
}
#endif
