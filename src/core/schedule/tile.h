// The tile step: cuts the query tokens of each block row into tiles and bounds the KV range that each tile sees
// (abi/cut.h). Called by core/plan after packing; pure, in one pass, without allocation.
#pragma once

#include <cstdint>

#include "abi/cut.h"
#include "core/schedule/workspace.h"

namespace fovea {

using abi::bound_tile;
using abi::kSmallestTile;
using abi::may_mask;
using abi::PlanTile;
using abi::tile_class_of;
using abi::TileConfig;

// Appends the tiles of every block row; tile_begin[b] becomes the first tile of block row b (num_block_rows + 1
// values). Returns the partial rows that undivided tiles take: slots that stay where they are when lengths grow.
std::uint32_t make_tiles(const abi::BlockRow* block_rows, std::uint32_t num_block_rows, const std::int32_t* q_pos,
                         const TileConfig& config, FixedVector<PlanTile>& tiles, std::uint32_t* tile_begin);

}  // namespace fovea
