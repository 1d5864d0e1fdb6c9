// What a device needs to cut a plan again when lengths grew (kernels/plan/reschedule.cuh): the growth section of a
// device plan, written by core/plan/device_plan where growth on the device is asked for, and the kernel's argument,
// filled by attention/cuda_reschedule.cc. Compiles under g++ and NVRTC.
#pragma once

#include "abi/cut.h"
#include "abi/device_plan.h"

namespace fovea::abi {

// A tile, but for what its block row and its length say.
struct GrowthTile {
  uint32_t block_row;
  uint32_t row;           // of the block row: its first
  uint32_t partial_slot;  // see PlanTile
};

// Block rows that are not solo: where a query token's slice of GrowthCover begins, and its entries in the merge list,
// one a KV head.
struct GrowthRow {
  uint32_t cover_begin;
  uint32_t first_merge;
};

// A tile that covers a query token, and which of the tile's rows that is; a token's covers ascend in KV order.
struct GrowthCover {
  uint32_t tile;
  uint32_t nth;
};

// The section starts with it; then GrowthTile[num_tiles] and, unless num_covers is 0, GrowthRow[num_rows + 1] and
// GrowthCover[num_covers]. 68 bytes.
struct GrowthHeader {
  CostModel cost;
  uint32_t span_rounds;
  uint32_t block_tokens;
  uint32_t tile_rows;
  uint32_t num_tiles;
  uint32_t most_tokens;        // query tokens of the tallest tile
  uint32_t tile_partial_rows;  // of undivided tiles
  uint32_t num_covers;
  uint32_t num_row_indices;
  uint32_t max_tokens;   // of a request, by its page list
  uint32_t num_spans;    // see CutConfig
  uint32_t first_tiles;  // tiles that CutConfig::first_cost is of, or 0
};
static_assert(sizeof(GrowthHeader) == 68);

constexpr uint64_t growth_bytes(uint64_t tiles, uint64_t rows, uint64_t covers) {
  const uint64_t shared = covers == 0 ? 0 : (rows + 1) * sizeof(GrowthRow) + covers * sizeof(GrowthCover);
  return sizeof(GrowthHeader) + tiles * sizeof(GrowthTile) + shared;
}

struct RescheduleArgs {
  uint8_t* plan;           // DevicePlanHeader; rewritten in place
  const int32_t* kv_lens;  // by length slot, new tokens included
  uint8_t* scratch;        // reschedule_scratch_bytes() of the most that plans may need; 16-byte aligned
  uint32_t smem_bytes;     // dynamic shared memory of the launch, used instead where a plan's scratch fits
  uint32_t reserved;
};

inline constexpr uint32_t kRescheduleThreads = 512;  // one CTA

// Scratch of rescheduling, carved by one function that also measures. Arrays are by tile, by worker (cut k stands at k
// - 1) or by row of a divided pair.
struct RescheduleScratch {
  PlanTile* tiles;
  uint64_t* cost_before;     // [tiles + 1] of undivided work before a tile
  uint64_t* items_before;    // [tiles + 1] items before a tile; high half: partial rows of parts before it
  CutPoint* cuts;            // [2 * workers] of two passes
  uint64_t* targets;         // [workers + 1]
  uint64_t* overhead;        // [workers] what dividing adds to a worker
  uint32_t* fell;            // [workers] tile where a target falls
  uint64_t* parts_before;    // [workers + 1] dividing cuts before a cut; high half: divided pairs
  uint64_t* entries_before;  // [workers] queue entries that cuts before a cut add to those of the tiles
  CutPoint* dividing;        // [workers] the cuts that divide pairs
  uint32_t* pair_of;         // [workers] pair of that tile; later the divided pair that a dividing cut is in
  uint32_t* first_cut;       // [workers + 1] by divided pair: its first dividing cut
  uint64_t* rows_before;     // [workers + 1] by divided pair: rows of divided pairs before; high half: of solo ones
  uint64_t* row_parts;       // [workers * most_tokens + 1] by row of a divided pair: parts listed before
  uint64_t* thread_sums;     // [threads]
  uint64_t* group_sums;      // [threads / 32]
  uint64_t* result;          // [2] what dividing adds in all, and the cost of the slowest worker
  uint64_t bytes;
};

inline RescheduleScratch carve_reschedule_scratch(uint8_t* base, uint64_t tiles, uint64_t workers,
                                                  uint64_t most_tokens) {
  RescheduleScratch s{};
  const auto take = [&]<typename T>(T*& array, uint64_t count) {
    if (base != nullptr) array = reinterpret_cast<T*>(base + s.bytes);
    s.bytes += (count * sizeof(T) + 15) / 16 * 16;
  };
  take(s.tiles, tiles);
  take(s.cost_before, tiles + 1);
  take(s.items_before, tiles + 1);
  take(s.cuts, 2 * workers);
  take(s.targets, workers + 1);
  take(s.overhead, workers);
  take(s.fell, workers);
  take(s.parts_before, workers + 1);
  take(s.entries_before, workers);
  take(s.dividing, workers);
  take(s.pair_of, workers);
  take(s.first_cut, workers + 1);
  take(s.rows_before, workers + 1);
  take(s.row_parts, workers * most_tokens + 1);
  take(s.thread_sums, kRescheduleThreads);
  take(s.group_sums, kRescheduleThreads / 32);
  take(s.result, 2);
  return s;
}

inline uint64_t reschedule_scratch_bytes(uint64_t tiles, uint64_t workers, uint64_t most_tokens) {
  return carve_reschedule_scratch(nullptr, tiles, workers, most_tokens).bytes;
}

}  // namespace fovea::abi
