// The end of an item: its state becomes rows of the output, or a part that meets the other parts of its pair. Words of
// parts say for themselves whether they are there (kernels/decode/parts.cuh).
#pragma once

#include "kernels/warps/loader.cuh"
#include "kernels/warps/slice.cuh"

namespace fovea::warps {

inline constexpr uint32_t kFanIn = 8;  // parts that one warp brings together at a time
inline constexpr uint32_t kChunkFloats = 4;

// Which of the pair's parts an item is.
struct Part {
  uint32_t own;    // first partial row of this one
  uint32_t first;  // that of part 0; the others follow, `group` rows each
  uint32_t count;
};

// Looks that up in the plan, one step a slice, so that nobody waits for the three trips to memory that it takes.
class PartFinder {
 public:
  __device__ __forceinline__ PartFinder(const abi::AttentionArgs& args, const Work& work) : args_(args), work_(work) {
    const abi::WorkItem& item = work.record->item;
    if (item.flags & abi::kItemDirect) {
      steps_ = 3;
      return;
    }
    part_.own = abi::partial_row(item, work.record->block_row, work.record->head, work.group);
  }
  __device__ __forceinline__ void step() {
    if (steps_ >= 3) return;
    if (steps_ == 0) {
      merge_ = section<uint32_t>(work_.header->merge_of_partial)[part_.own / work_.group];
    } else if (steps_ == 1) {
      const abi::MergeEntry& entry = section<abi::MergeEntry>(work_.header->merges)[merge_];
      part_.count = entry.num_parts;
      merge_ = entry.parts_begin;
    } else {
      part_.first = section<uint32_t>(work_.header->merge_parts)[merge_];
    }
    ++steps_;
  }
  __device__ __forceinline__ Part find() {
    while (steps_ < 3) step();
    return part_;
  }

