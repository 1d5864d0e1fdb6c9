// An item as a warpgroup of the prefill kernel sees it: its 64 rows, the run's tiles, and which of them a mask touches.
// Used by all files of this folder.
#pragma once

#include "abi/cut.h"
#include "kernels/attention/prefill/memory.cuh"
#include "kernels/attention/prefix_forest/parts.cuh"

namespace fovea::attention::prefill {

// What a warpgroup has of an item.
enum class Opened : uint32_t {
  kBoth = 0,   // 64 rows, the other warpgroup has the rest
  kAlone = 1,  // all, which are up to 64: the other one is at items before or behind
  kSplit,      // all rows, and every other tile
  kOthers,     // nothing: the other one is alone with it
  kEmpty,      // rows, but there are no tokens
  kNothing,    // neither
  kEnd,        // there is no item
};

// One warpgroup: who it is, and which tile of the rings it takes next: values are one of its tiles behind keys while a
// tile's logits become P, and two while the outputs of the one before are under way.
struct Group {
  uint32_t index;
  uint32_t warp;  // of the group
  uint32_t lane;
  uint32_t q_use = 0, k_use = 0;
  uint32_t base = 0;  // the item's first tile, where items are split
  // What it has of the item, who takes the next one of up to 64 rows (they go by turns), whether no outputs of the item
  // were issued, and whether an item was passed before it, and how often before: one register, for few are left.
  uint32_t bits = 0;

  __device__ __forceinline__ void take(Opened share) { bits = (bits & ~3u) | static_cast<uint32_t>(share) | 8; }
  __device__ __forceinline__ bool both() const { return (bits & 3) == static_cast<uint32_t>(Opened::kBoth); }
  __device__ __forceinline__ bool alone() const { return (bits & 3) == static_cast<uint32_t>(Opened::kAlone); }
  __device__ __forceinline__ bool split() const { return kSplits && (bits & 2) != 0; }
  // Of a warp that has read a tile: who is alone with an item arrives for the other warpgroup too.
  __device__ __forceinline__ uint32_t arrivals() const { return 1 + (bits & 1); }
  __device__ __forceinline__ uint32_t next_alone() const { return bits >> 2 & 1; }
  __device__ __forceinline__ void turn() { bits ^= 4; }
  __device__ __forceinline__ bool fresh() const { return (bits & 8) != 0; }
  __device__ __forceinline__ void end_fresh() { bits &= ~8u; }
  __device__ __forceinline__ void pass() { bits = (bits | 16) + 32; }
  __device__ __forceinline__ bool passed() const { return (bits & 16) != 0; }
  __device__ __forceinline__ void end_passed() { bits &= ~16u; }
  __device__ __forceinline__ uint32_t passes() const { return bits >> 5; }
  // Whose 64 rows, and the first of the warp's.
  __device__ __forceinline__ uint32_t rows_index() const { return both() ? index : 0; }
  __device__ __forceinline__ uint32_t first_row() const { return rows_index() * kGroupRows + warp * 16; }
  // From one of its tiles to the next.
  __device__ __forceinline__ uint32_t step() const { return split() ? 2 : 1; }
};

// The plan's header, found where it is needed: kept from tile to tile, what follows from it would spill.
__device__ __forceinline__ const abi::DevicePlanHeader* header_here(const abi::AttentionArgs& args) {
  const uint8_t* plan = args.plan;
  asm volatile("" : "+l"(plan));
  return reinterpret_cast<const abi::DevicePlanHeader*>(plan);
}

// What every tile asks for; the rest stands in the record.
struct Item {
  uint32_t nth;  // of the queue
  uint32_t tiles;
  Row hooked[Variant::kHasLogit ? 2 : 1];  // the lane's rows, for hooks on logits
};

__device__ __forceinline__ const ItemRecord& record_of(const Memory& shared, const Item& item) {
  return shared.records[item.nth % kRecords];
}
// Of the item that the group works on.
__device__ __forceinline__ const TileRows& rows_here(const Memory& shared, const Group& group) {
  return shared.rows[group.q_use % kQuerySlots];
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

__device__ __forceinline__ uint64_t stored_bytes(long long elements) {
  return static_cast<uint64_t>(elements) * kPoolBits / 8;
}

// Where a token of a run lies in a pool.
__device__ __forceinline__ const uint8_t* row_of(const abi::AttentionArgs& args, const void* pool, const Run& run,
                                                 uint32_t token) {
  const auto entry_tokens = static_cast<uint32_t>(args.pool.entry_tokens);
  const Place place = place_of(args, args.page_entries[run.list_begin + token / entry_tokens], token % entry_tokens);
  const long long at =
      run.head * args.pool.head_stride + place.page * args.pool.page_stride + place.token * args.pool.token_stride;
  return static_cast<const uint8_t*>(pool) + stored_bytes(at);
}

// As headers of kernels/attention and prefix_forest take an item. Its arguments, warp and lane they are given.
__device__ __forceinline__ Work work_of(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                        const Item& item) {
  Work work;
  work.record = &record_of(shared, item);
  const Run run = run_of(args, *work.record);
  work.begin = run.begin;
  work.end = run.end;
  work.header = header_here(args);
  work.group = work.header->counts.group;
  work.rows = work.record->item.row_count * work.group;
  work.first_row = group.first_row();
  work.q_heads = work.header->counts.num_kv_heads * work.group;
  return work;
}

// The lane's rows, where more is asked than TileRows has.
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
  const uint32_t heads = header->counts.group;
  Rows rows{};
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    Row& row = rows.row[h];
    const uint32_t tile_row = group.first_row() + group.lane / 4 + 8 * h;
    row.token = tile_row / heads;
    row.q_head = record.head * heads + tile_row % heads;
    row.valid = row.token < record.item.row_count;
    if (!row.valid) continue;
    row.q_row = row_indices[record.item.row_begin + row.token];
    row.position = q_pos[record.item.row_begin + row.token];
  }
  return rows;
}

