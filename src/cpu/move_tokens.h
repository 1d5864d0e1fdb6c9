// Moves tokens of a KV cache in the host's memory. Called by devices whose memory that is, and by tests of the kernel
// that does the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "abi/token_moves.h"

namespace fovea::cpu {

inline void move_tokens(const abi::MoveTokensArgs& args) {
  for (std::uint32_t p = 0; p < args.num_planes; ++p) {
    const abi::KvPlane& plane = args.planes[p];
    for (std::uint32_t m = 0; m < args.num_moves; ++m) {
      const abi::TokenMove& move = args.moves[m * args.num_groups + plane.group];
      for (std::uint32_t head = 0; head < plane.heads; ++head) {
        auto* const first = static_cast<std::byte*>(plane.base) + head * plane.head_stride;
        std::memcpy(first + abi::place_in_plane(plane, args.page_tokens, move.to),
                    first + abi::place_in_plane(plane, args.page_tokens, move.from), plane.row_bytes);
      }
    }
  }
}

}  // namespace fovea::cpu