 private:
  template <typename T>
  __device__ __forceinline__ const T* section(uint32_t offset) const {
    return reinterpret_cast<const T*>(args_.plan + offset);
  }
  const abi::AttentionArgs& args_;
  const Work& work_;
  Part part_{};
  uint32_t merge_ = 0;
  uint32_t steps_ = 0;
};

// Two neighbouring dims of a row, as outputs and parts are written: pair j of block b is row pair_row(j), dims
// pair_dim(b, j) and the next.
struct Pairs {
  float2 value[kBlocks][2];
};
__device__ __forceinline__ uint32_t pair_row(int j, uint32_t lane) {
  return 2 * (lane & 3) + (kNarrow ? j : lane >> 2 & 1);
}
__device__ __forceinline__ uint32_t pair_dim(int b, int j, uint32_t lane) {
  if constexpr (kInt4) return b / 2 * 32 + 4 * (lane >> 2) + b % 2 * 2;
  if constexpr (kNarrow) return b * 16 + 2 * (lane >> 2);
  return b * 16 + 8 * j + (lane >> 2 & ~1u);
}

// factor: of rows 2c and 2c + 1. 16-bit values: neighbouring dims lie in neighbouring lanes, which trade.
__device__ __forceinline__ void pairs_of(const State& state, const float (&factor)[2], uint32_t lane, Pairs& to) {
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

// Parts of a pair in the warp's ring, which has nothing else to hold at the end of a queue: part 0 is the warp's own.
// Each lane brings, reads and writes the same chunks of every part.
class Meeting {
 public:
  __device__ __forceinline__ Meeting(const abi::AttentionArgs& args, SharedMemory& shared, uint32_t group,
                                     uint32_t warp, uint32_t lane)
      : args_(args),
        data_(reinterpret_cast<float*>(&shared.warps[warp])),
        lse_(shared.lse[warp]),
        group_(group),
        chunks_(group * kHeadDim / kChunkFloats),
        most_(min(kFanIn - 1, static_cast<uint32_t>(sizeof(WarpMemory)) / (group * kHeadDim * 4) - 1)),
        lane_(lane) {
    static_assert(sizeof(WarpMemory) >= 2 * kRows * kHeadDim * 4);
  }

  __device__ __forceinline__ void put_own(const Pairs& pairs, const float (&lse)[2]) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t row = pair_row(j, lane_);
      if (row >= group_) continue;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        *reinterpret_cast<float2*>(data_ + row * kHeadDim + pair_dim(b, j, lane_)) = pairs.value[b][j];
      }
    }
    if (lane_ < 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) lse_[0][2 * lane_ + j] = lse[j];
    }
    __syncwarp();
  }

  // Adds parts `first`, first + step, .. of the pair, `count` of them, to the own one, in this order.
  __device__ __forceinline__ void add(uint32_t first_row, uint32_t row_step, uint32_t count) {
    while (count > 0) {
      const uint32_t now = min(count, most_);
      fetch(first_row, row_step, now);
      sum(now);
      first_row += now * row_step;
      count -= now;
    }
  }

  __device__ __forceinline__ float lse(uint32_t row) const { return lse_[0][row]; }
  __device__ __forceinline__ uint32_t chunks() const { return chunks_; }
  __device__ __forceinline__ float4 chunk(uint32_t i) const { return reinterpret_cast<const float4*>(data_)[i]; }

 private:
  __device__ __forceinline__ float* part(uint32_t p) const { return data_ + p * group_ * kHeadDim; }

  // Waits for `count` parts and takes them: their words are pending again.
  __device__ __forceinline__ void fetch(uint32_t first_row, uint32_t row_step, uint32_t count) {
    const auto row_of = [&](uint32_t p) { return static_cast<uint64_t>(first_row + p * row_step); };
    const auto lands = [&](uint32_t p, uint32_t i) {
      const uint4 x = reinterpret_cast<const uint4*>(part(p + 1))[i];
      return x.x != abi::kPartPending && x.y != abi::kPartPending && x.z != abi::kPartPending &&
             x.w != abi::kPartPending;
    };
    bool missing = true;
    for (bool again = false; missing; again = true) {
#pragma unroll 1
      for (uint32_t p = 0; p < count; ++p) {
        for (uint32_t i = lane_; i < chunks_; i += 32) {
          if (again && lands(p, i)) continue;
          ptx::cp_async_16(ptx::smem_address(part(p + 1)) + 16 * i,
                           args_.partial_out + row_of(p) * kHeadDim + kChunkFloats * i);
        }
      }
      commit_copies();
      if (!again) fetch_lse(row_of, count);
      wait_for_copies<0>();
      missing = false;
#pragma unroll 1
      for (uint32_t p = 0; p < count; ++p) {
        for (uint32_t i = lane_; i < chunks_; i += 32) missing |= !lands(p, i);
      }
    }
#pragma unroll 1
    for (uint32_t p = 0; p < count; ++p) {
      float* const from = args_.partial_out + row_of(p) * kHeadDim;
      for (uint32_t i = lane_; i < chunks_; i += 32) {
        restore_part2(from + kChunkFloats * i);
        restore_part2(from + kChunkFloats * i + 2);
      }
    }
    __syncwarp();
  }

  template <class F>
  __device__ __forceinline__ void fetch_lse(const F& row_of, uint32_t count) {
#pragma unroll 1
    for (uint32_t i = lane_; i < count * group_; i += 32) {
      const uint32_t p = i / group_, row = i % group_;
      float* const from = args_.partial_lse + row_of(p) + row;
      lse_[p + 1][row] = wait_for_part(from, load_part(from));
      restore_part(from);
    }
  }

  // Log-sum-exps become weights that sum up to 1 (without a softmax: that are 1), the own one that of all together.
  __device__ __forceinline__ void weigh(uint32_t count) {
    __syncwarp();
    float together = 0.0f;
    if (lane_ < group_ && Variant::kSoftmax) {
      float most = kMinusInf;
      for (uint32_t p = 0; p <= count; ++p) most = fmaxf(most, lse_[p][lane_]);
      float total = 0.0f;
      for (uint32_t p = 0; p <= count; ++p) total += part_weight(lse_[p][lane_], most);
      together = total == 0.0f ? kMinusInf : most + log2f(total);
      const float factor = total == 0.0f ? 0.0f : 1.0f / total;
      for (uint32_t p = 0; p <= count; ++p) lse_[p][lane_] = part_weight(lse_[p][lane_], most) * factor;
    } else if (lane_ < group_) {
      for (uint32_t p = 0; p <= count; ++p) lse_[p][lane_] = 1.0f;
    }
    together_ = together;  // of row `lane`
    __syncwarp();
  }

  __device__ __forceinline__ void sum(uint32_t count) {
    weigh(count);
    for (uint32_t i = lane_; i < chunks_; i += 32) {
      const uint32_t row = i * kChunkFloats / kHeadDim;
      float4 value{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (uint32_t p = 0; p < kFanIn; ++p) {
        const float weight = p <= count ? lse_[p][row] : 0.0f;
        if (weight == 0.0f) continue;
        const float4 x = reinterpret_cast<const float4*>(part(p))[i];
        value = {value.x + weight * x.x, value.y + weight * x.y, value.z + weight * x.z, value.w + weight * x.w};
      }
      reinterpret_cast<float4*>(data_)[i] = value;
    }
    __syncwarp();
    if (lane_ < group_) lse_[0][lane_] = together_;
    __syncwarp();
  }

  const abi::AttentionArgs& args_;
  float* data_;
  float (*lse_)[kRows];
  uint32_t group_, chunks_, most_, lane_;
  float together_ = 0.0f;
};

