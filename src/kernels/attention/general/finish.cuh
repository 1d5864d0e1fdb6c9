// The end of an item: states of warps become rows of the output, or partial states in the workspace. Used by the
// consumers and the merge.
#pragma once

#include "kernels/attention/combine.cuh"

namespace fovea::attention {

// Who merges the rows of an item.
enum class MergeRule : uint32_t {
  kNone,     // they are finished: written directly, or a part that the worker of another one waits for
  kFirst,    // this worker: it holds the first part, and waits for the others
  kCounted,  // whoever writes a row's last part
};

__device__ __forceinline__ MergeRule merge_rule(const Work& work) {
  const uint32_t flags = work.record->item.flags;
  if (flags & abi::kItemDirect) return MergeRule::kNone;
  // Where queues are claimed, a worker might wait for one that stands behind it in the same CTA.
  const bool first_merges = work.args->first_merges != 0 && (flags & abi::kItemSingleHead) &&
                            (work.record->block_row.flags & abi::kRowsSolo) && work.header->num_workers <= gridDim.x;
  if (!first_merges) return MergeRule::kCounted;
  return flags & abi::kItemFirstPart ? MergeRule::kFirst : MergeRule::kNone;
}

// One merge of the plan: its number, kNone where there is none, and its entry. Looked up one after the other while
// other work goes on.
struct MergeSlot {
  uint32_t index;
  abi::DeviceMerge entry;
};

// token: of the item, or beyond it.
__device__ __forceinline__ uint32_t find_merge(const Work& work, uint32_t token) {
  if (token >= work.record->item.row_count) return abi::kNone;
  return merge_of(*work.args, *work.header, row_of_token(work, token), work.record->head,
                  own_part(work) / work.group + token);
}
__device__ __forceinline__ abi::DeviceMerge find_entry(const Work& work, uint32_t index) {
  if (index == abi::kNone) return abi::DeviceMerge{};
  return section<abi::DeviceMerge>(*work.args, work.header->merges)[index];
}
// The parts that a merge is made of, in order.
struct PartList {
  const abi::AttentionArgs* args;
  const uint32_t* first_rows;
  uint32_t count;

  __device__ __forceinline__ PartList(const Work& work, const abi::DeviceMerge& entry)
      : args(work.args),
        first_rows(section<uint32_t>(*args, work.header->merge_parts) + entry.parts_begin),
        count(entry.num_parts) {}
  // Brings the list into the first-level cache.
  __device__ __forceinline__ void touch(uint32_t lane) const {
    if (8 * lane < count) asm volatile("prefetch.global.L1 [%0];" ::"l"(first_rows + 8 * lane));
  }
  // Addresses of a row of part i; in_part: behind the first.
  __device__ __forceinline__ float* values(uint32_t i, uint32_t in_part) const {
    return partial_at(*args, first_rows[i] + in_part);
  }
  __device__ __forceinline__ float* lse(uint32_t i, uint32_t in_part) const {
    return args->partial_lse + first_rows[i] + in_part;
  }
};

// Where the rows of an item go: finished to the output, as parts to the workspace, or to the output with the other
// parts merged in.
enum class Destination : uint32_t { kOutput, kPart, kMerged };

// Where one row of an item goes, and what its sums are multiplied by.
struct RowTarget {
  Row row;
  float factor;
  float lse;
  uint32_t partial;  // row of the workspace, of a part
  Destination to;

