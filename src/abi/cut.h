// The arithmetic of the tile and cut steps: bounds of a tile, where a cut falls, what dividing adds, the fields of an
// item. Called by core/schedule for plans made on the host and by kernels/plan/reschedule.cuh for plans cut again on a
// device: one source, integers only, so that both make the same plan, bit for bit. Compiles under g++ and NVRTC.
//
// All (tile, KV head) pairs stand end to end, tile by tile and head by head; cut k falls where the wanted share of
// their cost is behind it, moved to a block bound or to an end of the pair.
#pragma once

#include "abi/cost.h"

namespace fovea::abi {

template <typename T>
constexpr T smaller_of(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
constexpr T larger_of(T a, T b) {
  return a < b ? b : a;
}

// A tile of query tokens of one block row: one item under every KV head of it unless a cut divides it.
struct PlanTile {
  uint32_t block_row;
  uint32_t row_begin;   // query token, an index into row_indices
  uint16_t row_count;   // query tokens
  uint16_t head_begin;  // KV heads
  uint16_t head_end;
  uint8_t tile_class;
  uint8_t solo;       // see kRowsSolo
  uint32_t kv_begin;  // tokens of the run that some row may see
  uint32_t kv_end;    // == kv_begin when none is
  int32_t min_pos;    // positions of its rows; only where the block row has a mask by position
  int32_t max_pos;
  uint32_t token_cost;    // abi/cost.h
  uint32_t cost_fixed;    // of the undivided item
  uint32_t partial_slot;  // of the undivided item; kNone when solo
  uint32_t first_item;    // undivided (or whole-chunk) items, filled when items are made
  uint32_t num_items;
  uint32_t first_split;  // its (tile, head) pairs that a cut divided
  uint32_t num_splits;

  constexpr uint32_t tokens() const { return kv_end - kv_begin; }
  constexpr uint32_t heads() const { return static_cast<uint32_t>(head_end - head_begin); }
  constexpr uint64_t cost() const { return cost_fixed + static_cast<uint64_t>(token_cost) * tokens(); }
};

struct TileConfig {
  uint32_t group = 1;          // query heads a KV head
  uint32_t tile_rows = 128;    // (token, query head) rows of the largest class
  uint32_t block_tokens = 64;  // kv_begin is rounded down to a multiple of it when aligned
  bool aligned = false;
  CostModel cost;

  // Query tokens of a full tile; tile i of a block row starts at its row i * tokens_per_tile().
  constexpr uint32_t tokens_per_tile() const { return tile_rows / group; }
};

inline constexpr uint32_t kSmallestTile = 16;

// Smallest class (16 << class rows) that holds `rows` rows.
constexpr uint8_t tile_class_of(uint32_t rows) {
  uint8_t tile_class = 0;
  while ((kSmallestTile << tile_class) < rows) ++tile_class;
  return tile_class;
}

constexpr bool by_position(MaskKind mask) { return mask == MaskKind::kCausal || mask == MaskKind::kWindow; }

constexpr uint32_t clamp_token(long long token, uint32_t low, uint32_t high) {
  return token < low ? low : token > high ? high : static_cast<uint32_t>(token);
}

// The tile that starts at row `row` of block row b: all of it but its bounds and its partial slot.
constexpr void make_tile(const BlockRow& block_row, uint32_t b, uint32_t row, const TileConfig& config,
                         PlanTile& tile) {
  tile.block_row = b;
  tile.row_begin = block_row.row_begin + row;
  tile.row_count = static_cast<uint16_t>(smaller_of(config.tokens_per_tile(), block_row.row_count - row));
  tile.head_begin = block_row.head_begin;
  tile.head_end = block_row.head_end;
  const uint32_t rows = tile.row_count * config.group;
  tile.tile_class = tile_class_of(rows);
  tile.solo = (block_row.flags & kRowsSolo) != 0;
  tile.token_cost = token_cost(config.cost, rows);
  tile.cost_fixed = fixed_cost(config.cost, rows, !tile.solo);
  tile.partial_slot = kNone;
  tile.first_item = tile.num_items = tile.first_split = tile.num_splits = 0;
}

// Sets kv range and positions of a tile from the mask of its block row. q_pos: positions of the tile's rows, which a
// producer may list in any order.
constexpr void bound_tile(const BlockRow& block_row, const int32_t* q_pos, const TileConfig& config, PlanTile& tile) {
  const uint32_t first = smaller_of(block_row.first_token, block_row.num_tokens);
  tile.kv_begin = first;
  tile.kv_end = block_row.num_tokens;
  tile.min_pos = tile.max_pos = 0;
  if (!by_position(block_row.mask)) return;
  tile.min_pos = tile.max_pos = q_pos[0];
  for (uint32_t i = 1; i < tile.row_count; ++i) {
    tile.min_pos = smaller_of(tile.min_pos, q_pos[i]);
    tile.max_pos = larger_of(tile.max_pos, q_pos[i]);
  }
  // Positions listed page by page are in no order: every row may see any of them.
  if (block_row.positions_begin != kNone) return;
  const long long base = block_row.position_base;
  tile.kv_end = clamp_token(tile.max_pos + 1 - base, first, block_row.num_tokens);
  if (block_row.mask != MaskKind::kWindow) return;
  tile.kv_begin = clamp_token(tile.min_pos - static_cast<long long>(block_row.window_left) - base, first, tile.kv_end);
  if (config.aligned && tile.kv_begin < tile.kv_end) {
    const long long position = base + tile.kv_begin;
    tile.kv_begin = clamp_token(position - position % config.block_tokens - base, first, tile.kv_end);
  }
}

// True when the mask may hide some pair of the tile's rows and tokens [kv_begin, kv_end) of the run.
constexpr bool may_mask(const BlockRow& block_row, const PlanTile& tile, uint32_t kv_begin, uint32_t kv_end) {
  if (kv_begin >= kv_end || block_row.mask == MaskKind::kNone) return false;
  if (!by_position(block_row.mask) || block_row.positions_begin != kNone) return true;
  const long long base = block_row.position_base;
  if (base + kv_end - 1 > tile.min_pos) return true;
  return block_row.mask == MaskKind::kWindow &&
         base + kv_begin < tile.max_pos - static_cast<long long>(block_row.window_left);
}

// Where a worker's span ends and the next one's begins: before token `token` of the run under (tile, head); kNone:
// before the whole pair. tile == number of tiles: after all work.
struct CutPoint {
  uint32_t tile;
  uint32_t head;
  uint32_t token;
};

struct CutConfig {
  uint32_t num_workers = 1;  // spans: span_rounds times those that start together
  // 1: spans of equal cost. More: the first round shares first_cost, each further one has half of what is left before
  // it, the last one all.
  uint32_t span_rounds = 1;
  uint32_t group = 1;
  uint32_t block_tokens = 64;
  uint32_t invariant_chunk = 0;  // tokens; 0: cut anywhere
  CostModel cost;
  uint32_t tokens_per_tile = kNone;  // see TileConfig
  uint32_t num_spans = 0;   // spans of equal cost, fewer than workers, where the last workers stay idle; 0: as many
  uint64_t first_cost = 0;  // several rounds: of the tiles that the first is for (runs that requests share)
};

struct TileSpan {
  const PlanTile* data;
  uint32_t size;
  constexpr const PlanTile& operator[](uint32_t i) const { return data[i]; }
};

// Ordering of cut points; kNone (before the pair) comes before every token.
constexpr bool precedes(const CutPoint& a, const CutPoint& b) {
  if (a.tile != b.tile) return a.tile < b.tile;
  if (a.head != b.head) return a.head < b.head;
  return a.token + 1 < b.token + 1;  // kNone + 1 == 0
}

constexpr bool divides(const CutPoint& cut) { return cut.token != kNone; }
constexpr bool same_pair(const CutPoint& a, const CutPoint& b) { return a.tile == b.tile && a.head == b.head; }

constexpr CutPoint before_pair(const TileSpan& tiles, uint32_t tile, uint32_t head) {
  while (tile < tiles.size && head >= tiles[tile].head_end) {
    ++tile;
    head = 0;
  }
  if (tile >= tiles.size) return {tiles.size, 0, kNone};
  return {tile, larger_of<uint32_t>(head, tiles[tile].head_begin), kNone};
}

// The cut nearest to `offset` cost units into pair (t, head); `previous` is the cut before it.
constexpr CutPoint place_cut(const TileSpan& tiles, uint32_t t, uint32_t head, uint64_t offset,
                             const CutPoint& previous, const CutConfig& config) {
  const PlanTile& tile = tiles[t];
  const uint32_t block = config.block_tokens;
  const uint32_t least = min_part_tokens(config.cost, tile.row_count * config.group, block);
  // A first part that begins off a block bound may gain up to a block.
  if (tile.tokens() < 2 * least + block) {
    return before_pair(tiles, t, 2 * offset < tile.cost() ? head : head + 1);
  }
  const bool again = previous.tile == t && previous.head == head && divides(previous);
  const uint64_t begin = again ? previous.token : tile.kv_begin;
  const uint64_t wanted =
      tile.kv_begin + (offset <= tile.cost_fixed ? 0 : (offset - tile.cost_fixed) / tile.token_cost);
  uint64_t token = (wanted + block / 2) / block * block;
  if (token < begin + least) {
    if (2 * wanted < 2 * begin + least) return again ? previous : before_pair(tiles, t, head);
    token = (begin + least + block - 1) / block * block;
  }
  if (token + least > tile.kv_end) {
    const uint64_t last = (tile.kv_end - least) / block * block;
    if (2 * (tile.kv_end - smaller_of<uint64_t>(wanted, tile.kv_end)) < least || last < begin + least) {
      return before_pair(tiles, t, head + 1);
    }
    token = last;
  }
  return {t, head, static_cast<uint32_t>(token)};
}

// The cut where `wanted` of the cost is behind, which falls on tile t with `base` of it before (t == tiles.size: at the
// end). Never before `previous`; equal to it means that the worker between them gets nothing.
constexpr CutPoint next_cut(const TileSpan& tiles, uint32_t t, uint64_t base, uint64_t wanted, const CutPoint& previous,
                            const CutConfig& config) {
  CutPoint cut{tiles.size, 0, kNone};
  if (t < tiles.size) {
    const uint64_t cost = tiles[t].cost();
    const uint32_t nth = static_cast<uint32_t>((wanted - base) / cost);
    cut = place_cut(tiles, t, tiles[t].head_begin + nth, (wanted - base) - nth * cost, previous, config);
  }
  return precedes(previous, cut) ? cut : previous;
}

// Cost of the tile's undivided work before a cut in it.
constexpr uint64_t cost_before(const PlanTile& tile, const CutPoint& cut) {
  const uint64_t pairs = (cut.head - smaller_of<uint32_t>(tile.head_begin, cut.head)) * tile.cost();
  if (!divides(cut)) return pairs;
  return pairs + tile.cost_fixed + static_cast<uint64_t>(tile.token_cost) * (cut.token - tile.kv_begin);
}

// What dividing pairs adds to the worker of span [begin, end): the part that begins it is one item more, and the part
// that ends it goes through the workspace, unless it is one already.
constexpr uint64_t dividing_cost(const TileSpan& tiles, const CutPoint& begin, const CutPoint& end,
                                 const CutConfig& config) {
  if (!precedes(begin, end)) return 0;
  uint64_t added = 0;
  if (divides(begin)) added += fixed_cost(config.cost, tiles[begin.tile].row_count * config.group, true);
  if (divides(end) && tiles[end.tile].solo && !(divides(begin) && same_pair(begin, end))) {
    added += static_cast<uint64_t>(tiles[end.tile].row_count * config.group) * config.cost.partial_row;
  }
  return added;
}

// k of `workers` even shares of a cost.
constexpr uint64_t share_of(uint64_t cost, uint64_t k, uint64_t workers) {
  return cost / workers * k + cost % workers * k / workers;
}

// Cost of undivided work that should be behind cut k.
constexpr uint64_t cut_target(const CutConfig& config, uint64_t total, uint64_t k) {
  if (config.num_spans != 0) return k < config.num_spans ? share_of(total, k, config.num_spans) : total;
  if (config.span_rounds == 1) return share_of(total, k, config.num_workers);
  const uint32_t rounds = config.span_rounds;
  const uint64_t per_round = config.num_workers / rounds;
  if (k < per_round) return share_of(config.first_cost, k, per_round);
  const uint64_t round = k / per_round - 1;  // of those after the first
  const uint64_t left = total - config.first_cost;
  const uint64_t begin = left - (left >> round);
  const uint64_t end = round + 2 < rounds ? left - (left >> (round + 1)) : left;
  return config.first_cost + begin + share_of(end - begin, k % per_round, per_round);
}

// Whether what dividing a pair adds may count beside a span: the cut then weighs it. most_tokens: query tokens of the
// tallest tile. Spans of several rounds are uneven anyway.
constexpr bool dividing_counts(const CutConfig& config, uint32_t most_tokens, uint64_t total) {
  if (config.span_rounds > 1 || config.num_spans != 0) return false;
  const uint64_t dividing = 2 * static_cast<uint64_t>(fixed_cost(config.cost, most_tokens * config.group, true));
  return dividing * 128 > total / config.num_workers;
}

// Whether cutting again, with what dividing costs counted in, may be worth it. all: total cost and what dividing adds.
constexpr bool cut_is_uneven(uint64_t slowest, uint64_t all, uint64_t workers) {
  return slowest * workers > all + all / 128;
}

// The run's end that the request's length moves: what items that end there follow (kItemOpenEnd), or kNone. Only where
// a longer run changes nothing else: rows of one tile keep their distance to the end, a window's begin would move.
constexpr uint32_t open_end_of(const BlockRow& block_row, uint32_t tokens_per_tile) {
  if (block_row.length_slot == kNone) return kNone;
  const bool follows = block_row.mask == MaskKind::kNone ||
                       (block_row.mask == MaskKind::kCausal && block_row.row_count <= tokens_per_tile);
  return follows ? block_row.num_tokens : kNone;
}

// The item of a tile over tokens [kv_begin, kv_end). masked: the mask may hide some pair of it; open_end: of the block
// row, or kNone. Fields are stored where the item stays: a record built field by field and then copied whole would wait
// for its own stores.
constexpr void fill_item(const BlockRow& block_row, const PlanTile& tile, uint32_t kv_begin, uint32_t kv_end,
                         uint8_t flags, uint32_t partial_slot, bool masked, uint32_t open_end, WorkItem& item) {
  if (partial_slot == kNone) flags |= kItemDirect;
  if (masked) flags |= kItemMasked;
  if (kv_end == open_end) flags |= kItemOpenEnd;
  if ((flags & kItemSingleHead) && tile.solo && kv_begin == tile.kv_begin) flags |= kItemFirstPart;
  item.row_begin = tile.row_begin;
  item.row_count = tile.row_count;
  item.tile_class = tile.tile_class;
  item.flags = flags;
  item.list_begin = block_row.list_begin;
  item.kv_begin = kv_begin;
  item.kv_end = kv_end;
  item.length_slot = block_row.length_slot;
  item.block_row = tile.block_row;
  item.partial_slot = partial_slot;
}

}  // namespace fovea::abi
