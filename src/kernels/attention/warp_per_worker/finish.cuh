// The end of an item: its state becomes rows of the output, or a part that is combined with the others of its pair.
// Words of parts say for themselves whether they are there (kernels/attention/combine.cuh).
#pragma once

#include "kernels/attention/warp_per_worker/loader.cuh"
#include "kernels/attention/warp_per_worker/shared_parts.cuh"
#include "kernels/attention/warp_per_worker/slice.cuh"

namespace fovea::attention::warp_per_worker {

// Which of the pair's parts an item is.
struct Part {
  uint32_t own;    // first partial row of this one
  uint32_t first;  // that of part 0; the others follow, as many rows each as the item has
  uint32_t count;
  uint32_t shift;  // part i is an item of warp (i + shift) % kWarps of its CTA; 0 where idle workers are between them
};

// Looks that up; what only the plan says while the item's slices are computed, so that no warp waits for the memory.
class PartFinder {
 public:
  __device__ __forceinline__ PartFinder(const abi::AttentionArgs& args, const Work& work, uint32_t worker)
      : args_(args), work_(work), worker_(worker) {
    found_ = work.record->item.partial_slot == abi::kNone;
  }
  __device__ __forceinline__ void step() {
    if (found_) return;
    found_ = true;
    part_.own = work_.record->item.partial_slot;
    part_.first = part_.own - (work_.record->part & 0xffffu) * work_.rows;
    part_.count = work_.record->part >> 16;
    if constexpr (kSharedParts) find_shift();
  }
  __device__ __forceinline__ Part find() {
    step();
    return part_;
  }

 private:
  // Parts follow one another from worker to worker, where none between them is idle (cuts that would have fallen too
  // close leave such workers). If so, part 1 and the last one are where counting from here says, and a busy one is
  // before part 1; if not, none of the parts finds it so.
  __device__ __forceinline__ void find_shift() {
    const uint32_t second = worker_ - (part_.own - part_.first) / work_.group + 1;
    const auto* const of_second = starts_of(args_) + second;
    const auto* const of_last = of_second + (part_.count - 2);
    // An idle worker begins as the next one does.
    const auto begins_with = [&](const abi::WarpStart* start, uint32_t i) {
      const uint32_t slot = part_.first + i * work_.group;
      return start[0].partial_slot == slot && start[1].partial_slot != slot;
    };
    const bool regular = begins_with(of_second, 1) && begins_with(of_last, part_.count - 1) &&
                         of_second[-1].partial_slot != of_second[0].partial_slot;
    part_.shift = regular ? (second - 1) % kWarps : 0;
  }

  const abi::AttentionArgs& args_;
  const Work& work_;
  uint32_t worker_;
  Part part_{};
  bool found_;
};

// factor: of rows 2c and 2c + 1. 16-bit values: neighbouring dims lie in neighbouring lanes, which trade.
__device__ __forceinline__ void pairs_of(const BlockState& state, const float (&factor)[2], uint32_t lane, Pairs& to) {
  const bool odd = lane >> 2 & 1;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if constexpr (kNarrow) {
        to.value[b][j] = {state.o[b][j] * factor[j], state.o[b][j + 2] * factor[j]};
      } else {
        const float even_row = state.o[b][2 * j] * factor[0];
        const float odd_row = state.o[b][2 * j + 1] * factor[1];
        const float got = __shfl_xor_sync(~0u, odd ? even_row : odd_row, 4);
        to.value[b][j] = odd ? float2{got, odd_row} : float2{even_row, got};
      }
    }
  }
}

// The query head of a row of the item, and of the last one beyond.
__device__ __forceinline__ uint32_t head_of(const Work& work, uint32_t row) {
  row = min(row, work.rows - 1);
  return work.record->head * work.group + (kDrafts ? row % work.group : row);
}

// Row `i` of the item, which has it.
__device__ __forceinline__ Row row_of(const Work& work, uint32_t i) {
  if constexpr (kDrafts) return find_row(work, i);
  Row row = find_row(work, 0);  // of the one query token
  row.q_head += i;
  return row;
}

__device__ __forceinline__ void finish_state(const Work& work, State& state, bool direct, Result (&to)[kRowBlocks]) {
#pragma unroll
  for (int b = 0; b < kRowBlocks; ++b) {
    BlockState& rows = state[b];
    finish_sums(rows);
    if constexpr (kTokenScales) rows.sum[0] *= 1.0f / kFactor, rows.sum[1] *= 1.0f / kFactor;
    finish_integers(rows, work.lane);
    float factor[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t q_head = head_of(work, work.first_row + 8 * b + 2 * (work.lane & 3) + j);
      const RowResult result =
          finish_row(rows.max[j], rows.sum[j], direct ? extra_logit(*work.args, q_head) : kMinusInf);
      factor[j] = 1.0f / result.divisor;
      if constexpr (kFp8 && kTokenScales) factor[j] *= 1.0f / kFactor;
      apply_value_scale(*work.args, work.record->head, factor[j]);
      to[b].lse[j] = result.lse;
    }
    pairs_of(rows, factor, work.lane, to[b].pairs);
  }
}

