#include "core/plan/merge_list.h"

#include <algorithm>
#include <tuple>

namespace fovea {
namespace {

// Appends the partial rows of row `nth` of the tile under `head`.
void add_parts(PlanArrays& p, const PlanTile& tile, std::uint32_t nth, std::uint32_t head, std::uint32_t group) {
  for (std::uint32_t s = tile.first_split; s < tile.first_split + tile.num_splits; ++s) {
    if (p.splits[s].head != head) continue;
    for (std::uint32_t i = p.splits[s].first_item; i < p.splits[s].first_item + p.splits[s].num_items; ++i) {
      p.parts.push(p.items[i].partial_slot + nth * group);
    }
    return;
  }
  const std::uint32_t rows = tile.row_count * group;
  for (std::uint32_t i = tile.first_item; i < tile.first_item + tile.num_items; ++i) {
    p.parts.push(p.items[i].partial_slot + (head - tile.head_begin) * rows + nth * group);
  }
}

void close_entry(PlanArrays& p, std::uint32_t row, std::uint32_t head, std::uint32_t parts_begin) {
  if (p.parts.size == parts_begin) return;
  p.merges.push(
      {row, static_cast<std::uint16_t>(head), static_cast<std::uint16_t>(p.parts.size - parts_begin), parts_begin});
}

}  // namespace

void list_covers(PlanArrays& p, std::uint32_t num_rows) {
  std::fill(p.cover_begin.data, p.cover_begin.data + num_rows + 1, 0u);
  p.covers.size = 0;
  for (const abi::BlockRow& block_row : p.block_rows) {
    if (block_row.flags & abi::kRowsSolo) continue;
    p.covers.size += block_row.row_count;
    for (std::uint32_t k = 0; k < block_row.row_count; ++k) ++p.cover_begin[p.row_indices[block_row.row_begin + k]];
  }
  FOVEA_CHECK(p.covers.size <= p.covers.capacity);
  if (p.covers.size == 0) return;
  std::uint32_t sum = 0;
  for (std::uint32_t row = 0; row <= num_rows; ++row) {
    const std::uint32_t count = row < num_rows ? p.cover_begin[row] : 0;
    p.cover_begin[row] = sum;
    sum += count;
  }
  // Placing moves each begin to its end, which is the next row's begin; afterwards they move back by one.
  for (std::uint32_t b = 0; b < p.block_rows.size; ++b) {
    const abi::BlockRow& block_row = p.block_rows[b];
    if (block_row.flags & abi::kRowsSolo) continue;
    for (std::uint32_t k = 0; k < block_row.row_count; ++k) {
      p.covers[p.cover_begin[p.row_indices[block_row.row_begin + k]]++] = {b, k};
    }
  }
  for (std::uint32_t row = num_rows; row > 0; --row) p.cover_begin[row] = p.cover_begin[row - 1];
  p.cover_begin[0] = 0;
  // Block rows mostly come in KV order already: one insertion pass a row.
  const auto key = [&](const RowCover& cover) {
    const abi::BlockRow& block_row = p.block_rows[cover.block_row];
    return std::tuple(std::int64_t{block_row.position_base} + block_row.first_token, cover.block_row);
  };
  for (std::uint32_t row = 0; row < num_rows; ++row) {
    for (std::uint32_t i = p.cover_begin[row] + 1; i < p.cover_begin[row + 1]; ++i) {
      const RowCover cover = p.covers[i];
      std::uint32_t j = i;
      for (; j > p.cover_begin[row] && key(cover) < key(p.covers[j - 1]); --j) p.covers[j] = p.covers[j - 1];
      p.covers[j] = cover;
    }
  }
}

void list_merges(PlanArrays& p, std::uint32_t num_rows, std::uint32_t group, std::uint32_t tokens_per_tile) {
  p.merges.clear();
  p.parts.clear();
  if (p.covers.size != 0) {
    for (std::uint32_t row = 0; row < num_rows; ++row) {
      const std::uint32_t begin = p.cover_begin[row];
      const std::uint32_t end = p.cover_begin[row + 1];
      if (begin == end) continue;
      std::uint32_t first_head = 256;
      std::uint32_t last_head = 0;
      for (std::uint32_t c = begin; c < end; ++c) {
        const abi::BlockRow& block_row = p.block_rows[p.covers[c].block_row];
        first_head = std::min<std::uint32_t>(first_head, block_row.head_begin);
        last_head = std::max<std::uint32_t>(last_head, block_row.head_end);
      }
      for (std::uint32_t head = first_head; head < last_head; ++head) {
        const std::uint32_t parts_begin = p.parts.size;
        for (std::uint32_t c = begin; c < end; ++c) {
          const RowCover cover = p.covers[c];
          const PlanTile& tile = p.tiles[p.tile_begin[cover.block_row] + cover.nth / tokens_per_tile];
          if (head < tile.head_begin || head >= tile.head_end) continue;
          add_parts(p, tile, cover.nth % tokens_per_tile, head, group);
        }
        close_entry(p, row, head, parts_begin);
      }
    }
  }
  for (const PlanTile& tile : p.tiles) {
    if (!tile.solo) continue;
    const bool chunks = tile.num_items > 1;
    if (tile.num_splits == 0 && !chunks) continue;
    const auto merge_head = [&](std::uint32_t head) {
      for (std::uint32_t nth = 0; nth < tile.row_count; ++nth) {
        const std::uint32_t parts_begin = p.parts.size;
        add_parts(p, tile, nth, head, group);
        close_entry(p, p.row_indices[tile.row_begin + nth], head, parts_begin);
      }
    };
    if (chunks) {
      for (std::uint32_t head = tile.head_begin; head < tile.head_end; ++head) merge_head(head);
    } else {
      for (std::uint32_t s = 0; s < tile.num_splits; ++s) merge_head(p.splits[tile.first_split + s].head);
    }
  }
}

}  // namespace fovea
