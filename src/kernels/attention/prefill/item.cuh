// An item as a warpgroup of the prefill kernel sees it: its 64 rows, the run's tiles, and which of them a mask touches.
// Used by kernel.cuh, softmax.cuh and finish.cuh.
#pragma once

#include "abi/cut.h"
#include "kernels/attention/prefill/memory.cuh"
#include "kernels/attention/prefix_forest/parts.cuh"

namespace fovea::attention::prefill {

// One warpgroup: who it is, and how many tiles it has taken from the rings: values are one behind keys while a tile's
// logits become weights, and two while the outputs of the one before are under way.
struct Group {
  uint32_t index;
  uint32_t warp;  // of the group
  uint32_t lane;
  uint32_t q_use = 0, k_use = 0;

  __device__ __forceinline__ uint32_t first_row() const { return index * kGroupRows + warp * 16; }  // of the warp
  __device__ __forceinline__ uint32_t thread() const { return (index * 4 + warp) * 32 + lane; }
};

// What a thread asks for once an item: in shared memory, because registers are few.
__device__ __forceinline__ void fill_places(const abi::AttentionArgs& args, Memory& shared, const Group& group) {
  const uint32_t heads = reinterpret_cast<const abi::DevicePlanHeader*>(args.plan)->counts.group;
  Places& places = shared.places[group.thread()];
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    const uint32_t row = group.first_row() + group.lane / 4 + 8 * h;
    places.token[h] = static_cast<uint16_t>(row / heads);
    places.head[h] = static_cast<uint16_t>(row % heads);
  }
  places.first_token = static_cast<uint16_t>(group.index * kGroupRows / heads);
  places.last_token = static_cast<uint16_t>((group.index * kGroupRows + kGroupRows - 1) / heads);
  places.heads = heads;
}

// The plan's header, found where it is needed: kept from tile to tile, what follows from it would spill.
__device__ __forceinline__ const abi::DevicePlanHeader* header_here(const abi::AttentionArgs& args) {
  const uint8_t* plan = args.plan;
  asm volatile("" : "+l"(plan));
  return reinterpret_cast<const abi::DevicePlanHeader*>(plan);
}

inline constexpr uint32_t kListed = 1;  // what is seen stands in bits, or positions in a list
inline constexpr uint32_t kIdle = 2;    // the warp has no rows

// What every tile asks for; the rest stands in the record.
struct Item {
  uint32_t nth;  // of the queue
  uint32_t tiles;
  uint32_t flags;                          // in one register
  Row hooked[Variant::kHasLogit ? 2 : 1];  // the lane's rows, for hooks on logits
};

__device__ __forceinline__ const ItemRecord& record_of(const Memory& shared, const Item& item) {
  return shared.records[item.nth % kRecords];
}
__device__ __forceinline__ bool is_direct(const Memory& shared, const Item& item) {
  return (record_of(shared, item).item.flags & abi::kItemDirect) != 0;
}
// The first token of a tile, by the run.
__device__ __forceinline__ uint32_t token_of(const Run& run, uint32_t tile) {
  return Tiles::of(run).base + tile * kBlockTokens;
}

// The page that a page entry names, and the token in it at which the entry begins.
struct Place {
  int32_t page;
  int32_t token;
};
__device__ __forceinline__ Place place_of(const abi::AttentionArgs& args, int32_t entry, uint32_t in_entry) {
  const int32_t parts = args.pool.entries_per_page;
  if (parts == 1) return {entry, static_cast<int32_t>(in_entry)};
  return {entry / parts, entry % parts * args.pool.entry_tokens + static_cast<int32_t>(in_entry)};
}

// Where a token of a run lies in a pool.
__device__ __forceinline__ const uint8_t* row_of(const abi::AttentionArgs& args, const void* pool, const Run& run,
                                                 uint32_t token) {
  const auto entry_tokens = static_cast<uint32_t>(args.pool.entry_tokens);
  const Place place = place_of(args, args.page_entries[run.list_begin + token / entry_tokens], token % entry_tokens);
  const long long at =
      run.head * args.pool.head_stride + place.page * args.pool.page_stride + place.token * args.pool.token_stride;
  return static_cast<const uint8_t*>(pool) + at * (kPoolRowBytes / kHeadDim);
}

// As the decode kernel's headers take an item.
__device__ __forceinline__ Work work_of(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                        const Item& item) {
  Work work;
  work.record = &record_of(shared, item);
  const Run run = run_of(args, *work.record);
  work.begin = run.begin;
  work.end = run.end;
  work.group = shared.places[group.thread()].heads;
  work.rows = work.record->item.row_count * work.group;
  work.first_row = group.first_row();
  work.header = header_here(args);
  work.q_heads = work.header->counts.num_kv_heads * work.group;
  return work;
}

// The lane's rows. Reads memory that touch_item() asked for, as a rule.
struct Rows {
  Row row[2];
};
__device__ __forceinline__ Rows rows_of(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                        const Item& item) {
  const abi::DevicePlanHeader* const header = header_here(args);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(header);
  const auto* const row_indices = reinterpret_cast<const uint32_t*>(bytes + header->row_indices);
  const auto* const q_pos = reinterpret_cast<const int32_t*>(bytes + header->q_pos);
  const ItemRecord& record = record_of(shared, item);
  const Places& places = shared.places[group.thread()];
  Rows rows{};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    Row& row = rows.row[h];
    row.token = places.token[h];
    row.q_head = record.head * places.heads + places.head[h];
    row.valid = row.token < record.item.row_count;
    if (!row.valid) continue;
    row.q_row = row_indices[record.item.row_begin + row.token];
    row.position = q_pos[record.item.row_begin + row.token];
  }
  return rows;
}

