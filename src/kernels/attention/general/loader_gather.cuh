// The loader that fills stages token by token, 16 bytes a thread: any page size, strides and architecture. Three warps
// take turns, one stage each.
#pragma once

#include "kernels/attention/pages.cuh"

namespace fovea::attention {

static_assert(!kTokenScales || !kTma, "scales are gathered");

// Where a stage's tokens lie: lane l finds tokens l and l + 32.
struct StageRows {
  static constexpr int kPerLane = (kStageTokens + 31) / 32;
  TokenPlace places[kPerLane];

  __device__ __forceinline__ void find(const abi::AttentionArgs& args, const Run& run, uint32_t stage_token,
                                       ItemRecord* record, uint32_t lane) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) places[i] = TokenPlace::of(args, run, stage_token + lane + 32 * i, record);
  }
  __device__ __forceinline__ void put(uint64_t* rows, uint32_t lane) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (kStageTokens % 32 == 0 || lane + 32 * i < kStageTokens) rows[lane + 32 * i] = places[i].row;
    }
  }
};

// Copies the scales of a stage's tokens: lane l those of tokens l and l + 32.
__device__ __forceinline__ void copy_scales(const abi::AttentionArgs& args, const Run& run, const StageRows& rows,
                                            uint32_t stage_token, uint32_t to, uint32_t lane) {
  if constexpr (kTokenScales) {
#pragma unroll
    for (int i = 0; i < StageRows::kPerLane; ++i) {
      const uint32_t token = lane + 32 * i;
      if (kStageTokens % 32 != 0 && token >= kStageTokens) continue;
      if (stage_token + token < run.begin || stage_token + token >= run.end) continue;
      const uint64_t scale = rows.places[i].scale;
      ptx::cp_async_4(to + token * 4, static_cast<const abi::KvScale*>(args.pool.k_scale) + scale);
      ptx::cp_async_4(to + (kStageTokens + token) * 4, static_cast<const abi::KvScale*>(args.pool.v_scale) + scale);
    }
  }
}

// Copies K and V of a stage. rows: offsets of its tokens' rows, in shared memory. kWhole: every token is in the run.
template <bool kWhole>
__device__ __forceinline__ void copy_stage(const abi::AttentionArgs& args, const Run& run, const uint64_t* rows,
                                           uint32_t stage_token, uint32_t k_tile, uint32_t lane) {
  constexpr uint32_t kChunks = kRowBytes / 16;
  const auto* k = static_cast<const uint8_t*>(args.pool.k);
  const auto* v = static_cast<const uint8_t*>(args.pool.v);
  if constexpr (kWhole && 32 % kChunks == 0) {
    // A lane stays on its chunk of the row and steps over rows. The steps are multiples of the lane's own row bits, so
    // the swizzle of the sum is the sum of the swizzles; offsets are fetched ahead of the copies that need them.
    constexpr uint32_t kRowsAtOnce = 32 / kChunks;
    constexpr uint32_t kSteps = kStageTokens / kRowsAtOnce;
    constexpr uint32_t kAhead = kSteps < 8 ? kSteps : 8;
    const uint32_t chunk = lane % kChunks;
    const uint32_t row = lane / kChunks;
    k += chunk * 16;
    v += chunk * 16;
    const uint32_t to = k_tile + chunk / kPanelChunks * StageTile::kPanelStride + row * kPanelBytes +
                        ((chunk % kPanelChunks ^ swizzle_of(row)) << 4);
#pragma unroll
    for (uint32_t first = 0; first < kSteps; first += kAhead) {
      uint64_t offsets[kAhead];
#pragma unroll
      for (uint32_t i = 0; i < kAhead; ++i) offsets[i] = rows[row + (first + i) * kRowsAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAhead; ++i) {
        const uint32_t step = (first + i) * kRowsAtOnce;
        const uint32_t at = (to ^ swizzle_of(step) << 4) + step * kPanelBytes;
        ptx::cp_async_16(at, k + offsets[i]);
        ptx::cp_async_16(at + kTileBytes, v + offsets[i]);
      }
    }
  } else {
#pragma unroll 2
    for (uint32_t i = lane; i < kStageTokens * kChunks; i += 32) {
      const uint32_t token = i / kChunks;
      const uint32_t chunk = i % kChunks;
      if (!kWhole && (stage_token + token < run.begin || stage_token + token >= run.end)) continue;
      const uint64_t offset = rows[token] + chunk * 16;
      const uint32_t at = k_tile + StageTile::chunk(token, chunk);
      ptx::cp_async_16(at, k + offset);
      ptx::cp_async_16(at + kTileBytes, v + offset);
    }
  }
}

