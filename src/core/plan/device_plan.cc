#include "core/plan/device_plan.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "abi/reschedule_args.h"
#include "base/status.h"
#include "core/plan/arrays.h"

namespace fovea {
namespace {

template <typename T>
void copy(std::byte* to, const T* from, std::uint64_t count) {
  if (count != 0) std::memcpy(to, from, count * sizeof(T));
}

std::uint64_t max_queues(const PlannerOptions& options) {
  return static_cast<std::uint64_t>(options.num_workers) * static_cast<std::uint64_t>(options.shared_rounds);
}

std::uint64_t growth_bytes(const PlanGrowth& growth, std::uint32_t num_rows) {
  if (growth.arrays == nullptr) return 0;
  return abi::growth_bytes(growth.arrays->tiles.size, num_rows, growth.arrays->covers.size);
}

void pack_growth(const PlanGrowth& growth, const abi::PlanHeader& counts, std::uint32_t row_indices, std::byte* to) {
  const PlanArrays& arrays = *growth.arrays;
  abi::GrowthHeader header{};
  header.cost = growth.cost;
  header.span_rounds = growth.span_rounds;
  header.first_tiles = growth.first_tiles;
  header.num_spans = growth.num_spans;
  header.block_tokens = growth.block_tokens;
  header.tile_rows = growth.tile_rows;
  header.num_tiles = arrays.tiles.size;
  header.tile_partial_rows = growth.tile_partial_rows;
  header.num_covers = arrays.covers.size;
  header.num_row_indices = row_indices;
  header.max_tokens = static_cast<std::uint32_t>(growth.max_tokens);
  auto* const tiles = reinterpret_cast<abi::GrowthTile*>(to + sizeof header);
  for (std::uint32_t t = 0; t < header.num_tiles; ++t) {
    const PlanTile& tile = arrays.tiles[t];
    header.most_tokens = std::max<std::uint32_t>(header.most_tokens, tile.row_count);
    tiles[t] = {tile.block_row, tile.row_begin - arrays.block_rows[tile.block_row].row_begin, tile.partial_slot};
  }
  std::memcpy(to, &header, sizeof header);
  if (header.num_covers == 0) return;
  const std::uint32_t step = growth.tile_rows / counts.group;
  auto* const rows = reinterpret_cast<abi::GrowthRow*>(tiles + header.num_tiles);
  std::uint32_t first_merge = 0;
  for (std::uint32_t row = 0; row <= counts.num_rows; ++row) {
    rows[row] = {arrays.cover_begin[row], first_merge};
    if (row < counts.num_rows && arrays.cover_begin[row + 1] != arrays.cover_begin[row]) {
      first_merge += counts.num_kv_heads;
    }
  }
  auto* const covers = reinterpret_cast<abi::GrowthCover*>(rows + counts.num_rows + 1);
  for (std::uint32_t c = 0; c < header.num_covers; ++c) {
    const RowCover& cover = arrays.covers[c];
    covers[c] = {arrays.tile_begin[cover.block_row] + cover.nth / step, cover.nth % step};
  }
}

void pack_starts(const abi::PlanView& plan, const abi::Launch& launch, std::byte* to) {
  const std::uint32_t* const begin = plan.queue_begin + launch.first_queue;
  auto* const starts = reinterpret_cast<abi::WorkerStart*>(to);
  for (std::uint32_t w = 0; w < launch.num_workers; ++w) {
    starts[w] = abi::worker_start(*plan.header, begin[w], begin[w + 1], plan.queue, plan.items);
  }
}

// A plan of whole tiles and of where warps begin. Items of a tile follow one another: the undivided one, if some head
// is under it, then the parts of divided pairs.
class WarpPacker {
 public:
  WarpPacker(const abi::PlanView& plan, const abi::Launch& launch)
      : plan_(plan), begin_(plan.queue_begin + launch.first_queue), num_workers_(launch.num_workers) {}

  // Whether such a plan says it all: each pair must be one item's, or parts of it.
  bool fits() const {
    const abi::PlanHeader& counts = *plan_.header;
    for (std::uint32_t b = 0; b < counts.num_block_rows; ++b) {
      const abi::BlockRow& row = plan_.block_rows[b];
      if (!(row.flags & abi::kRowsSolo) || row.head_begin != 0 || row.head_end != counts.num_kv_heads) return false;
    }
    return num_workers_ <= std::numeric_limits<std::uint16_t>::max();
  }

