// The loader that fills stages by TMA: one warp, one box of K or V a lane. Boxes are whole pieces of a
// page, all panels of a row at once.
#pragma once

#include "kernels/attention/pages.cuh"

namespace fovea::attention {

#if FOVEA_ARCH >= 900

__device__ __forceinline__ void load_stage(const abi::AttentionArgs& args, const abi::TensorMap* k_map,
                                           const abi::TensorMap* v_map, SharedMemory& shared, ItemRecord& record,
                                           const Run& run, PageWindow& window, uint32_t stage_token, uint32_t slot,
                                           uint32_t lane) {
  static_assert(2 * kBoxes <= 32);
  const uint32_t entry_tokens = static_cast<uint32_t>(args.pool.entry_tokens);
  const uint32_t box = lane % kBoxes;
  const uint32_t token = stage_token + box * kBoxTokens;
  const bool wanted = lane < 2 * kBoxes && token < run.end && token + kBoxTokens > run.begin;
  const uint32_t entry = wanted ? token / entry_tokens : window.first;
  int32_t page = window.get(entry);
  int32_t in_page = static_cast<int32_t>(token - entry * entry_tokens);
  // TMA fills with zeros what lies outside of the map.
  [[maybe_unused]] const bool bad =
      wanted && static_cast<uint32_t>(page) >= args.num_pages * static_cast<uint32_t>(args.pool.entries_per_page);
  find_page(args.pool, page, in_page);
  if constexpr (kChecked) {
    if (bad) record.bad_pages = 1;
    __syncwarp();
  }
  const uint32_t bytes = __popc(__ballot_sync(~0u, wanted)) * kBoxBytes;
  const uint32_t full = ptx::smem_address(&shared.full[slot]);
  if (lane == 0) ptx::mbarrier_arrive_expect(full, bytes);
  __syncwarp();
  if (wanted) {
    const bool value = lane >= kBoxes;
    ptx::tma_load_box(ptx::smem_address(shared.kv[slot][value]) + box * kBoxBytes, value ? v_map : k_map, full, in_page,
                      static_cast<int32_t>(run.head), page);
  }
}

__device__ __forceinline__ void run_loader(const abi::AttentionArgs& args, const abi::TensorMap* k_map,
                                           const abi::TensorMap* v_map, const Queue& queue, SharedMemory& shared,
                                           uint32_t, uint32_t lane) {
  const uint32_t entry_tokens = static_cast<uint32_t>(args.pool.entry_tokens);
  Run run{0, 0, 0, kEndOfWork};
  PageWindow window{};
  const auto record_full = [&](uint32_t n) { return ptx::smem_address(&shared.record_full[n % kRecords]); };
  const auto take = [&](uint32_t n, Run& to, PageWindow& pages) {
    to = run_of(args, shared.records[n % kRecords]);
    if (to.head != kEndOfWork) pages.open(args, to, lane);
  };
  if (queue.empty() || kChecked) {
    ptx::mbarrier_wait(record_full(0), 0);
    take(0, run, window);
  } else {
    run = planned_run(queue);
    window.open(args, run, lane);
    const uint32_t end = first_end(args, queue);
    if (end != run.end) {
      run.end = end;
      window.open(args, run, lane);
    }
  }
  uint32_t use = 0;
  for (uint32_t i = 0; run.head != kEndOfWork; ++i) {
    const uint32_t base = run.base();
    const uint32_t stages = run.stages();
    Run next_run{};
    PageWindow next_window{};
    bool have_next = false;
    for (uint32_t k = 0; k < stages; ++k, ++use) {
      const uint32_t stage_token = base + k * kStageTokens;
      window.move_to(max(stage_token, run.begin) / entry_tokens, lane);
      const RingSlot<kStages> slot(use);
      ptx::mbarrier_wait(ptx::smem_address(&shared.empty[slot.index]), slot.parity ^ 1);
      if (lane == 0) arm_stage(shared, slot.index, use);
      load_stage(args, k_map, v_map, shared, shared.records[i % kRecords], run, window, stage_token, slot.index, lane);
      if (!have_next && ptx::mbarrier_test(record_full(i + 1), RingSlot<kRecords>(i + 1).parity)) {
        take(i + 1, next_run, next_window);
        have_next = true;
      }
    }
    __syncwarp();
    if (lane == 0) {
      tell_loaded(shared, 0, i + 1);
      ptx::mbarrier_arrive(ptx::smem_address(&shared.record_empty[i % kRecords]));
    }
    if (!have_next) {
      ptx::mbarrier_wait(record_full(i + 1), RingSlot<kRecords>(i + 1).parity);
      take(i + 1, next_run, next_window);
    }
    run = next_run;
    window = next_window;
  }
}

#endif

}  // namespace fovea::attention
