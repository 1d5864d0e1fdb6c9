// The tile step: cuts the query tokens of each block row into tiles and bounds the KV range that each tile sees.
// Called by core/plan after packing; pure, in one pass, without allocation.
#pragma once

#include <cstdint>

#include "abi/cost.h"
#include "abi/plan.h"
#include "core/schedule/workspace.h"

namespace fovea {

// A tile of query tokens of one block row: one item under every KV head of it unless a cut divides it.
struct PlanTile {
  std::uint32_t block_row;
  std::uint32_t row_begin;   // query token, an index into row_indices
  std::uint16_t row_count;   // query tokens
  std::uint16_t head_begin;  // KV heads
  std::uint16_t head_end;
  std::uint8_t tile_class;
  std::uint8_t solo;       // see abi::kRowsSolo
  std::uint32_t kv_begin;  // tokens of the run that some row may see
  std::uint32_t kv_end;    // == kv_begin when none is
  std::int32_t min_pos;    // positions of its rows; only where the block row has a mask by position
  std::int32_t max_pos;
  std::uint32_t token_cost;    // abi/cost.h
  std::uint32_t cost_fixed;    // of the undivided item
  std::uint32_t partial_slot;  // of the undivided item; kNone when solo
  std::uint32_t first_item;    // undivided (or whole-chunk) items, filled when items are made
  std::uint32_t num_items;
  std::uint32_t first_split;  // its (tile, head) pairs that a cut divided
  std::uint32_t num_splits;

  std::uint32_t tokens() const { return kv_end - kv_begin; }
  std::uint32_t heads() const { return head_end - head_begin; }
  std::uint64_t cost() const { return cost_fixed + static_cast<std::uint64_t>(token_cost) * tokens(); }
};

struct TileConfig {
  std::uint32_t group = 1;          // query heads a KV head
  std::uint32_t tile_rows = 128;    // (token, query head) rows of the largest class
  std::uint32_t block_tokens = 64;  // kv_begin is rounded down to a multiple of it when aligned
  bool aligned = false;
  abi::CostModel cost;

  // Query tokens of a full tile; tile i of a block row starts at its row i * tokens_per_tile().
  std::uint32_t tokens_per_tile() const { return tile_rows / group; }
};

inline constexpr std::uint32_t kSmallestTile = 16;

// Smallest class (16 << class rows) that holds `rows` rows.
std::uint8_t tile_class_of(std::uint32_t rows);

// Sets kv range and positions of a tile from the mask of its block row. q_pos: positions of the tile's rows.
void bound_tile(const abi::BlockRow& block_row, const std::int32_t* q_pos, const TileConfig& config, PlanTile& tile);

// Appends the tiles of every block row; tile_begin[b] becomes the first tile of block row b (num_block_rows + 1
// values). Returns the partial rows that undivided tiles take: slots that stay where they are when lengths grow.
std::uint32_t make_tiles(const abi::BlockRow* block_rows, std::uint32_t num_block_rows, const std::int32_t* q_pos,
                         const TileConfig& config, FixedVector<PlanTile>& tiles, std::uint32_t* tile_begin);

// True when the mask may hide some pair of the tile's rows and tokens [kv_begin, kv_end) of the run.
bool may_mask(const abi::BlockRow& block_row, const PlanTile& tile, std::uint32_t kv_begin, std::uint32_t kv_end);

}  // namespace fovea
