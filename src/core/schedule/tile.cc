#include "core/schedule/tile.h"

namespace fovea {

std::uint32_t make_tiles(const abi::BlockRow* block_rows, std::uint32_t num_block_rows, const std::int32_t* q_pos,
                         const TileConfig& config, FixedVector<PlanTile>& tiles, std::uint32_t* tile_begin) {
  const std::uint32_t step = config.tokens_per_tile();
  std::uint32_t partial_rows = 0;
  for (std::uint32_t b = 0; b < num_block_rows; ++b) {
    const abi::BlockRow& block_row = block_rows[b];
    tile_begin[b] = tiles.size;
    for (std::uint32_t row = 0; row < block_row.row_count; row += step) {
      // Filled in place: see abi::fill_item().
      FOVEA_CHECK(tiles.size < tiles.capacity);
      PlanTile& tile = tiles.data[tiles.size++];
      abi::make_tile(block_row, b, row, config, tile);
      bound_tile(block_row, q_pos + tile.row_begin, config, tile);
      if (tile.solo) continue;
      tile.partial_slot = partial_rows;
      partial_rows += tile.heads() * tile.row_count * config.group;
    }
  }
  tile_begin[num_block_rows] = tiles.size;
  return partial_rows;
}

}  // namespace fovea