// Item n: whether there is one, and whether the group has rows and tokens of it.
enum class Opened { kEnd, kNothing, kEmpty, kPassed, kWorks };
__device__ __forceinline__ Opened open_item(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                            uint32_t n, Item& item) {
  const RingSlot<kRecords> slot(n);
  ptx::mbarrier_wait(ptx::smem_address(&shared.record_full[slot.index]), slot.parity);
  const ItemRecord& record = shared.records[slot.index];
  if (record.head == kEndOfWork) return Opened::kEnd;
  const uint32_t rows = record.item.row_count * shared.places[group.thread()].heads;
  item.nth = n;
  item.tiles = Tiles::of(run_of(args, record)).count;
  item.flags = rows <= group.first_row() ? kIdle : 0;
  if (rows <= group.index * kGroupRows) return item.tiles != 0 ? Opened::kPassed : Opened::kNothing;
  return item.tiles != 0 ? Opened::kWorks : Opened::kEmpty;
}

// Whether the group works on item n; brings what find_limits() reads of it into the first-level cache.
__device__ __forceinline__ bool touch_item(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                           uint32_t n) {
  Item item;
  if (open_item(args, shared, group, n, item) != Opened::kWorks) return false;
  const abi::DevicePlanHeader* const header = header_here(args);
  const ItemRecord& record = record_of(shared, item);
  const uint32_t token = shared.places[group.thread()].first_token + group.lane * 2;
  if (token < record.item.row_count) {
    const uint8_t* const at =
        reinterpret_cast<const uint8_t*>(header) + (record.item.row_begin + token) * sizeof(uint32_t);
    ptx::prefetch_near(at + header->q_pos);
    ptx::prefetch_near(at + header->row_indices);
  }
  return true;
}

// The lowest and highest position among the warpgroup's rows: every warp reads all of them.
__device__ __forceinline__ PositionRange group_positions(const abi::AttentionArgs& args, const Memory& shared,
                                                         const Group& group, const ItemRecord& record) {
  const abi::DevicePlanHeader* const header = header_here(args);
  const auto* const q_pos = reinterpret_cast<const int32_t*>(reinterpret_cast<const uint8_t*>(header) + header->q_pos);
  const Places& places = shared.places[group.thread()];
  const uint32_t tokens =
      min(places.last_token + 1u, static_cast<uint32_t>(record.item.row_count)) - places.first_token;
  PositionRange range{0x7fffffff, static_cast<int32_t>(0x80000000u)};
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t token = group.lane + 32 * i;
    if (token >= tokens) continue;
    const int32_t position = q_pos[record.item.row_begin + places.first_token + token];
    range.low = min(range.low, position);
    range.high = max(range.high, position);
  }
  return {__reduce_min_sync(~0u, range.low), __reduce_max_sync(~0u, range.high)};
}

// Finds what the rows of an item see. Reads memory, as rows_of().
__device__ __forceinline__ void find_limits(const abi::AttentionArgs& args, Memory& shared, const Group& group,
                                            Item& item) {
  const ItemRecord& record = record_of(shared, item);
  const Run run = run_of(args, record);
  const uint32_t base = Tiles::of(run).base;
  const abi::BlockRow& block_row = record.block_row;
  const abi::MaskKind mask = record.item.flags & abi::kItemMasked ? block_row.mask : abi::MaskKind::kNone;
  const bool listed =
      mask == abi::MaskKind::kBits || (mask != abi::MaskKind::kNone && block_row.positions_begin != abi::kNone);
  if (listed) item.flags |= kListed;
  uint32_t low[2] = {run.begin, run.begin};
  uint32_t high[2] = {run.end, run.end};
  uint32_t most_low = run.begin;
  uint32_t least_high = run.end;
  const bool by_position = mask != abi::MaskKind::kNone && !listed;
  if (by_position || Variant::kHasLogit) {
    const Rows rows = rows_of(args, shared, group, item);
    if constexpr (Variant::kHasLogit) {
      item.hooked[0] = rows.row[0];
      item.hooked[1] = rows.row[1];
    }
    if (by_position) {
      const bool window = mask == abi::MaskKind::kWindow && block_row.window_left >= 0;
      const int32_t left = window ? block_row.window_left : 0;
      const auto high_of = [&](int32_t position) {
        return abi::clamp_token(position + 1ll - block_row.position_base, run.begin, run.end);
      };
      const auto low_of = [&](int32_t position) {
        const long long token = static_cast<long long>(position) - left - block_row.position_base;
        return window ? abi::clamp_token(token, run.begin, run.end) : run.begin;
      };
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (!rows.row[h].valid) continue;
        high[h] = high_of(rows.row[h].position);
        low[h] = low_of(rows.row[h].position);
      }
      const PositionRange range = group_positions(args, shared, group, record);
      least_high = high_of(range.low);
      most_low = low_of(range.high);
    }
  }
  Places& places = shared.places[group.thread()];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    places.low[h] = low[h];
    places.high[h] = places.token[h] < record.item.row_count ? high[h] : low[h];
  }
  const bool plain = !listed && least_high > base;
  places.plain_begin = plain ? (most_low - base + kBlockTokens - 1) / kBlockTokens : item.tiles;
  // The tile that is worked on first is none of them: no outputs are under way beside its weights.
  places.plain_end = plain && item.tiles != 0 ? min((least_high - base) / kBlockTokens, item.tiles - 1) : 0;
}

}  // namespace fovea::attention::prefill
