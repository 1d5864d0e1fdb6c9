// Parts of rows become rows: the warp that writes the last part of a row merges, in the plan's order. Where a row has
// many parts, they are merged in two steps: runs of kMergeFan neighbours by the warp that writes the last one of a run,
// each into the place of its first part, then the runs by the warp that ends the last one. So many workers share what
// one would read alone, and the bits depend on the plan alone. Used by finish.cuh.
#pragma once

#include "kernels/attention/prefill/softmax.cuh"

namespace fovea::attention::prefill {

// About the root of the parts that a row can have, one of each worker.
inline constexpr uint32_t kMergeFan = FOVEA_MERGE_FAN;

// What a lane of the four that share a row knows of its parts.
struct RowParts {
  const uint32_t* first_rows;  // of the parts: partial rows of the first query head, in the plan's order
  uint32_t count;              // 0: no such row, or its parts are finished
  uint32_t in_group;           // query head of the group
  uint32_t merge;              // of the plan
  uint32_t run;                // own part's, of kMergeFan parts
  uint32_t run_counter;        // of run 0

  __device__ __forceinline__ uint32_t runs() const { return (count + kMergeFan - 1) / kMergeFan; }
};

// Which of a row's parts begins at partial row `own`. Parts of a divided run stand at equal distances as a rule.
__device__ __forceinline__ uint32_t place_of_part(const uint32_t* first_rows, uint32_t count, uint32_t own) {
  const uint32_t first = first_rows[0];
  const uint32_t step = first_rows[1] - first;
  const uint32_t guess = step != 0 ? (own - first) / step : 0;
  if (guess < count && first_rows[guess] == own) return guess;
  uint32_t i = 0;
  while (i + 1 < count && first_rows[i] != own) ++i;
  return i;
}

// own: the partial row of the lane's row.
__device__ __forceinline__ RowParts find_parts(const abi::AttentionArgs& args, const Work& work, const Row& row,
                                               uint32_t own) {
  RowParts parts{};
  if (!row.valid) return parts;
  parts.in_group = row.q_head - work.record->head * work.group;
  // Kept from before, what was read of the header would spill; wide heads have no registers to read it again.
  const abi::DevicePlanHeader& header = kHeadDim <= 128 ? *header_here(args) : *work.header;
  parts.merge = merge_of(args, header, row.q_row, work.record->head, own / work.group);
  const abi::DeviceMerge merge = section<abi::DeviceMerge>(args, header.merges)[parts.merge];
  parts.first_rows = section<uint32_t>(args, header.merge_parts) + merge.parts_begin;
  parts.count = merge.num_parts;
  if (parts.count > kMergeFan) {
    parts.run = place_of_part(parts.first_rows, parts.count, own - parts.in_group) / kMergeFan;
    // Counters of runs stand behind those of merges.
    parts.run_counter = (header.counts.num_merges + merge.parts_begin) * work.group + parts.in_group;
  }
  return parts;
}

// Whether the lane's row was the last of `count` to be counted, which the four lanes that share it learn. By a whole
// warp; counted: this row is.
__device__ __forceinline__ bool count_last(uint32_t* counter, uint32_t count, bool counted, uint32_t lane) {
  uint32_t last = 0;
  if (counted && (lane & 3) == 0 && prefix_forest::count_up(counter) + 1 == count) {
    last = 1;
    *counter = 0;
  }
  return __shfl_sync(~0u, last, lane & ~3u) != 0;
}

// Parts that the four lanes of a row have looked up together.
struct Chunk {
  static constexpr uint32_t kRounds = 4;  // lane % 4 has parts 4 r + lane % 4
  static constexpr uint32_t kParts = 4 * kRounds;
  uint32_t part[kRounds];  // partial row
  float lse[kRounds];

