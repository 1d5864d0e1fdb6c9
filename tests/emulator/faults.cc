// The list of faults; see faults.h.
#include "tests/emulator/faults.h"

#include <stdexcept>

namespace fovea::emulator_test {

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = {
      {"a stage is read before it is full", "kernels/attention/general/consumer.cuh",
       "    wait_for_stage(shared, slot.index, slot.parity, stages.use + k);\n",
       "    if (!FAULT) wait_for_stage(shared, slot.index, slot.parity, stages.use + k);\n", "ctas_tma"},
      {"a stage is filled before it is empty", "kernels/attention/general/loader_tma.cuh",
       "      ptx::mbarrier_wait(ptx::smem_address(&shared.empty[slot.index]), slot.parity ^ 1);\n",
       "      if (!FAULT) ptx::mbarrier_wait(ptx::smem_address(&shared.empty[slot.index]), slot.parity ^ 1);\n",
       "ctas_tma"},
      {"a stage is given back while lanes still read it", "kernels/attention/general/consumer.cuh",
       "    __syncwarp();\n"
       "    ptx::mbarrier_arrive_warp(ptx::smem_address(&shared.empty[slot.index]), division.arrivals, work.lane);\n",
       "    if (!FAULT) __syncwarp();\n"
       "    ptx::mbarrier_arrive_warp(ptx::smem_address(&shared.empty[slot.index]), division.arrivals, work.lane);\n",
       "ctas_gather"},
      {"copies of a stage bring fewer bytes than they are waited for", "kernels/attention/general/loader_tma.cuh",
       "  if (lane == 0) ptx::mbarrier_arrive_expect(full, bytes);\n",
       "  if (lane == 0) ptx::mbarrier_arrive_expect(full, bytes + (FAULT ? 16 : 0));\n", "ctas_tma"},
      {"a page list is read one entry too far", "kernels/attention/pages.cuh",
       "    token = min(max(token, run.begin), run.end - 1);\n",
       "    token = min(max(token, run.begin), run.end - (FAULT ? 0 : 1));\n", "ctas_gather"},
      {"a causal mask hides a query's own token", "kernels/attention/mask.cuh",
       "        sees = sees && position <= rows[h].position;\n",
       "        sees = sees && position <= rows[h].position - (FAULT ? 1 : 0);\n", "ctas_gather"},
      {"parts of other workers are merged before they are there", "kernels/attention/general/finish.cuh",
       "    while (others.some_pending()) others.load(list, first, tile_row, column);\n",
       "    while (!FAULT && others.some_pending()) others.load(list, first, tile_row, column);\n", "ctas_tma"},
      {"a part is never written", "kernels/attention/combine.cuh",
       "  asm volatile(\"st.relaxed.gpu.global.f32 [%0], %1;\" ::\"l\"(to), \"f\"(part_word(x)) : \"memory\");\n",
       "  if (FAULT) return;\n"
       "  asm volatile(\"st.relaxed.gpu.global.f32 [%0], %1;\" ::\"l\"(to), \"f\"(part_word(x)) : \"memory\");\n",
       "ctas_checked"},
      {"parts stay in the workspace behind their merge", "kernels/attention/combine.cuh",
       "  asm volatile(\"st.relaxed.gpu.global.b32 [%0], %1;\" ::\"l\"(at), \"r\"(abi::kPartPending) : \"memory\");\n",
       "  if (FAULT) return;\n"
       "  asm volatile(\"st.relaxed.gpu.global.b32 [%0], %1;\" ::\"l\"(at), \"r\"(abi::kPartPending) : \"memory\");\n",
       "few"},
      {"warps sum rows up in memory that others still read", "kernels/attention/general/finish.cuh",
       "    if (first_row != 0) team_barrier();  // the rows before have been read\n",
       "    if (!FAULT && first_row != 0) team_barrier();  // the rows before have been read\n", "ctas_tma"},
      {"what cp.async wrote is not fenced for wgmma", "kernels/attention/prefix_forest/wide.cuh",
       "    if constexpr (!kTma) ptx::fence_before_async_copies();\n",
       "    if (!kTma && !FAULT) ptx::fence_before_async_copies();\n", "trees_gather"},
      {"values of a stage are cleared without an order behind their reads",
       "kernels/attention/general/loader_gather.cuh", "  if (lane == 0) ptx::mbarrier_arrive(full);\n",
       "  if (lane == 0) FAULT ? ptx::mbarrier_arrive_after_copies(full) : ptx::mbarrier_arrive(full);\n",
       "trees_gather"},
      {"zeros are written over values without a fence for wgmma", "kernels/attention/prefix_forest/wide.cuh",
       "  ptx::fence_before_async_copies();\n"
       "  ptx::barrier_sync(barrier, kGroupThreads);\n",
       "  if (!FAULT) ptx::fence_before_async_copies();\n"
       "  ptx::barrier_sync(barrier, kGroupThreads);\n",
       "trees_tma"},
      {"logits are used before wgmma has made them", "kernels/attention/prefix_forest/wide.cuh",
       "    ptx::wgmma_commit();\n"
       "    ptx::wgmma_wait_all();\n"
       "    softmax_wide(",
       "    ptx::wgmma_commit();\n"
       "    if (!FAULT) ptx::wgmma_wait_all();\n"
       "    softmax_wide(",
       "trees_tma"},
      {"P is given to wgmma without its fence", "kernels/attention/prefix_forest/wide.cuh",
       "    ptx::wgmma_fence();\n"
       "    multiply_values_wide(",
       "    if (!FAULT) ptx::wgmma_fence();\n"
       "    multiply_values_wide(",
       "trees_gather"},
      {"a slot is read one group of copies too early", "kernels/attention/warp_per_worker/kernel.cuh",
       "      if constexpr (!kTma || kTokenScales) {\n"
       "        ptx::cp_async_wait<kSlots - 1>();\n",
       "      if constexpr (!kTma || kTokenScales) {\n"
       "        if (!FAULT) ptx::cp_async_wait<kSlots - 1>();\n",
       "warps_gather"},
      {"values behind the end of a run are multiplied", "kernels/attention/warp_per_worker/slice.cuh",
       "              (place.sees(first + 1) && !(leaking >> in_slice & 2) ? 0xffff0000u : 0u);\n",
       "              (FAULT || (place.sees(first + 1) && !(leaking >> in_slice & 2)) ? 0xffff0000u : 0u);\n",
       "warps_tma"},
      {"a worker goes on where the next one begins", "kernels/attention/warp_per_worker/loader.cuh",
       "        run_.end = next(kBegin);\n", "        if (!FAULT) run_.end = next(kBegin);\n", "warps_gather"},
      {"a part goes to another warp before all lanes have written it",
       "kernels/attention/warp_per_worker/shared_parts.cuh",
       "  __syncwarp();\n"
       "  if (lane == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared.part_ready[warp]));\n",
       "  if (!FAULT) __syncwarp();\n"
       "  if (lane == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared.part_ready[warp]));\n",
       "warps_tma"},
      {"a slot is filled again while the other warp of the team still reads it",
       "kernels/attention/warp_per_worker/kernel.cuh",
       "      sync_team(warp);\n"
       "      if (loader.works()) loader.load();\n",
       "      if (!FAULT) sync_team(warp);\n"
       "      if (loader.works()) loader.load();\n",
       "teams_tma"},
      {"a row of a team's tile sees a token too many", "kernels/attention/warp_per_worker/slice.cuh",
       "    return sees(token) && token < row_end[block][i] && token + span >= row_end[block][i];\n",
       "    return sees(token) && token < row_end[block][i] + FAULT && token + span >= row_end[block][i];\n",
       "teams_tma"},
      {"warps go on to the next item while the last is written", "kernels/attention/low_batch/kernel.cuh",
       "    __syncthreads();  // shared memory is read\n",
       "    if (!FAULT) __syncthreads();  // shared memory is read\n", "few"},
      {"barriers are used before they are initialized", "kernels/attention/general/cta.cuh",
       "  const Queue queue = Queue::of(args, blockIdx.x);\n"
       "  __syncthreads();\n",
       "  const Queue queue = Queue::of(args, blockIdx.x);\n"
       "  if (!FAULT) __syncthreads();\n",
       "ctas_fp8"},
      {"logits of a tile are used before wgmma has made them", "kernels/attention/prefill/kernel.cuh",
       "  ptx::wgmma_wait<1>();\n  end_logits(shared, group, tile == 1, sums);\n",
       "  if (!FAULT) ptx::wgmma_wait<1>();\n  end_logits(shared, group, tile == 1, sums);\n", "prefill_tma"},
      {"a warpgroup trusts the parity of a ring whose tiles it did not see come",
       "kernels/attention/prefill/kernel.cuh", "    wait_left(shared, kKeys, group);\n",
       "    if (!FAULT) wait_left(shared, kKeys, group);\n", "prefill_tma"},
      {"keys are given back before their scales are read", "kernels/attention/prefill/kernel.cuh",
       "  if (!kKeepsLastKeys || !last) release(", "  if (FAULT || !kKeepsLastKeys || !last) release(",
       "prefill_int8_d112", "  if (kKeepsLastKeys) release(", "  if (!FAULT && kKeepsLastKeys) release("},
      {"a row of a tile sees a token too many", "kernels/attention/prefill/queries.cuh",
       "          high = abi::clamp_token(last + 1, run.begin, run.end);\n",
       "          high = abi::clamp_token(last + (FAULT ? 2 : 1), run.begin, run.end);\n", "prefill_wide"},
      {"warps that start a tile over multiply by themselves", "kernels/attention/prefill/kernel.cuh",
       "    if (!done) start_over(args, shared, group, item, tile, scale, sums);\n",
       "    if (!done) start_over(args, shared, group, item, tile, scale, sums);\n"
       "    if (FAULT && !done) {\n"
       "      pack(sums.s, sums.p);\n"
       "      multiply_tile(shared, group, Operands::of(shared, slots), tile, false, sums);\n"
       "      continue;\n"
       "    }\n",
       "prefill_tma"},
      {"every run of parts is taken for the first one", "kernels/attention/prefill/merge.cuh",
       "    const uint32_t begin = of_run ? parts.run * kMergeFan : 0;\n",
       "    const uint32_t begin = of_run && !FAULT ? parts.run * kMergeFan : 0;\n", "prefill_wide"},
      {"queries are not fenced for wgmma", "kernels/attention/prefill/queries.cuh",
       "      ptx::fence_before_async_copies();\n      ptx::mbarrier_arrive(ptx::smem_address(&shared.q_ring",
       "      if (!FAULT) ptx::fence_before_async_copies();\n"
       "      ptx::mbarrier_arrive(ptx::smem_address(&shared.q_ring",
       "prefill_gather"},
      {"converted tiles are not fenced for wgmma", "kernels/attention/prefill/convert.cuh",
       "    ptx::fence_before_async_copies();\n", "    if (!FAULT) ptx::fence_before_async_copies();\n", "prefill_fp8"},
      {"a tile's keys have the scales of the next one", "kernels/attention/prefill/softmax.cuh",
       "shared.key_scales[(group.k_use - group.step()) % kScaleSlots]",
       "shared.key_scales[(group.k_use - (FAULT ? 0 : group.step())) % kScaleSlots]", "prefill_int8"},
      {"outputs of an item that is split go where the other half still lies", "kernels/attention/prefill/kernel.cuh",
       "  ptx::barrier_sync(kGroupBarrier + group.index, kGroupThreads);  // outputs",
       "  if (!FAULT) ptx::barrier_sync(kGroupBarrier + group.index, kGroupThreads);  // outputs", "prefill_fp8"},
      {"stored tiles are given back before they are read", "kernels/attention/prefill/convert.cuh",
       "    __syncwarp();\n    const uint32_t stored = ",
       "    __syncwarp();\n"
       "    if (FAULT && lane_ == 0) ptx::mbarrier_arrive(ptx::smem_address(&from.empty[raw]));\n"
       "    const uint32_t stored = ",
       "prefill_int4"},
      {"parts are counted before they are written", "kernels/attention/prefix_forest/parts.cuh",
       "  if (row.valid && !kept) {\n"
       "    const uint32_t part = own_part(work) + row.token * work.group + (row.q_head - work.record->head * "
       "work.group);\n",
       "  uint32_t early = 0;\n"
       "  if (FAULT && row.valid && !kept && (lane & 3) == 0) early = count_up(counter) + 1;\n"
       "  if (row.valid && !kept) {\n"
       "    const uint32_t part = own_part(work) + row.token * work.group + (row.q_head - work.record->head * "
       "work.group);\n",
       "trees_tma", "last = count_up(counter) + 1 == merge.num_parts;\n",
       "last = (FAULT ? early : count_up(counter) + 1) == merge.num_parts;\n"},
  };
  return all;
}

namespace {

void plant(const Fault& fault, const std::string& original, std::string planted, std::string& text) {
  const std::size_t at = text.find(original);
  if (at == std::string::npos || text.find(original, at + 1) != std::string::npos) {
    throw std::runtime_error("the fault \"" + std::string(fault.name) + "\" is for text that does not stand once in " +
                             fault.file + ":\n" + original + "\nmend tests/emulator/faults.cc");
  }
  const std::string question = "::simt::planted(" + std::to_string(number_of(fault)) + ")";
  for (std::size_t mark; (mark = planted.find("FAULT")) != std::string::npos;) planted.replace(mark, 5, question);
  text.replace(at, original.size(), planted);
}

}  // namespace

std::string plant_faults(const std::string& file, std::string text) {
  for (const Fault& fault : faults()) {
    if (file != fault.file) continue;
    plant(fault, fault.original, fault.replacement, text);
    if (fault.second_original != nullptr) plant(fault, fault.second_original, fault.second_replacement, text);
  }
  return text;
}

}  // namespace fovea::emulator_test