  // Of column 0.
  __device__ __forceinline__ uint64_t address(const abi::AttentionArgs& args) const {
    if (to == Destination::kPart) return reinterpret_cast<uint64_t>(partial_at(args, partial));
    return reinterpret_cast<uint64_t>(static_cast<uint16_t*>(args.out) +
                                      static_cast<long long>(row.q_row) * args.out_row_stride +
                                      static_cast<long long>(row.q_head) * args.out_head_stride);
  }
  __device__ __forceinline__ void write(const abi::AttentionArgs& args, uint32_t column, float2 value) const {
    value.x *= factor;
    value.y *= factor;
    if (to == Destination::kOutput) {
      write_output(args, row.q_row, row.q_head, row.position, column, value);
    } else {
      store_part(partial_at(args, partial) + column, value);
    }
  }
};

// writes_lse: true for one thread of the row.
__device__ __forceinline__ RowTarget target_of(const Work& work, Destination to, uint32_t tile_row, const Row& row,
                                               float max, float sum, bool writes_lse) {
  const abi::AttentionArgs& args = *work.args;
  RowTarget target{};
  target.row = row;
  target.to = to;
  const float extra = to == Destination::kOutput ? extra_logit(args, row.q_head) : kMinusInf;
  const RowResult result = finish_row(work, max, sum, extra);
  target.factor = 1.0f / result.divisor;
  apply_value_scale(args, work.record->head, target.factor);
  target.lse = result.lse;
  if (to == Destination::kOutput) {
    if (writes_lse && args.lse != nullptr) lse_at(args, row.q_row, work.q_heads, row.q_head) = result.lse;
  } else if (to == Destination::kPart) {
    target.partial = own_part(work) + tile_row;
    if (Variant::kSoftmax && writes_lse) store_part(args.partial_lse + target.partial, result.lse);
  }
  return target;
}

// One warp alone has seen all tokens of its 16 rows.
__device__ __forceinline__ void write_alone(const Work& work, const Row (&rows)[2], Destination to, State& state) {
  uint32_t lane = work.lane;
  asm volatile("" : "+r"(lane));  // columns are worked out here: kept from item to item, they would spill
  finish_sums(state);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!rows[h].valid) continue;
    const uint32_t tile_row = work.first_row + lane / 4 + 8 * h;
    const RowTarget target = target_of(work, to, tile_row, rows[h], state.max[h], state.sum[h], (lane & 3) == 0);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        target.write(*work.args, first_dim(b, lane) + pair * kSecondPair, output_pair(state, b, pair, h));
      }
    }
  }
}

// The log-sum-exp of row `tile_row` of lane l's part, asked for early; the pattern where it is not there yet.
__device__ __forceinline__ float ask_for_lse(const Work& work, const PartList& list, uint32_t tile_row) {
  if (!Variant::kSoftmax || work.lane == 0 || work.lane >= list.count || tile_row >= work.rows) return 0.0f;
  return load_part(list.lse(work.lane, tile_row));
}

// Weights of the parts of the rows of an item whose first part this worker holds, into shared memory; the rows'
// log-sum- exps; and the pattern behind the parts' ones. Rows go to the warps in turns. own: log-sum-exps of the lane's
// rows, of which every warp has all 16. asked: ask_for_lse() of the warp's first row.
__device__ __forceinline__ void find_part_weights(const Work& work, SharedMemory& shared, const PartList& list,
                                                  const float (&own)[2], float asked) {
  const uint32_t lane = work.lane;
#pragma unroll 1
  for (uint32_t r = work.warp; r < work.rows; r += kConsumerWarps) {
    float* const weights = shared.part_weights + r * list.count;
    const float mine = __shfl_sync(~0u, r < 8 ? own[0] : own[1], r % 8 * 4);
    const float extra = extra_logit(*work.args, work.record->head * work.group + r % work.group);
    float most = fmaxf(extra, mine);
#pragma unroll 1
    for (uint32_t i = lane; i < list.count; i += 32) {
      float lse = mine;
      if (Variant::kSoftmax && i != 0) {
        float* const from = list.lse(i, r);
        lse = wait_for_part(from, i < 32 && r == work.warp ? asked : load_part(from));
        restore_part(from);
      }
      weights[i] = lse;
      most = fmaxf(most, lse);
    }
    __syncwarp();
    most = warp_max(most);
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t i = lane; i < list.count; i += 32) sum += weights[i] = part_weight(weights[i], most);
    __syncwarp();
    sum = warp_sum(sum);
    if (extra != kMinusInf) sum += exp2f(extra - most);
    const float factor = merged_factor(sum);
#pragma unroll 1
    for (uint32_t i = lane; i < list.count; i += 32) weights[i] *= factor;
    if (lane == 0 && work.args->lse != nullptr) {
      const Row row = find_row(work, r);
      lse_at(*work.args, row.q_row, work.q_heads, row.q_head) = merged_lse(most, sum);
    }
  }
}

// Two columns of a row of some parts of other workers, by a thread.
struct Others {
  static constexpr uint32_t kAtOnce = 8;
  float2 parts[kAtOnce];