  // Parts first_rows[i * step] from `begin` on.
  __device__ __forceinline__ void look_up(const abi::AttentionArgs& args, const uint32_t* first_rows, uint32_t step,
                                          uint32_t begin, uint32_t count, uint32_t in_group, uint32_t lane) {
#pragma unroll
    for (uint32_t r = 0; r < kRounds; ++r) {
      const uint32_t i = begin + 4 * r + (lane & 3);
      part[r] = i < count ? first_rows[i * step] + in_group : abi::kNone;
    }
#pragma unroll
    for (uint32_t r = 0; r < kRounds; ++r) {
      lse[r] = part[r] != abi::kNone ? __ldcg(args.shared_lse + part[r]) : kMinusInf;
    }
  }
};

// Blocks of 16 columns that are merged in one pass, and parts whose values are on their way: as many as registers are
// enough for.
inline constexpr uint32_t kMergeBlocks = kBlocks == 16 ? 8 : kBlocks % 4 == 0 ? 4 : kBlocks;
inline constexpr uint32_t kMergeParts = kMergeBlocks <= 4 && !kConverts ? 4 : 2;
// All loads are asked for at once, of some part where there is none: what is loaded under a condition is moved once
// more, and takes twice the registers. But where outputs are rotated rows of 256, what follows would spill.
inline constexpr bool kLoadsAny = kHeadDim != 256 || !kPoolRotated;

// Adds columns of the parts of a chunk, in their order. count: the most parts that a row of the warp has in it.
__device__ __forceinline__ void add_chunk(const abi::AttentionArgs& args, Chunk chunk, uint32_t count, float most,
                                          uint32_t block, uint32_t lane, float4 (&values)[kMergeBlocks], float& sum) {
#pragma unroll 1
  for (uint32_t done = 0; done < count; done += kMergeParts) {
    const uint32_t in_round = done % 4;  // a lane of the four has one part of a round
    const float own_weight = part_weight(chunk.lse[0], most);
    const uint32_t own_part = chunk.part[0];
    if (in_round + kMergeParts == 4) {
#pragma unroll
      for (uint32_t r = 0; r + 1 < Chunk::kRounds; ++r) {
        chunk.lse[r] = chunk.lse[r + 1];
        chunk.part[r] = chunk.part[r + 1];
      }
    }
    float4 o[kMergeParts][kMergeBlocks];
    float weight[kMergeParts];
#pragma unroll
    for (uint32_t i = 0; i < kMergeParts; ++i) {
      weight[i] = __shfl_sync(~0u, own_weight, (lane & ~3u) + in_round + i);
      const uint32_t part = __shfl_sync(~0u, own_part, (lane & ~3u) + in_round + i);
      const float4* const from = prefix_forest::part_at(args, weight[i] != 0.0f ? part : 0, lane) + 4 * block;
#pragma unroll
      for (uint32_t b = 0; b < kMergeBlocks; ++b) {
        o[i][b] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (kLoadsAny || weight[i] != 0.0f) o[i][b] = __ldcg(from + 4 * b);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kMergeParts; ++i) {
      if (weight[i] == 0.0f) continue;
      sum += weight[i];
#pragma unroll
      for (uint32_t b = 0; b < kMergeBlocks; ++b) add(values[b], weight[i], o[i][b]);
    }
  }
}

// Merges the lane's row with others', whose own part is written: its run of parts, if that is whole now, then all of
// them, if they are. By a whole warp.
__device__ __forceinline__ void merge_part(const abi::AttentionArgs& args, const Work& work, const Row& row,
                                           const RowParts& parts, uint32_t lane) {
  const bool by_runs = parts.count > kMergeFan;
  uint32_t total = parts.count;  // 0: a run of the row is not whole
#pragma unroll 1
  for (int step = __any_sync(~0u, by_runs) ? 0 : 1; step < 2; ++step) {
    __syncwarp();
    // 1. Whether the run is whole, or the row.
    const bool of_run = step == 0;
    const uint32_t begin = of_run ? parts.run * kMergeFan : 0;
    const uint32_t count = of_run    ? min(total - begin, kMergeFan)
                           : by_runs ? (total + kMergeFan - 1) / kMergeFan
                                     : total;
    const uint32_t counter =
        of_run ? parts.run_counter + parts.run * work.group : parts.merge * work.group + parts.in_group;
    const bool due = count_last(args.shared_counters + counter, count, of_run ? by_runs : total != 0, lane);
    if (by_runs && !due) total = 0;
    const uint32_t mine = due ? count : 0;
    const uint32_t most_parts = __reduce_max_sync(~0u, mine);
    if (most_parts == 0) continue;
    // 2. The largest log-sum-exp.
    const uint32_t* const list = parts.first_rows + begin;
    const uint32_t stride = by_runs && !of_run ? kMergeFan : 1;
    const float extra = due && !of_run ? extra_logit(args, row.q_head) : kMinusInf;
    float most = extra;
    Chunk chunk;
#pragma unroll 1
    for (uint32_t first = (most_parts - 1) / Chunk::kParts * Chunk::kParts;; first -= Chunk::kParts) {
      chunk.look_up(args, list, stride, first, mine, parts.in_group, lane);
#pragma unroll
      for (uint32_t r = 0; r < Chunk::kRounds; ++r) most = fmaxf(most, chunk.lse[r]);
      if (first == 0) break;
    }
    most = row_max<State>(most);
    // 3. The columns, some at a time.
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t block = 0; block < kBlocks; block += kMergeBlocks) {
      float4 values[kMergeBlocks] = {};
      sum = extra == kMinusInf ? 0.0f : exp2f(extra - most);
#pragma unroll 1
      for (uint32_t first = 0; first < most_parts; first += Chunk::kParts) {
        if (most_parts > Chunk::kParts && (first | block) != 0) {
          chunk.look_up(args, list, stride, first, mine, parts.in_group, lane);
        }
        add_chunk(args, chunk, min(most_parts - first, Chunk::kParts), most, block, lane, values, sum);
      }
      if (!due) continue;
      const float factor = merged_factor(sum);
      float4* const at = prefix_forest::part_at(args, list[0] + parts.in_group, lane) + 4 * block;
#pragma unroll
      for (uint32_t b = 0; b < kMergeBlocks; ++b) {
        const float4 v = {values[b].x * factor, values[b].y * factor, values[b].z * factor, values[b].w * factor};
        if (of_run) {
          at[4 * b] = v;
          continue;
        }
        const uint32_t column = first_dim(block + b, lane);
        write_output(args, row.q_row, row.q_head, row.position, column, {v.x, v.y});
        write_output(args, row.q_row, row.q_head, row.position, column + kSecondPair, {v.z, v.w});
      }
    }
    const float lse = merged_lse(most, sum);
    __syncwarp();  // all have read those of the parts
    if (due && of_run && (lane & 3) == 0) args.shared_lse[list[0] + parts.in_group] = lse;
    if (due && !of_run) prefix_forest::write_lse(args, work, row, lse, lane);
  }
}

}  // namespace fovea::attention::prefill