  // Writes as many tiles as there is room for, and returns how many there are; kNone: of chunks.
  std::uint32_t pack(std::span<abi::WorkItem> tiles, abi::WarpStart* starts) const {
    const std::uint32_t num_items = plan_.header->num_items;
    std::uint32_t tile = 0;
    std::uint32_t worker = 0;
    Parts parts;
    for (std::uint32_t i = 0; i < num_items; ++tile) {
      const abi::WorkItem& first = plan_.items[i];
      unsigned flags = first.flags;
      for (++i; i < num_items && plan_.items[i].row_begin == first.row_begin; ++i) {
        if (!(plan_.items[i].flags & abi::kItemSingleHead)) return abi::kNone;
        flags |= plan_.items[i].flags;
      }
      if (tile < tiles.size()) {
        tiles[tile] = first;
        if (first.flags & abi::kItemSingleHead) {
          tiles[tile].kv_end = plan_.items[i - 1].kv_end;
          tiles[tile].partial_slot = abi::kNone;
          tiles[tile].flags =
              static_cast<std::uint8_t>(abi::kItemDirect | (flags & (abi::kItemMasked | abi::kItemOpenEnd)));
        }
      }
      for (; worker < num_workers_ && begin_[worker] < plan_.header->num_queue_entries; ++worker) {
        const std::uint32_t entry = plan_.queue[begin_[worker]];
        if (abi::queue_item(entry) >= i) break;
        starts[worker] = start_of(tile, entry, parts);
      }
    }
    for (; worker <= num_workers_; ++worker) starts[worker] = abi::warp_end(tile);
    return tile;
  }

 private:
  // Items of a divided pair.
  struct Parts {
    std::uint32_t first = 0;
    std::uint32_t end = 0;
  };

  // parts: of the pair of the worker before.
  abi::WarpStart start_of(std::uint32_t tile, std::uint32_t entry, Parts& parts) const {
    const std::uint32_t i = abi::queue_item(entry);
    const abi::WorkItem& item = plan_.items[i];
    const std::uint32_t pair = abi::queue_entry(tile, abi::queue_head(entry));
    abi::WarpStart start{pair, item.list_begin, item.kv_begin, item.kv_end, item.partial_slot, 0, 0};
    if (!(item.flags & abi::kItemSingleHead)) return start;
    if (i >= parts.end) {
      parts.first = i;
      while (!(plan_.items[parts.first].flags & abi::kItemFirstPart)) --parts.first;
      constexpr unsigned kOther = abi::kItemSingleHead | abi::kItemFirstPart;
      parts.end = i + 1;
      while (parts.end < plan_.header->num_items && (plan_.items[parts.end].flags & kOther) == abi::kItemSingleHead) {
        ++parts.end;
      }
    }
    start.part = static_cast<std::uint16_t>(i - parts.first);
    start.num_parts = static_cast<std::uint16_t>(parts.end - parts.first);
    return start;
  }