  // Of parts first .., without part 0, which is this worker's.
  __device__ __forceinline__ void load(const PartList& list, uint32_t first, uint32_t tile_row, uint32_t column) {
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      parts[u] = {0.0f, 0.0f};
      if (first + u != 0 && first + u < list.count) {
        parts[u] = load_part2(list.values(first + u, tile_row) + column);
      }
    }
  }
  __device__ __forceinline__ bool some_pending() const {
    bool some = false;
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; ++u) some |= pending(parts[u]);
    return some;
  }
};

// `own`, of the first part, and the others' two columns, weighted and summed in the plan's order. others: as loaded
// from part 0 on, where `loaded`.
__device__ __forceinline__ float2 merge_parts(const SharedMemory& shared, const PartList& list, Others& others,
                                              bool loaded, float2 own, uint32_t tile_row, uint32_t column) {
  const float* const weights = shared.part_weights + tile_row * list.count;
  float2 total{0.0f, 0.0f};
#pragma unroll 1
  for (uint32_t first = 0; first < list.count; first += Others::kAtOnce) {
    if (first == 0 && !loaded) others.parts[1].x = __uint_as_float(abi::kPartPending);
    if (first != 0) others.load(list, first, tile_row, column);
    while (others.some_pending()) others.load(list, first, tile_row, column);
    if (first == 0) others.parts[0] = own;
#pragma unroll
    for (uint32_t u = 0; u < Others::kAtOnce; ++u) {
      if (first + u >= list.count) break;
      if (first + u != 0) restore_part2(list.values(first + u, tile_row) + column);
      const float weight = weights[first + u];
      if (weight == 0.0f) continue;
      total.x += weight * others.parts[u].x;
      total.y += weight * others.parts[u].y;
    }
  }
  return total;
}

// How the rows of an item end.
struct Ending {
  Destination to;
  MergeRule rule;
  MergeSlot slot;       // of the warp's first query token; of the item's, where `to` is kMerged (16 rows at most then)
  bool alone;           // one warp has the item to itself
  uint32_t row_blocks;  // 16-row blocks of the team, a power of two; warp w has block w % row_blocks
};

inline constexpr uint32_t kTeamBarrier = 1;
__device__ __forceinline__ void team_barrier() { ptx::barrier_sync(kTeamBarrier, kConsumerThreads); }

// Where a thread's registers are few, other workers' parts are not asked for ahead of their use.
inline constexpr bool kAsksEarly = kHeadDim <= 128;

// Four rows of every row block at a time: states weighted by `weight` go through shared memory and are summed, two
// columns a thread, always in the order of the warps. others: of the thread's columns of rows 0 .., for kMerged.
__device__ __forceinline__ void sum_rows(const Work& work, SharedMemory& shared, const Ending& ending, Others& others,
                                         const State& state, const float (&weight)[2]) {
  const uint32_t warp = work.warp, lane = work.lane, row_blocks = ending.row_blocks;
  constexpr uint32_t kPairs = kHeadDim / 2;
  const uint32_t sharers = kConsumerWarps / row_blocks;
  const bool merged = ending.to == Destination::kMerged;
#pragma unroll 1
  for (uint32_t first_row = 0; first_row < 16 && first_row < work.rows; first_row += kReduceRows) {
    if (first_row != 0) team_barrier();  // the rows before have been read
    if (lane / 16 == first_row / kReduceRows % 2) {
      float* const to = shared.reduce[warp][lane / 4 % kReduceRows];
      const auto put = [&](int h) {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) {
            const float2 o = output_pair(state, b, pair, h);
            *reinterpret_cast<float2*>(to + first_dim(b, lane) + pair * kSecondPair) = {o.x * weight[h],
                                                                                        o.y * weight[h]};
          }
        }
      };
      if (first_row < 8) {
        put(0);
      } else {
        put(1);
      }
    }
    team_barrier();
