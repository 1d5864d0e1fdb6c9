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

const PlanTile& tile_of(const PlanArrays& p, const RowCover& cover, std::uint32_t tokens_per_tile) {
  return p.tiles[p.tile_begin[cover.block_row] + cover.nth / tokens_per_tile];
}

// All parts of a shared row under one head, as cut.
void add_row_parts(PlanArrays& p, std::uint32_t row, std::uint32_t head, std::uint32_t group,
                   std::uint32_t tokens_per_tile) {
  for (std::uint32_t c = p.cover_begin[row]; c < p.cover_begin[row + 1]; ++c) {
    const PlanTile& tile = tile_of(p, p.covers[c], tokens_per_tile);
    if (head < tile.head_begin || head >= tile.head_end) continue;
    add_parts(p, tile, p.covers[c].nth % tokens_per_tile, head, group);
  }
}

// The same as if nothing were divided.
void add_undivided_parts(PlanArrays& p, std::uint32_t row, std::uint32_t head, std::uint32_t group,
                         std::uint32_t tokens_per_tile) {
  for (std::uint32_t c = p.cover_begin[row]; c < p.cover_begin[row + 1]; ++c) {
    const PlanTile& tile = tile_of(p, p.covers[c], tokens_per_tile);
    if (head < tile.head_begin || head >= tile.head_end) continue;
    p.parts.push(tile.partial_slot + (head - tile.head_begin) * tile.row_count * group +
                 p.covers[c].nth % tokens_per_tile * group);
  }
}

// Parts of a row whose block rows all have the same heads, when nothing is divided: one a block row, the slots of the
// next head a fixed step behind.
void add_even_row(PlanArrays& p, std::uint32_t row, std::uint32_t heads, std::uint32_t group,
                  std::uint32_t tokens_per_tile) {
  const std::uint32_t begin = p.cover_begin[row];
  const std::uint32_t count = p.cover_begin[row + 1] - begin;
  const std::uint32_t parts_begin = p.parts.size;
  FOVEA_CHECK(parts_begin + count * heads <= p.parts.capacity && p.merges.size + heads <= p.merges.capacity);
  std::uint32_t head_begin = 0;
  for (std::uint32_t c = 0; c < count; ++c) {
    const RowCover cover = p.covers[begin + c];
    const PlanTile& tile = tile_of(p, cover, tokens_per_tile);
    const std::uint32_t step = tile.row_count * group;
    std::uint32_t slot = tile.partial_slot + cover.nth % tokens_per_tile * group;
    std::uint32_t* part = p.parts.data + parts_begin + c;
    for (std::uint32_t head = 0; head < heads; ++head, part += count, slot += step) *part = slot;
    head_begin = tile.head_begin;
  }
  for (std::uint32_t head = 0; head < heads; ++head) {
    p.merges[p.merges.size++] = {row, static_cast<std::uint16_t>(head_begin + head), static_cast<std::uint16_t>(count),
                                 parts_begin + head * count};
  }
  p.parts.size += count * heads;
}

void close_entry(PlanArrays& p, std::uint32_t row, std::uint32_t head, std::uint32_t parts_begin) {
  if (p.parts.size == parts_begin) return;
  p.merges.push(
      {row, static_cast<std::uint16_t>(head), static_cast<std::uint16_t>(p.parts.size - parts_begin), parts_begin});
}

}  // namespace

void place_covers(PlanArrays& p, std::uint32_t num_rows) {
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
}

void list_covers(PlanArrays& p, std::uint32_t num_rows) {
  place_covers(p, num_rows);
  if (p.covers.size == 0) return;
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

void list_shared_merges(PlanArrays& p, std::uint32_t num_rows, std::uint32_t group, std::uint32_t tokens_per_tile,
                        bool chunked) {
  p.merges.clear();
  p.parts.clear();
  p.saved.clear();
  for (std::uint32_t row = 0; row < num_rows && p.covers.size != 0; ++row) {
    p.entry_begin[row] = p.merges.size;
    const std::uint32_t begin = p.cover_begin[row];
    const std::uint32_t end = p.cover_begin[row + 1];
    if (begin == end) continue;
    std::uint32_t first_head = 256;
    std::uint32_t last_head = 0;
    bool even = !chunked;
    for (std::uint32_t c = begin; c < end; ++c) {
      const PlanTile& tile = tile_of(p, p.covers[c], tokens_per_tile);
      even &= c == begin || (tile.head_begin == first_head && tile.head_end == last_head);
      first_head = std::min<std::uint32_t>(first_head, tile.head_begin);
      last_head = std::max<std::uint32_t>(last_head, tile.head_end);
    }
    if (even) {
      add_even_row(p, row, last_head - first_head, group, tokens_per_tile);
      continue;
    }
    for (std::uint32_t head = first_head; head < last_head; ++head) {
      const std::uint32_t parts_begin = p.parts.size;
      if (chunked) {
        add_row_parts(p, row, head, group, tokens_per_tile);
      } else {
        add_undivided_parts(p, row, head, group, tokens_per_tile);
      }
      close_entry(p, row, head, parts_begin);
    }
  }
  p.shared_merges = p.merges.size;
  p.shared_parts = p.parts.size;
}

void list_cut_merges(PlanArrays& p, std::uint32_t group, std::uint32_t tokens_per_tile) {
  for (const SavedMerge& saved : p.saved) p.merges[saved.index] = saved.entry;
  p.saved.clear();
  p.merges.size = p.shared_merges;
  p.parts.size = p.shared_parts;
  for (const PlanTile& tile : p.tiles) {
    const bool chunks = tile.solo && tile.num_items > 1;
    if (tile.num_splits == 0 && !chunks) continue;
    for (std::uint32_t i = 0; i < (chunks ? tile.heads() : tile.num_splits); ++i) {
      const std::uint32_t head = chunks ? tile.head_begin + i : p.splits[tile.first_split + i].head;
      for (std::uint32_t nth = 0; nth < tile.row_count; ++nth) {
        const std::uint32_t row = p.row_indices[tile.row_begin + nth];
        const std::uint32_t parts_begin = p.parts.size;
        if (tile.solo) {
          add_parts(p, tile, nth, head, group);
          close_entry(p, row, head, parts_begin);
          continue;
        }
        std::uint32_t index = p.entry_begin[row];
        while (p.merges[index].head != head) ++index;
        abi::MergeEntry& entry = p.merges[index];
        if (entry.parts_begin >= p.shared_parts) continue;  // another of its parts was divided too: listed already
        p.saved.push({index, entry});
        add_row_parts(p, row, head, group, tokens_per_tile);
        entry.parts_begin = parts_begin;
        entry.num_parts = static_cast<std::uint16_t>(p.parts.size - parts_begin);
      }
    }
  }
}

}  // namespace fovea