// The item's rows: as they leave the registers of a warp.
struct Result {
  Pairs pairs;
  float lse[2];  // of rows 2c and 2c + 1
};

// Takes factors out of the outputs, adds what biases and zeros of the values are, and rotates back.
__device__ __forceinline__ void finish_quantized(State& state, uint32_t lane) {
  if constexpr (kIntegers) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float zero = over_tokens(state.zero[j], [](float a, float b) { return a + b; }) -
                         state.weights[j] * (kCodeBias / kWeightFactor);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        state.o[b][j] = state.o[b][j] * (1.0f / (kEvenUnit * kWeightFactor)) + zero;
        state.o[b][j + 2] = state.o[b][j + 2] * (1.0f / (kOddUnit * kWeightFactor)) + zero;
      }
      if constexpr (kRotated) {
        float row[kBlocks * 2];
#pragma unroll
        for (int i = 0; i < kBlocks * 2; ++i) row[i] = state.o[i / 2][i % 2 * 2 + j];
        rotate<4, 16>(row, lane);
#pragma unroll
        for (int i = 0; i < kBlocks * 2; ++i) state.o[i / 2][i % 2 * 2 + j] = row[i];
      }
    }
  }
}

__device__ __forceinline__ void finish_state(const abi::AttentionArgs& args, const Place& place, State& state,
                                             bool direct, uint32_t group, uint32_t lane, Result& to) {
  finish_sums(state);
  finish_quantized(state, lane);
  float factor[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t q_head = place.record->head * group + min(2 * (lane & 3) + j, group - 1);
    const RowResult result = finish_row(state.max[j], state.sum[j], direct ? extra_logit(args, q_head) : kMinusInf);
    factor[j] = 1.0f / result.divisor;
    if constexpr (kFp8 && kTokenScales) factor[j] *= 1.0f / kWeightFactor;
    if constexpr (kFp8 && !kTokenScales) {
      if (args.pool.v_scale != nullptr) {
        factor[j] *= static_cast<const float*>(args.pool.v_scale)[place.record->head];
      }
    }
    to.lse[j] = result.lse;
  }
  pairs_of(state, factor, lane, to.pairs);
}

// write(row, dim, two neighbouring values), for what the lane has of the item's rows.
template <class F>
__device__ __forceinline__ void for_each_pair(const Result& result, uint32_t group, uint32_t lane, const F& write) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t row = pair_row(j, lane);
    if (row >= group) continue;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) write(row, pair_dim(b, j, lane), result.pairs.value[b][j]);
  }
}

