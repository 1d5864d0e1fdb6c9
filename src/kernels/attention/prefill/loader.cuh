// The warps that bring tiles of K and of V to shared memory: by TMA, or row by row where pages are small (FOVEA_LOADER,
// gather.cuh). Used by kernel.cuh.
#pragma once

#if FOVEA_LOADER == 0
#include "kernels/attention/prefill/records.cuh"
#else
#include "kernels/attention/prefill/gather.cuh"
#endif

namespace fovea::attention::prefill {

#if FOVEA_LOADER == 0

inline constexpr uint32_t kTileBoxes = kBlockTokens / kBoxTokens;
static_assert(kTileBoxes * kTilePanels <= 32, "a lane issues one box");

// K or V of all items. One lane a box, of kBoxTokens tokens in one panel.
__device__ __forceinline__ void load_tiles(const abi::AttentionArgs& args, const abi::TensorMap* map, Memory& shared,
                                           uint8_t (&slots)[kKvSlots][kBlockTokens * kTileRowBytes],
                                           TileBarriers<kKvSlots>& ring, uint32_t loader, uint32_t lane) {
  const uint32_t entry_tokens = static_cast<uint32_t>(args.pool.entry_tokens);
  const uint32_t box = lane % kTileBoxes;
  const uint32_t panel = lane / kTileBoxes;
  uint32_t use = 0;
  for (uint32_t n = 0; next_record(shared, n); ++n) {
    const ItemRecord& record = shared.records[n % kRecords];
    const Run run = run_of(args, record);
    const Tiles tiles = Tiles::of(run);
    const int32_t* const list = args.page_entries + run.list_begin;
    const auto token_of = [&](uint32_t j) { return tiles.base + j * kBlockTokens + box * kBoxTokens; };
    const auto wanted = [&](uint32_t token) {
      return panel < kTilePanels && token < run.end && token + kBoxTokens > run.begin;
    };
    const auto entry_of = [&](uint32_t token) { return wanted(token) ? list[token / entry_tokens] : 0; };
    int32_t entry = tiles.count != 0 ? entry_of(token_of(tiles.count - 1)) : 0;
    for (uint32_t j = tiles.count; j-- > 0; ++use) {
      const uint32_t token = token_of(j);
      const bool mine = wanted(token);
      const Place place = place_of(args, entry, token % entry_tokens);
      if (j != 0) entry = entry_of(token_of(j - 1));  // on its way while the slot is waited for
      const uint32_t slot = use % kKvSlots;
      const uint32_t full = ptx::smem_address(&ring.full[slot]);
      wait_empty(ring, use);
      const uint32_t boxes = __popc(__ballot_sync(~0u, mine));
      if (lane == 0) ptx::mbarrier_arrive_expect(full, boxes * (kBoxTokens * 128));
      __syncwarp();
      if (mine) {
        const uint32_t to = ptx::smem_address(slots[slot]) + panel * kKvPanelBytes + box * (kBoxTokens * 128);
        // Boxes that reach beyond a row bring zeros there.
        const bool whole = kRowBytes % 128 == 0;
        ptx::tma_load_shared_box(to, map, full, whole ? 0 : static_cast<int32_t>(panel * 64), place.token,
                                 whole ? static_cast<int32_t>(panel) : 0, static_cast<int32_t>(run.head), place.page);
      }
    }
    end_loads(shared, loader, n, lane);
  }
}

#endif

}  // namespace fovea::attention::prefill
