// Tokens of the KV cache that move to other places of it, in every layer at once: the arguments of the kernel
// (kernels/cache/move_tokens.cuh) and of the same on the host (cpu/move_tokens.h). Filled by engine/cache/kv_pool.cc.
// Compiles under g++ and NVRTC.
#pragma once

#include "abi/plan.h"

namespace fovea::abi {

// K or V of a layer's heads in one KV group, or their scales. Token t of page p and head h is row_bytes bytes from
// base + p * page_stride + h * head_stride + t * row_bytes on.
struct KvPlane {
  void* base;
  long long page_stride;  // bytes, as are the others
  long long head_stride;
  uint32_t row_bytes;
  uint32_t heads;
  uint32_t group;  // whose slots its tokens have
  uint32_t reserved;
};

// Slots: page * page_tokens + token of the page.
struct TokenMove {
  int32_t from;
  int32_t to;
};

inline constexpr uint32_t kMostTokenMoves = 256;  // of one launch, all groups together
inline constexpr uint32_t kMoveThreads = 128;     // a CTA; a plane a CTA

// Moves happen in their order, and none reads what one before it has written. On a device, addresses and strides of
// planes are multiples of 16 bytes where row_bytes is, else of 4 with it.
struct MoveTokensArgs {
  const KvPlane* planes;
  uint32_t num_planes;
  uint32_t num_groups;
  uint32_t num_moves;
  uint32_t page_tokens;
  TokenMove moves[kMostTokenMoves];  // [num_moves, num_groups]
};

constexpr long long place_in_plane(const KvPlane& plane, uint32_t page_tokens, int32_t slot) {
  const int32_t page = slot / static_cast<int32_t>(page_tokens);
  const int32_t token = slot - page * static_cast<int32_t>(page_tokens);
  return page * plane.page_stride + static_cast<long long>(token) * plane.row_bytes;
}

}  // namespace fovea::abi