#pragma unroll 1
    for (uint32_t n = warp * 32 + lane; n < row_blocks * kReduceRows * kPairs; n += kConsumerThreads) {
      const uint32_t column = n % kPairs * 2;
      const uint32_t in_pass = n / kPairs % kReduceRows;
      const uint32_t block = n / (kPairs * kReduceRows);
      const uint32_t tile_row = block * 16 + first_row + in_pass;
      if (tile_row >= work.rows) continue;
      const auto part = [&](uint32_t s) {
        return *reinterpret_cast<const float2*>(&shared.reduce[s * row_blocks + block][in_pass][column]);
      };
      float2 value{0.0f, 0.0f};
      if (row_blocks == 1) {
        float2 parts[kConsumerWarps];
#pragma unroll
        for (uint32_t s = 0; s < kConsumerWarps; ++s) parts[s] = part(s);
#pragma unroll
        for (uint32_t s = 0; s < kConsumerWarps; ++s) value = {value.x + parts[s].x, value.y + parts[s].y};
      } else {
#pragma unroll 1
        for (uint32_t s = 0; s < sharers; ++s) value = {value.x + part(s).x, value.y + part(s).y};
      }
      if (merged) {
        const bool loaded = kAsksEarly && first_row == 0 && n < kConsumerThreads;
        value = merge_parts(shared, PartList(work, ending.slot.entry), others, loaded, value, tile_row, column);
      }
      if constexpr (Variant::kHasOutput) {
        if (ending.to != Destination::kPart) {
          const Row row = find_row(work, tile_row);
          write_output(*work.args, row.q_row, row.q_head, row.position, column, value);
          continue;
        }
      }
      const uint64_t to = shared.row_targets[tile_row];
      if (ending.to == Destination::kPart) {
        store_part(reinterpret_cast<float*>(to) + column, value);
      } else {
        reinterpret_cast<uint32_t*>(to)[column / 2] = ptx::pack2<kQueryBf16>(value.x, value.y);
      }
    }
  }
}

// The sum over the warps that shared a row block's tokens. between(): called when all warps have arrived here.
template <class Between>
__device__ __forceinline__ void write_together(const Work& work, SharedMemory& shared, const Row (&rows)[2],
                                               const Ending& ending, State& state, uint32_t parity,
                                               const Between& between) {
  const uint32_t warp = work.warp, lane = work.lane, row_blocks = ending.row_blocks;
  float2(&states)[kConsumerWarps][16] = shared.states[parity];
  // What other workers wrote of the rows, on its way while this one's sum is made.
  const bool merged = ending.to == Destination::kMerged;
  const PartList list(work, ending.slot.entry);
  float asked = __uint_as_float(abi::kPartPending);
  Others others{};
  if (merged && kAsksEarly) {
    asked = ask_for_lse(work, list, warp);
    const uint32_t n = warp * 32 + lane;
    const uint32_t row = n / (kHeadDim / 2);
    if (row < kReduceRows && row < work.rows) others.load(list, 0, row, n % (kHeadDim / 2) * 2);
  }
  finish_sums(state);
  if ((lane & 3) == 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) states[warp][lane / 4 + 8 * h] = {state.max[h], state.sum[h]};
  }
  team_barrier();
  between();
  // Every warp works out its rows' totals, and by what its own part of them is to be multiplied.
  const uint32_t block = warp % row_blocks;
  const bool writes = warp < row_blocks && (lane & 3) == 0;  // log-sum-exp and address, once a row
  float weight[2] = {0.0f, 0.0f};
  float lse[2] = {kMinusInf, kMinusInf};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (block * 16 + 8 * h >= work.rows) continue;
    float2 parts[kConsumerWarps];
#pragma unroll
    for (uint32_t s = 0; s < kConsumerWarps; ++s) {
      parts[s] = states[s][lane / 4 + 8 * h];
      if (s % row_blocks != block) parts[s] = {kMinusInf, 0.0f};
    }
    float most = kMinusInf;
    float sum = 0.0f;
#pragma unroll
    for (uint32_t s = 0; s < kConsumerWarps; ++s) most = fmaxf(most, parts[s].x);
    const float shift = most == kMinusInf ? 0.0f : most;
#pragma unroll
    for (uint32_t s = 0; s < kConsumerWarps; ++s) sum += parts[s].y * ptx::exp2_approx(parts[s].x - shift);
    if (!rows[h].valid) continue;
    const uint32_t tile_row = work.first_row + lane / 4 + 8 * h;
    const RowTarget target = target_of(work, ending.to, tile_row, rows[h], most, sum, writes);
    weight[h] = target.factor;
    lse[h] = target.lse;
    if constexpr (Variant::kSoftmax) weight[h] *= ptx::exp2_approx(state.max[h] - shift);
    if (writes) shared.row_targets[tile_row] = target.address(*work.args);
  }
  if (merged) find_part_weights(work, shared, list, lse, asked);
  sum_rows(work, shared, ending, others, state, weight);
}

}  // namespace fovea::attention