// row_at(row of the item) is called once for each of the lane's rows, and what it returns with each pair of them:
// (dim, two neighbouring values).
template <class F>
__device__ __forceinline__ void for_each_pair(const Work& work, const Result (&result)[kRowBlocks], const F& row_at) {
#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t row = work.first_row + 8 * block + pair_row(j, work.lane);
      if (row >= work.rows) continue;
      const auto write = row_at(row);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) write(pair_dim(b, j, work.lane), result[block].pairs.value[b][j]);
    }
  }
}
// f(row of the item, its log-sum-exp), by one lane a row.
template <class F>
__device__ __forceinline__ void for_each_lse(const Work& work, const Result (&result)[kRowBlocks], const F& f) {
#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t row = work.first_row + 8 * block + 2 * work.lane + j;
      if (work.lane < 4 && row < work.rows) f(row, result[block].lse[j]);
    }
  }
}

__device__ __forceinline__ void write_direct(const Work& work, const Result (&result)[kRowBlocks]) {
  const abi::AttentionArgs& args = *work.args;
  for_each_pair(work, result, [&](uint32_t i) {
    const Row row = row_of(work, i);
    return [&args, row](uint32_t dim, float2 x) { write_output(args, row.q_row, row.q_head, row.position, dim, x); };
  });
  if (args.lse == nullptr) return;
  for_each_lse(work, result, [&](uint32_t i, float lse) {
    const Row row = row_of(work, i);
    lse_at(args, row.q_row, work.q_heads, row.q_head) = lse;
  });
}

__device__ __forceinline__ void write_part(const Work& work, const Part& part, const Result (&result)[kRowBlocks]) {
  const abi::AttentionArgs& args = *work.args;
  for_each_pair(work, result, [&](uint32_t i) {
    float* const to = partial_at(args, part.own + i);
    return [to](uint32_t dim, float2 x) { store_part(to + dim, x); };
  });
  for_each_lse(work, result, [&](uint32_t i, float lse) { store_part(args.partial_lse + part.own + i, lse); });
}

// Adds parts of the workspace to the result: those whose first rows are first_row, first_row + step, .., `count` of
// them, in this order. Waits until they are there and leaves their words pending again; rows: as many as there are, of
// which a block has 8.
__device__ __forceinline__ void add_global_parts(const abi::AttentionArgs& args, uint32_t first_row, uint32_t step,
                                                 uint32_t count, uint32_t rows, Result& result, uint32_t lane) {
  // Parts, and of a part pairs j, that are on their way together.
  constexpr int kAtOnce = kBlocks <= 8 && kRowBlocks == 1 ? 2 : 1;
  constexpr int kPairs = kBlocks * kRowBlocks <= 8 ? 2 : 1;
#pragma unroll 1
  for (; count > 0; count -= min(count, static_cast<uint32_t>(kAtOnce)), first_row += kAtOnce * step) {
    float2 values[kAtOnce][kPairs][kBlocks];
    float lse[kAtOnce][2];
    const auto each_lse = [&](const auto& f) {
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t row = min(2 * (lane & 3) + r, rows - 1);
          if (p < count) f(args.partial_lse + first_row + p * step + row, r, lse[p][r]);
        }
      }
    };
    const auto each_pair = [&](int first, const auto& f) {
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          const uint32_t row = pair_row(first + j, lane);
          float* const at = partial_at(args, first_row + p * step + row);
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) {
            if (p < count && row < rows) f(at + pair_dim(b, first + j, lane), values[p][j][b]);
          }
        }
      }
    };
    float most[2] = {result.lse[0], result.lse[1]};
    Weights weights(result.lse, most);
#pragma unroll
    for (int first = 0; first < 2; first += kPairs) {
      bool missing = true;
      while (true) {
        if (first == 0) each_lse([](const float* at, int, float& x) { x = load_part(at); });
        each_pair(first, [](const float* at, float2& x) { x = load_part2(at); });
        missing = false;
        each_lse([&](const float*, int, float x) { missing |= pending(x); });
        each_pair(first, [&](const float*, float2 x) { missing |= pending(x); });
        if (!__any_sync(~0u, missing)) break;
        // The words that are written last tell when to ask for all again: who waits leaves the memory to the others.
        each_lse([](const float* at, int, float& x) { x = wait_for_part(at, x); });
      }
      each_pair(first, [](float* at, float2) { restore_part2(at); });
      if (first == 0) {
        if (lane < 4) each_lse([](float* at, int, float) { restore_part(at); });
        each_lse([&](const float*, int r, float x) { most[r] = fmaxf(most[r], x); });
        weights = Weights(result.lse, most);
        each_lse([&](const float*, int r, float x) { weights.total[r] += weights.of(x, r); });
        weights.scale(result, lane);
      }
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          if (p < count) weights.add(result, lse[p], first + j, lane, [&](int b) { return values[p][j][b]; });
        }
      }
    }
    weights.finish(result);
  }
}