// The lane's rows of an item, where logits have a hook.
__device__ __forceinline__ void find_hooked(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                            Item& item) {
  if constexpr (Variant::kHasLogit) {
    const Rows rows = rows_of(args, shared, group, item);
    item.hooked[0] = rows.row[0];
    item.hooked[1] = rows.row[1];
  }
}

// The warp has read a tile.
template <int kSlots>
__device__ __forceinline__ void release(const TileBarriers<kSlots>& ring, uint32_t use, const Group& group) {
  __syncwarp();
  ptx::mbarrier_arrive_warp(ptx::smem_address(&ring.empty[use % kSlots]), group.arrivals(), group.lane);
}

// A group that passes an item does not see its tiles come: it may be rounds ahead of a ring, whose barriers tell one
// round from the next alone. Items of up to 64 rows go by turns, so that it passes one at a time: behind its tiles of
// K, or of V, the ring is where the group believes it to be.
__device__ __forceinline__ void tell_left(Memory& shared, uint32_t ring, const Group& group) {
  __syncwarp();
  if (group.alone() && group.lane == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared.left[ring][group.index]));
}
__device__ __forceinline__ void wait_left(const Memory& shared, uint32_t ring, const Group& group) {
  if (!group.passed()) return;
  ptx::mbarrier_wait(ptx::smem_address(&shared.left[ring][group.index ^ 1]), (group.passes() & 1) ^ 1);
}

// Item n: what the group has of it.
__device__ __forceinline__ Opened open_item(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                            uint32_t n, Item& item) {
  const RingSlot<kRecords> slot(n);
  ptx::mbarrier_wait(ptx::smem_address(&shared.record_full[slot.index]), slot.parity);
  const ItemRecord& record = shared.records[slot.index];
  if (record.head == kEndOfWork) return Opened::kEnd;
  const uint32_t rows = record.item.row_count * header_here(args)->counts.group;
  item.nth = n;
  item.tiles = Tiles::of(run_of(args, record)).count;
  if (item.tiles == 0) return rows > group.index * kGroupRows ? Opened::kEmpty : Opened::kNothing;
  if (rows > kGroupRows) return Opened::kBoth;
  if (kSplits && item.tiles >= kLeastSplitTiles) return Opened::kSplit;
  return group.index == group.next_alone() ? Opened::kAlone : Opened::kOthers;
}

__device__ __forceinline__ abi::MaskKind mask_of(const ItemRecord& record) {
  return record.item.flags & abi::kItemMasked ? record.block_row.mask : abi::MaskKind::kNone;
}
// Whether what is seen stands in bits, or positions in a list.
__device__ __forceinline__ bool is_listed(const ItemRecord& record) {
  const abi::MaskKind mask = mask_of(record);
  return mask == abi::MaskKind::kBits ||
         (mask != abi::MaskKind::kNone && record.block_row.positions_begin != abi::kNone);
}

}  // namespace fovea::attention::prefill