__device__ __forceinline__ void write_direct(const abi::AttentionArgs& args, const Place& place, const Row& token,
                                             const Result& result, uint32_t group, uint32_t q_heads, uint32_t lane) {
  const uint32_t first_head = place.record->head * group;
  for_each_pair(result, group, lane, [&](uint32_t row, uint32_t dim, float2 x) {
    write_output(args, token.q_row, first_head + row, token.position, dim, x);
  });
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t row = 2 * lane + j;
    if (lane >= 4 || row >= group || args.lse == nullptr) continue;
    args.lse[static_cast<uint64_t>(token.q_row) * q_heads + first_head + row] = result.lse[j];
  }
}

__device__ __forceinline__ void write_part(const abi::AttentionArgs& args, const Part& part, const Result& result,
                                           uint32_t group, uint32_t lane) {
  for_each_pair(result, group, lane, [&](uint32_t row, uint32_t dim, float2 x) {
    float* const to = args.partial_out + static_cast<uint64_t>(part.own + row) * kHeadDim + dim;
    store_part(to, x);
  });
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (lane >= 4 || 2 * lane + j >= group) continue;
    store_part(args.partial_lse + part.own + 2 * lane + j, result.lse[j]);
  }
}

// Parts meet in a tree of kFanIn: part i, a multiple of 8, takes those from i + 1 to i + 7; a multiple of 64 then takes
// i + 8, i + 16, ..; and so on up to part 0, which writes the output. A part with parts behind it in the pair is the
// last item of its queue, and those are the first items of higher queues: nobody waits for who waits for him.
__device__ __forceinline__ void finish_part(const abi::AttentionArgs& args, SharedMemory& shared, const Place& place,
                                            const Row& token, const Part& part, const Result& result, uint32_t group,
                                            uint32_t q_heads, uint32_t warp, uint32_t lane) {
  const uint32_t index = (part.own - part.first) / group;
  const auto children = [&](uint32_t step) { return min((part.count - 1 - index) / step, kFanIn - 1); };
  if (index % kFanIn != 0 || children(1) == 0) {
    write_part(args, part, result, group, lane);
    return;
  }
  Meeting meeting(args, shared, group, warp, lane);
  meeting.put_own(result.pairs, result.lse);
  for (uint32_t step = 1; index % (step * kFanIn) == 0 && children(step) != 0; step *= kFanIn) {
    meeting.add(part.own + step * group, step * group, children(step));
  }
  if (index != 0) {
    float* const to = args.partial_out + static_cast<uint64_t>(part.own) * kHeadDim;
#pragma unroll 1
    for (uint32_t i = lane; i < meeting.chunks(); i += 32) {
      const float4 x = meeting.chunk(i);
      store_part(to + kChunkFloats * i, {x.x, x.y});
      store_part(to + kChunkFloats * i + 2, {x.z, x.w});
    }
    if (lane < group) store_part(args.partial_lse + part.own + lane, meeting.lse(lane));
    return;
  }
  const uint32_t first_head = place.record->head * group;
#pragma unroll 1
  for (uint32_t i = lane; i < meeting.chunks(); i += 32) {
    const uint32_t row = i * kChunkFloats / kHeadDim;
    const uint32_t column = i * kChunkFloats % kHeadDim;
    const float extra = extra_logit(args, first_head + row);
    const float own = meeting.lse(row);
    float weight = 1.0f;  // of everything seen, beside an extra logit
    if (Variant::kSoftmax && extra != kMinusInf) weight = own == kMinusInf ? 0.0f : 1.0f / (1.0f + exp2f(extra - own));
    const float4 x = meeting.chunk(i);
    write_output(args, token.q_row, first_head + row, token.position, column, {x.x * weight, x.y * weight});
    write_output(args, token.q_row, first_head + row, token.position, column + 2, {x.z * weight, x.w * weight});
  }
  if (lane < group && args.lse != nullptr) {
    const float extra = extra_logit(args, first_head + lane);
    float together = meeting.lse(lane);
    if (extra != kMinusInf) together = finish_row(together, 1.0f, extra).lse;
    args.lse[static_cast<uint64_t>(token.q_row) * q_heads + first_head + lane] = together;
  }
}

}  // namespace fovea::warps