__device__ __forceinline__ void load_stage(const abi::AttentionArgs& args, SharedMemory& shared, const Run& run,
                                           const StageRows& rows, uint32_t stage_token, uint32_t slot, uint32_t warp,
                                           uint32_t lane) {
  uint64_t* const shared_rows = shared.gathered_rows[kTma ? 0 : warp];
  __syncwarp();
  rows.put(shared_rows, lane);
  __syncwarp();
  const uint32_t k_tile = ptx::smem_address(shared.kv[slot][0]);
  if (stage_token >= run.begin && stage_token + kStageTokens <= run.end) {
    copy_stage<true>(args, run, shared_rows, stage_token, k_tile, lane);
  } else {
    copy_stage<false>(args, run, shared_rows, stage_token, k_tile, lane);
  }
  copy_scales(args, run, rows, stage_token, ptx::smem_address(shared.scales[kTokenScales ? slot : 0][0]), lane);
  const uint32_t full = ptx::smem_address(&shared.full[slot]);
  ptx::mbarrier_arrive_after_copies(full);
  // Arrivals behind copies order copies only. This one orders whoever finds the stage full behind those who emptied it,
  // which counts where no copy lands: tokens outside of the run, that prefix_forest/wide.cuh clears. In checked builds
  // it publishes what this warp wrote to the record.
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(full);
}
inline constexpr uint32_t kGatherArrivals = 33;  // of load_stage(), a stage

__device__ __forceinline__ void run_loader(const abi::AttentionArgs& args, const Queue& queue, SharedMemory& shared,
                                           uint32_t warp, uint32_t lane) {
  uint32_t use = 0;  // of the first stage of the item
  for (uint32_t i = 0;; ++i) {
    const RingSlot<kRecords> record_slot(i);
    ItemRecord* const record = &shared.records[record_slot.index];
    Run run;
    StageRows rows{};
    const auto first_stage = [&] { return (warp + kLoaderWarps - use % kLoaderWarps) % kLoaderWarps; };
    const auto find_first = [&] {
      if (first_stage() < run.stages()) {
        rows.find(args, run, run.base() + first_stage() * kStageTokens, record, lane);
      }
    };
    if (i == 0 && !kChecked && !queue.empty()) {
      // Most ends did not grow since the plan was made: the page entries need not wait for the lengths.
      run = planned_run(queue);
      find_first();
      const uint32_t end = first_end(args, queue);
      if (end != run.end) {
        run.end = end;
        find_first();
      }
    } else {
      ptx::mbarrier_wait(ptx::smem_address(&shared.record_full[record_slot.index]), record_slot.parity);
      run = run_of(args, *record);
      if (run.head == kEndOfWork) return;
      find_first();
    }
    const uint32_t base = run.base();
    const uint32_t stages = run.stages();
    for (uint32_t k = first_stage(); k < stages; k += kLoaderWarps) {
      StageRows ahead{};
      if (k + kLoaderWarps < stages) ahead.find(args, run, base + (k + kLoaderWarps) * kStageTokens, record, lane);
      const RingSlot<kStages> slot(use + k);
      ptx::mbarrier_wait(ptx::smem_address(&shared.empty[slot.index]), slot.parity ^ 1);
      if (lane == 0) arm_stage(shared, slot.index, use + k);
      load_stage(args, shared, run, rows, base + k * kStageTokens, slot.index, warp, lane);
      rows = ahead;
    }
    use += stages;
    __syncwarp();
    if (lane == 0) {
      tell_loaded(shared, warp, i + 1);
      ptx::mbarrier_arrive(ptx::smem_address(&shared.record_empty[record_slot.index]));
    }
  }
}

}  // namespace fovea::attention
