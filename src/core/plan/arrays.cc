#include "core/plan/arrays.h"

#include <algorithm>

#include "base/status.h"

namespace fovea {
namespace {

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

bool is_power_of_two(std::int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

Status check_options(const PlannerOptions& o) {
  if (o.num_kv_heads < 1 || o.num_kv_heads > 256) {
    return invalid_argument("{} KV heads, expected 1..256", o.num_kv_heads);
  }
  if (o.num_qo_heads < 1 || o.num_qo_heads % o.num_kv_heads != 0) {
    return invalid_argument("{} query heads are no multiple of {} KV heads", o.num_qo_heads, o.num_kv_heads);
  }
  if (o.head_dim < 1 || o.head_dim > 4096) return invalid_argument("head_dim is {}, expected 1..4096", o.head_dim);
  if (o.kv_element_bits < 1 || o.kv_element_bits > 64) {
    return invalid_argument("KV elements of {} bits, expected 1..64", o.kv_element_bits);
  }
  if (o.page_tokens < 1 || o.page_tokens > 65536) {
    return invalid_argument("pages of {} tokens, expected 1..65536", o.page_tokens);
  }
  if (o.num_workers < 1 || o.num_workers > 65536) {
    return invalid_argument("{} workers, expected 1..65536", o.num_workers);
  }
  if (o.shared_rounds < 1 || o.shared_rounds > 8) {
    return invalid_argument("shared_rounds is {}, expected 1..8", o.shared_rounds);
  }
  const std::int32_t largest = static_cast<std::int32_t>(kSmallestTile << (abi::kMaxTileClasses - 1));
  if (!is_power_of_two(o.tile_rows) || o.tile_rows < static_cast<std::int32_t>(kSmallestTile) ||
      o.tile_rows > largest) {
    return invalid_argument("tiles of {} rows, expected a power of two in {}..{}", o.tile_rows, kSmallestTile, largest);
  }
  if (o.shared_tile_rows != 0 &&
      (!is_power_of_two(o.shared_tile_rows) || o.shared_tile_rows > o.tile_rows ||
       o.shared_tile_rows < std::max(static_cast<std::int32_t>(kSmallestTile), o.num_qo_heads / o.num_kv_heads))) {
    return invalid_argument(
        "shared_tile_rows is {}, expected 0 or a power of two up to tile_rows ({}) that holds the {} query heads "
        "of a KV head",
        o.shared_tile_rows, o.tile_rows, o.num_qo_heads / o.num_kv_heads);
  }
  if (o.tile_tokens < 0) return invalid_argument("tile_tokens is {}, expected >= 0", o.tile_tokens);
  if (o.tile_tokens > 0 && o.shared_tile_rows > 0) {
    return invalid_argument("tile_tokens {} with shared_tile_rows; expected one of the two", o.tile_tokens);
  }
  if (o.num_qo_heads / o.num_kv_heads > o.tile_rows) {
    return invalid_argument("{} query heads a KV head do not fit a tile of {} rows; raise tile_rows",
                            o.num_qo_heads / o.num_kv_heads, o.tile_rows);
  }
  if (o.block_tokens < 1 || o.block_tokens > 65536) {
    return invalid_argument("block_tokens is {}, expected 1..65536", o.block_tokens);
  }
  if (o.cost_item_bytes < 1 || o.cost_item_bytes > (1 << 28)) {
    return invalid_argument("cost_item_bytes is {}, expected 1..2^28", o.cost_item_bytes);
  }
  if (o.cost_balance_rows < 1) return invalid_argument("cost_balance_rows is {}, expected >= 1", o.cost_balance_rows);
  if (o.batch_invariant &&
      (o.invariant_chunk < 1 || o.invariant_chunk % o.block_tokens != 0 || o.invariant_chunk % o.page_tokens != 0)) {
    return invalid_argument("invariant_chunk is {}, expected a multiple of block_tokens ({}) and of the page ({})",
                            o.invariant_chunk, o.block_tokens, o.page_tokens);
  }
  if (o.least_part_bytes < 0 || o.least_part_bytes > (1 << 28)) {
    return invalid_argument("least_part_bytes is {}, expected 0..2^28", o.least_part_bytes);
  }
  if (o.shared_part_bytes < 0 || o.shared_part_bytes > (1 << 28)) {
    return invalid_argument("shared_part_bytes is {}, expected 0..2^28", o.shared_part_bytes);
  }
  if (o.shared_balance_rows < 0) {
    return invalid_argument("shared_balance_rows is {}, expected >= 0", o.shared_balance_rows);
  }
  if (o.cost_divide_bytes < 0) return invalid_argument("cost_divide_bytes is {}, expected >= 0", o.cost_divide_bytes);
  const PlanLimits& l = o.limits;
  if (l.max_requests < 1 || l.max_rows < 1 || l.max_pages_per_request < 1 || l.max_shared_rows < 0 ||
      l.max_block_rows < 0 || l.max_covered_rows < 0) {
    return invalid_argument(
        "limits of {} requests, {} rows, {} pages a request, {} shared rows, {} block rows, {} covered rows; expected "
        "1 or "
        "more of the first three and 0 or more of the others",
        l.max_requests, l.max_rows, l.max_pages_per_request, l.max_shared_rows, l.max_block_rows, l.max_covered_rows);
  }
  if (std::int64_t{l.max_pages_per_request} * o.page_tokens > (std::int64_t{1} << 30)) {
    return make_status(StatusCode::kOutOfRange, "{} pages of {} tokens are more than 2^30 tokens a request",
                       l.max_pages_per_request, o.page_tokens);
  }
  return ok_status();
}

}  // namespace

Result<PlanCapacity> plan_capacity(const PlannerOptions& o) {
  FOVEA_RETURN_IF_ERROR(check_options(o));
  const std::uint64_t group = static_cast<std::uint64_t>(o.num_qo_heads / o.num_kv_heads);
  const std::uint64_t heads = static_cast<std::uint64_t>(o.num_kv_heads);
  const std::uint64_t step = static_cast<std::uint64_t>(most_tile_rows(o)) / group;
  const std::uint64_t cuts =
      static_cast<std::uint64_t>(o.num_workers) * static_cast<std::uint64_t>(o.shared_rounds) - 1;
  PlanCapacity c{};
  c.requests = static_cast<std::uint64_t>(o.limits.max_requests);
  c.rows = static_cast<std::uint64_t>(o.limits.max_rows);
  c.shared_rows = o.limits.max_shared_rows > 0 ? static_cast<std::uint64_t>(o.limits.max_shared_rows)
                                               : std::max(8 * c.requests, std::min(2 * c.rows, 32 * c.requests));
  c.row_indices = c.rows + std::max(c.rows, c.shared_rows);
  c.covers = std::max<std::uint64_t>(c.row_indices, static_cast<std::uint64_t>(o.limits.max_covered_rows));
  // A request's own run, its tree mask, and one node for each request but the first.
  c.block_rows = std::max<std::uint64_t>(3 * c.requests, static_cast<std::uint64_t>(o.limits.max_block_rows));
  // A tile is full but for the last of each block row; rows count once for each block row they stand in.
  const std::int32_t least_rows = o.shared_tile_rows > 0 ? o.shared_tile_rows : most_tile_rows(o);
  c.tiles = c.block_rows + c.covers / (static_cast<std::uint64_t>(least_rows) / group);
  const std::uint64_t tokens =
      static_cast<std::uint64_t>(o.limits.max_pages_per_request) * static_cast<std::uint64_t>(o.page_tokens);
  if (o.batch_invariant) {
    // A request's runs lie end to end, and each may begin and end inside a chunk (tree masks: one bound more).
    c.chunks = ceil_div(tokens, static_cast<std::uint64_t>(o.invariant_chunk)) + 1;
    c.items = c.tiles * c.chunks;
    c.queue = c.items * heads;
    c.partial_rows = c.rows * heads * group * c.chunks;
  } else {
    c.chunks = 1;
    // k cuts in one (tile, head) pair make k + 1 parts, at most 2 a cut.
    c.items = c.tiles + 2 * cuts;
    c.queue = c.tiles * heads + cuts;
    c.partial_rows = 2 * cuts * std::min(step, c.rows) * group + c.shared_rows * heads * group;
  }
  c.merges = c.rows * heads;
  // A shared row that a cut divides is listed anew behind the list that packing made.
  c.parts = c.partial_rows / group + (o.batch_invariant ? 0 : c.shared_rows * heads);
  if (c.items >= (1u << 24) || c.queue >= (std::uint64_t{1} << 31) || c.partial_rows >= (std::uint64_t{1} << 32)) {
    return make_status(StatusCode::kOutOfRange,
                       "these limits need {} items, {} queue entries and {} partial rows; a plan holds 2^24, 2^31 and "
                       "2^32; lower max_rows, max_pages_per_request or max_shared_rows",
                       c.items, c.queue, c.partial_rows);
  }
  return c;
}

void PlanArrays::carve(Carver& carver, const PlanCapacity& c, std::uint32_t num_workers, bool by_length) {
  header = carver.take<abi::PlanHeader>(1);
  launches = carver.take<abi::Launch>(1);
  queue_begin = carver.take<std::uint32_t>(num_workers + 1);
  items.carve(carver, c.items);
  block_rows.carve(carver, c.block_rows);
  queue.carve(carver, c.queue + 1);
  row_indices.carve(carver, c.row_indices);
  q_pos.carve(carver, c.row_indices);
  merges.carve(carver, c.merges);
  parts.carve(carver, c.parts);
  kv_lens.carve(carver, c.requests);
  plan_bytes = carver.used();

  q_lens.carve(carver, c.requests);
  q_begin.carve(carver, c.requests);
  own_block_row.carve(carver, c.requests);
  forest.carve(carver, static_cast<std::uint32_t>(c.requests));
  shareable.carve(carver, c.requests);
  tiles.carve(carver, c.tiles);
  tile_begin.carve(carver, c.block_rows + 1);
  cuts.carve(carver, num_workers);
  other_cuts.carve(carver, num_workers);
  splits.carve(carver, num_workers);
  worker_cost.carve(carver, num_workers);
  cover_begin.carve(carver, c.rows + 1);
  covers.carve(carver, c.covers);
  entry_begin.carve(carver, c.rows + 1);
  saved.carve(carver, c.merges);
  if (by_length) {
    longest_first.keys = carver.take<std::uint64_t>(c.queue);
    longest_first.owners = carver.take<std::uint32_t>(c.queue);
    longest_first.free_at = carver.take<std::uint64_t>(num_workers);
  }
}

}  // namespace fovea