// An extra logit counts once, where the parts of a pair are combined.
__device__ __forceinline__ void add_extra_logits(const Work& work, Result (&result)[kRowBlocks]) {
  if constexpr (Variant::kHasExtraLogit) {
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      float weight[2];  // of everything seen, beside the extra logit
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t row = work.first_row + 8 * b + 2 * (work.lane & 3) + r;
        const float extra = extra_logit(*work.args, head_of(work, row));
        const float own = result[b].lse[r];
        weight[r] = extra == kMinusInf ? 1.0f : own == kMinusInf ? 0.0f : 1.0f / (1.0f + exp2f(extra - own));
        if (extra != kMinusInf) result[b].lse[r] = finish_row(own, 1.0f, extra).lse;
      }
      scale_rows(result[b], weight, work.lane);
    }
  }
}

// Adds to the part those that it is to be combined with; true: that are all of the pair, and the result is the
// output's.
//
// The parts that one CTA holds are a group. Its first part adds the others, through shared memory, and writes the sum
// into the workspace. The parts of the pair's first group share the sums of the other groups, before they go to part 0.
// With kWarps 4 and part 0 in warp 1 (shift 1), "a <- b": part a adds part b:
//
//             CTA 0: parts 0 1 2     CTA 1: 3 4 5 6     CTA 2: 7 8 9 10
//   shared memory                           3 <- 4 5 6         7 <- 8 9 10
//   workspace        1 <- 3,  2 <- 7
//   shared memory    0 <- 1 2
//
// A part with parts behind it in the pair is the last item of its queue, and those are the first items of higher
// queues: no worker waits for one that waits for it. Where workers between the parts are idle, groups are of kWarps
// parts, wherever those are; what is not in the same CTA then goes through the workspace too. So does everything of
// teams (kSharedParts), whose warps have rows of their own.
__device__ __forceinline__ bool combine(const Work& work, SharedMemory& shared, const Part& part,
                                        Result (&result)[kRowBlocks]) {
  const uint32_t rows = work.rows, lane = work.lane;
  const uint32_t index = (part.own - part.first) / rows;
  const uint32_t nth = (index + part.shift) % kWarps;  // of the group
  const uint32_t leader = index - min(index, nth);
  struct PartRange {
    uint32_t first, step, count;  // of parts
  } elsewhere[2] = {};
  const uint32_t in_first = kWarps - part.shift;  // parts of the first group
  const uint32_t groups = (part.count + part.shift + kWarps - 1) / kWarps;
  uint32_t in_cta[2] = {};  // those that have parts of other groups with them come last
  if (index == leader) {
    const uint32_t others = min(part.count - index, kWarps - nth) - 1;
    in_cta[0] = warps_with(shared, part.own + rows, others, rows, lane);
    const uint32_t taken = __popc(in_cta[0]);
    elsewhere[0] = {index + 1 + taken, 1, others - taken};
    for (uint32_t i = 1; index == 0 && i < groups && in_cta[0] != 0; ++i) {
      in_cta[1] |= in_cta[0] & -in_cta[0];
      in_cta[0] &= in_cta[0] - 1;
    }
  }
  if (index < in_first) {
    const uint32_t mine = index == 0 ? in_first : index;  // and every in_first-th behind it
    if (mine < groups) {
      elsewhere[1] = {mine * kWarps - part.shift, in_first * kWarps, (groups - mine + in_first - 1) / in_first};
    }
  }
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    if constexpr (kSharedParts) {
      const uint32_t from_shared = i == 0 ? in_cta[0] : in_cta[1];
      if (from_shared != 0) add_shared_parts(shared, from_shared, result[0], lane);
    }
    const PartRange from = i == 0 ? elsewhere[0] : elsewhere[1];
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b) {
      const uint32_t first_row = work.first_row + 8 * b;
      if (first_row >= rows) break;
      add_global_parts(*work.args, part.first + from.first * rows + first_row, from.step * rows, from.count,
                       rows - first_row, result[b], lane);
    }
  }
  if constexpr (kSharedParts) {
    if (index != leader && part_before_in_cta(shared, part.first + (leader + 1) * rows, rows, lane)) {
      publish_part(shared, result, work.warp, lane);
      return false;
    }
  }
  if (index != 0) {
    write_part(work, part, result);
    return false;
  }
  add_extra_logits(work, result);
  return true;
}

}  // namespace fovea::attention::warp_per_worker
