#include "core/schedule/tile.h"

#include <algorithm>

namespace fovea {
namespace {

// Positions of a tile's rows. Rows of one request ascend, but a producer may list rows in any order.
void position_range(const std::int32_t* q_pos, std::uint32_t count, std::int32_t& lowest, std::int32_t& highest) {
  lowest = highest = q_pos[0];
  for (std::uint32_t i = 1; i < count; ++i) {
    lowest = std::min(lowest, q_pos[i]);
    highest = std::max(highest, q_pos[i]);
  }
}

std::uint32_t clamp_token(std::int64_t token, std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(token, low, high));
}

bool by_position(abi::MaskKind mask) { return mask == abi::MaskKind::kCausal || mask == abi::MaskKind::kWindow; }

}  // namespace

std::uint8_t tile_class_of(std::uint32_t rows) {
  std::uint8_t tile_class = 0;
  while ((kSmallestTile << tile_class) < rows) ++tile_class;
  return tile_class;
}

void bound_tile(const abi::BlockRow& block_row, const std::int32_t* q_pos, const TileConfig& config, PlanTile& tile) {
  const std::uint32_t first = std::min(block_row.first_token, block_row.num_tokens);
  tile.kv_begin = first;
  tile.kv_end = block_row.num_tokens;
  tile.min_pos = tile.max_pos = 0;
  if (!by_position(block_row.mask)) return;
  position_range(q_pos, tile.row_count, tile.min_pos, tile.max_pos);
  // Positions listed page by page are in no order: every row may see any of them.
  if (block_row.positions_begin != abi::kNone) return;
  const std::int64_t base = block_row.position_base;
  tile.kv_end = clamp_token(tile.max_pos + 1 - base, first, block_row.num_tokens);
  if (block_row.mask != abi::MaskKind::kWindow) return;
  tile.kv_begin =
      clamp_token(tile.min_pos - static_cast<std::int64_t>(block_row.window_left) - base, first, tile.kv_end);
  if (config.aligned && tile.kv_begin < tile.kv_end) {
    const std::int64_t position = base + tile.kv_begin;
    tile.kv_begin = clamp_token(position - position % config.block_tokens - base, first, tile.kv_end);
  }
}

std::uint32_t make_tiles(const abi::BlockRow* block_rows, std::uint32_t num_block_rows, const std::int32_t* q_pos,
                         const TileConfig& config, FixedVector<PlanTile>& tiles, std::uint32_t* tile_begin) {
  const std::uint32_t step = config.tokens_per_tile();
  std::uint32_t partial_rows = 0;
  for (std::uint32_t b = 0; b < num_block_rows; ++b) {
    const abi::BlockRow& block_row = block_rows[b];
    tile_begin[b] = tiles.size;
    for (std::uint32_t row = 0; row < block_row.row_count; row += step) {
      // Filled in place: see ItemMaker in cut.cc.
      FOVEA_CHECK(tiles.size < tiles.capacity);
      PlanTile& tile = tiles.data[tiles.size++];
      tile.block_row = b;
      tile.row_begin = block_row.row_begin + row;
      tile.row_count = static_cast<std::uint16_t>(std::min(step, block_row.row_count - row));
      tile.head_begin = block_row.head_begin;
      tile.head_end = block_row.head_end;
      const std::uint32_t rows = tile.row_count * config.group;
      tile.tile_class = tile_class_of(rows);
      tile.solo = (block_row.flags & abi::kRowsSolo) != 0;
      bound_tile(block_row, q_pos + tile.row_begin, config, tile);
      tile.token_cost = abi::token_cost(config.cost, rows);
      tile.cost_fixed = abi::fixed_cost(config.cost, rows, !tile.solo);
      tile.partial_slot = abi::kNone;
      if (!tile.solo) {
        tile.partial_slot = partial_rows;
        partial_rows += tile.heads() * rows;
      }
      tile.first_item = tile.num_items = tile.first_split = tile.num_splits = 0;
    }
  }
  tile_begin[num_block_rows] = tiles.size;
  return partial_rows;
}

bool may_mask(const abi::BlockRow& block_row, const PlanTile& tile, std::uint32_t kv_begin, std::uint32_t kv_end) {
  if (kv_begin >= kv_end || block_row.mask == abi::MaskKind::kNone) return false;
  if (!by_position(block_row.mask) || block_row.positions_begin != abi::kNone) return true;
  const std::int64_t base = block_row.position_base;
  if (base + kv_end - 1 > tile.min_pos) return true;
  return block_row.mask == abi::MaskKind::kWindow &&
         base + kv_begin < tile.max_pos - std::int64_t{block_row.window_left};
}

}  // namespace fovea