  const abi::PlanView& plan_;
  const std::uint32_t* begin_;
  std::uint32_t num_workers_;
};

// By row and head, where runs are shared.
void pack_merges_by_row(const abi::PlanView& plan, abi::DeviceMerge* merges) {
  const abi::PlanHeader& counts = *plan.header;
  std::memset(merges, 0, std::size_t{counts.num_rows} * counts.num_kv_heads * sizeof *merges);
  for (std::uint32_t m = 0; m < counts.num_merges; ++m) {
    const abi::MergeEntry& merge = plan.merges[m];
    merges[abi::merge_number(counts, merge.row, merge.head)] = {merge.parts_begin, merge.num_parts};
  }
}

// Every partial row that a merge lists leads to it; the others, of items that a cut divided, lead nowhere.
void pack_merges(const abi::PlanView& plan, abi::DeviceMerge* merges, std::uint32_t* merge_of_partial) {
  const abi::PlanHeader& counts = *plan.header;
  std::fill(merge_of_partial, merge_of_partial + counts.num_partial_rows / counts.group, abi::kNone);
  std::uint32_t shift = 0;
  while ((counts.group >> shift) > 1) ++shift;
  const bool power_of_two = counts.group == 1u << shift;
  for (std::uint32_t m = 0; m < counts.num_merges; ++m) {
    const abi::MergeEntry& merge = plan.merges[m];
    merges[m] = {merge.parts_begin, merge.num_parts};
    const std::uint32_t* const parts = plan.merge_parts + merge.parts_begin;
    for (std::uint32_t i = 0; i < merge.num_parts; ++i) {
      merge_of_partial[power_of_two ? parts[i] >> shift : parts[i] / counts.group] = m;
    }
  }
}

}  // namespace

std::size_t max_device_plan_bytes(const Planner& planner, bool growing, WorkerStarts starts) {
  const PlannerOptions& options = planner.options();
  const PlanCapacity c = plan_capacity(options).value();
  const auto group = static_cast<std::uint64_t>(options.num_qo_heads / options.num_kv_heads);
  const std::uint64_t growth = growing ? abi::growth_bytes(c.tiles, c.rows, c.row_indices) : 0;
  const bool warps = starts == WorkerStarts::kWarps;
  const std::uint64_t start_bytes = abi::start_bytes(max_queues(options), warps);
  if (warps) {
    return abi::place_device_plan({start_bytes, c.block_rows, c.row_indices, growth, c.tiles, 0, 0, 0, 0}).bytes;
  }
  return abi::place_device_plan({start_bytes, c.block_rows, c.row_indices, growth, c.items, c.queue + 1, c.merges,
                                 c.parts, c.partial_rows / group})
      .bytes;
}

std::uint32_t max_device_plan_merges(const Planner& planner) {
  return static_cast<std::uint32_t>(plan_capacity(planner.options()).value().merges);
}

std::size_t max_reschedule_scratch_bytes(const Planner& planner) {
  const PlannerOptions& options = planner.options();
  const PlanCapacity capacity = plan_capacity(options).value();
  const auto group = options.num_qo_heads / options.num_kv_heads;
  const std::uint64_t step = static_cast<std::uint64_t>(most_tile_rows(options) / group);
  return abi::reschedule_scratch_bytes(capacity.tiles, max_queues(options), std::min(step, capacity.rows));
}

Result<std::size_t> pack_device_plan(const abi::PlanView& plan, std::span<std::byte> buffer, const PlanGrowth& growth,
                                     WorkerStarts starts) {
  const abi::PlanHeader& counts = *plan.header;
  if (counts.num_launches != 1) return unsupported("a plan of {} launches; devices take one", counts.num_launches);
  const abi::Launch launch = plan.launches[0];
  const bool warps = starts == WorkerStarts::kWarps;
  std::uint32_t row_indices = counts.num_rows;
  for (std::uint32_t b = 0; b < counts.num_block_rows; ++b) {
    const abi::BlockRow& row = plan.block_rows[b];
    row_indices = std::max(row_indices, row.row_begin + row.row_count);
  }
  abi::PlanHeader packed = counts;
  const bool shares = (counts.flags & abi::kPlanShares) != 0;
  if (shares) packed.num_merges = counts.num_rows * counts.num_kv_heads;
  if (warps) {
    packed.num_items = packed.num_queue_entries = packed.num_merges = packed.num_parts = 0;
    packed.flags |= abi::kPlanWarpStarts;
  }
  const auto place = [&] {
    return abi::place_device_plan({abi::start_bytes(launch.num_workers, warps), packed.num_block_rows, row_indices,
                                   growth_bytes(growth, packed.num_rows), packed.num_items,
                                   warps ? 0 : packed.num_queue_entries + std::uint64_t{1}, packed.num_merges,
                                   packed.num_parts, warps || shares ? 0 : packed.num_partial_rows / packed.group});
  };
  abi::DevicePlanSections s = place();
  if (warps && s.bytes <= buffer.size()) {
    const WarpPacker packer(plan, launch);
    packed.num_items = abi::kNone;
    if (packer.fits()) {
      const std::span<std::byte> room = buffer.subspan(s.items);
      packed.num_items =
          packer.pack({reinterpret_cast<abi::WorkItem*>(room.data()), room.size() / sizeof(abi::WorkItem)},
                      reinterpret_cast<abi::WarpStart*>(buffer.data() + abi::kWorkerStartOffset));
    }
    if (packed.num_items == abi::kNone) {
      return unsupported(
          "workers that are warps take plans cut in spans, of requests apart, for at most 65535 workers");
    }
    s = place();
  }
  if (s.bytes > buffer.size()) {
    return make_status(StatusCode::kOutOfRange, "the plan takes {} bytes, its buffer has {}", s.bytes, buffer.size());
  }
  std::byte* const base = buffer.data();
  abi::DevicePlanHeader header{};
  header.counts = packed;
  header.num_workers = launch.num_workers;
  abi::set_sections(s, header);
  std::memcpy(base, &header, sizeof header);

  copy(base + s.block_rows, plan.block_rows, counts.num_block_rows);
  copy(base + s.row_indices, plan.row_indices, row_indices);
  copy(base + s.q_pos, plan.q_pos, row_indices);
  if (growth.arrays != nullptr) pack_growth(growth, counts, row_indices, base + s.growth);
  if (warps) return static_cast<std::size_t>(s.bytes);
  pack_starts(plan, launch, base + abi::kWorkerStartOffset);
  copy(base + s.items, plan.items, counts.num_items);
  copy(base + s.queue, plan.queue, counts.num_queue_entries + std::uint64_t{1});
  copy(base + s.merge_parts, plan.merge_parts, counts.num_parts);
  auto* const merges = reinterpret_cast<abi::DeviceMerge*>(base + s.merges);
  if (shares) {
    pack_merges_by_row(plan, merges);
  } else {
    pack_merges(plan, merges, reinterpret_cast<std::uint32_t*>(base + s.merge_of_partial));
  }
  return static_cast<std::size_t>(s.bytes);
}

}  // namespace fovea
