#include "core/schedule/longest_first.h"

#include <algorithm>
#include <span>

namespace fovea {
namespace {

// A key holds, from its highest bits on: section, how far the cost is below the largest one, tile, head. Ascending keys
// are sections in order, longest pairs first, ties by tile.
constexpr int kHeadBits = 8;
constexpr int kTileBits = 20;
constexpr int kCostBits = 24;
constexpr std::uint64_t kMostSections = 1u << (64 - kHeadBits - kTileBits - kCostBits);

constexpr std::uint64_t low_bits(std::uint64_t x, int bits) { return x & ((1ull << bits) - 1); }

constexpr int kWorkerBits = 16;

// Assigns every key's pair to a worker; returns the cost of the worker that ends last.
std::uint64_t assign(const FixedVector<PlanTile>& tiles, std::span<const std::uint64_t> keys, std::uint32_t workers,
                     std::uint64_t* free_at, std::uint32_t* owners) {
  for (std::uint32_t w = 0; w < workers; ++w) free_at[w] = w;
  const auto later = [](std::uint64_t a, std::uint64_t b) { return a > b; };  // the earliest on top, then the lowest
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const PlanTile& tile = tiles[low_bits(keys[i] >> kHeadBits, kTileBits)];
    std::pop_heap(free_at, free_at + workers, later);
    std::uint64_t& slot = free_at[workers - 1];
    const auto worker = static_cast<std::uint32_t>(low_bits(slot, kWorkerBits));
    const std::uint64_t end = (slot >> kWorkerBits) + tile.cost();
    slot = end << kWorkerBits | worker;
    std::push_heap(free_at, free_at + workers, later);
    owners[i] = worker;
    last = std::max(last, end);
  }
  return last;
}

}  // namespace

bool emit_longest_first(const abi::BlockRow* block_rows, FixedVector<PlanTile>& tiles, const LongestFirstConfig& config,
                        const LongestFirstScratch& scratch, ScheduleOutput& out) {
  std::uint64_t pairs = 0, total = 0, largest = 1;
  for (const PlanTile& t : tiles) {
    pairs += t.heads();
    total += t.cost() * t.heads();
    largest = std::max(largest, t.cost());
  }
  const std::uint64_t share = total / config.num_workers;
  if (pairs == 0 || tiles.size >= 1u << kTileBits || config.num_workers >= 1u << kWorkerBits || largest > share) {
    return false;
  }
  const std::uint64_t unit = (largest >> kCostBits) + 1;
  // Pairs of a block row and a head share keys and values: sections are runs of them.
  std::uint64_t n = 0;
  std::uint64_t bytes_before = 0;  // of the block rows before
  for (std::uint32_t t = 0; t < tiles.size;) {
    const std::uint32_t block_row = tiles[t].block_row;
    std::uint32_t end = t;
    std::uint64_t run_tokens = 0;
    for (; end < tiles.size && tiles[end].block_row == block_row; ++end) {
      run_tokens = std::max<std::uint64_t>(run_tokens, tiles[end].tokens());
    }
    const std::uint64_t head_bytes = run_tokens * config.token_bytes;
    for (; t < end; ++t) {
      const PlanTile& tile = tiles[t];
      const std::uint64_t left = (largest - tile.cost()) / unit;
      for (std::uint32_t head = tile.head_begin; head < tile.head_end; ++head) {
        const std::uint64_t bytes = bytes_before + (head - tile.head_begin) * head_bytes;
        const std::uint64_t section = std::min(bytes / config.section_bytes, kMostSections - 1);
        scratch.keys[n++] = ((section << kCostBits | left) << kTileBits | t) << kHeadBits | head;
      }
    }
    bytes_before += head_bytes * tiles[end - 1].heads();
  }
  std::sort(scratch.keys, scratch.keys + n);
  const std::uint64_t last =
      assign(tiles, {scratch.keys, static_cast<std::size_t>(n)}, config.num_workers, scratch.free_at, scratch.owners);
  if (last > share + share / 16) return false;

  out.items->clear();
  out.splits->clear();
  out.queue->clear();
  for (PlanTile& tile : tiles) {
    tile.first_item = out.items->size;
    tile.num_items = 1;
    tile.first_split = tile.num_splits = 0;
    const abi::BlockRow& block_row = block_rows[tile.block_row];
    FOVEA_CHECK(out.items->size < out.items->capacity);
    abi::fill_item(block_row, tile, tile.kv_begin, tile.kv_end, 0, tile.partial_slot,
                   may_mask(block_row, tile, tile.kv_begin, tile.kv_end),
                   abi::open_end_of(block_row, config.tokens_per_tile), out.items->data[out.items->size++]);
  }
  // Queues: counted, placed, filled in order.
  std::fill(out.queue_begin, out.queue_begin + config.num_workers + 1, 0u);
  std::fill(out.worker_cost, out.worker_cost + config.num_workers, 0ull);
  for (std::uint64_t i = 0; i < n; ++i) ++out.queue_begin[scratch.owners[i] + 1];
  for (std::uint32_t w = 0; w < config.num_workers; ++w) {
    out.queue_begin[w + 1] += out.queue_begin[w];
    scratch.free_at[w] = out.queue_begin[w];
  }
  FOVEA_CHECK(n <= out.queue->capacity);
  out.queue->size = static_cast<std::uint32_t>(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    const auto t = static_cast<std::uint32_t>(low_bits(scratch.keys[i] >> kHeadBits, kTileBits));
    const auto head = static_cast<std::uint32_t>(low_bits(scratch.keys[i], kHeadBits));
    const std::uint32_t worker = scratch.owners[i];
    out.queue->data[scratch.free_at[worker]++] = abi::queue_entry(tiles[t].first_item, head);
    out.worker_cost[worker] += tiles[t].cost();
  }
  return true;
}

}  // namespace fovea
