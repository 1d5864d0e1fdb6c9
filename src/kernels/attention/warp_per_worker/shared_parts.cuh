// Parts of a divided pair that warps of one CTA hold are combined through shared memory. Workers of a CTA follow one
// another in the plan, so the parts of a pair are the last item of one warp and the first items of the warps behind it.
// Which warps those are is found from what every warp says its queue begins with; it depends on the plan alone, and so
// do the bits. Used by the other files of this folder.
#pragma once

#include "kernels/attention/warp_per_worker/memory.cuh"

namespace fovea::attention::warp_per_worker {

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

// A block of the item's rows: as they leave the registers of a warp.
struct Result {
  Pairs pairs;
  float lse[2];  // of rows 2c and 2c + 1
};

// value *= factor[row], by rows 2c and 2c + 1.
__device__ __forceinline__ float factor_of(const float (&factor)[2], int j, uint32_t lane) {
  return kNarrow ? factor[j] : lane >> 2 & 1 ? factor[1] : factor[0];  // see pair_row()
}
__device__ __forceinline__ void scale_rows(Result& result, const float (&factor)[2], uint32_t lane) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float x = factor_of(factor, j, lane);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      float2& value = result.pairs.value[b][j];
      value = x == 0.0f ? float2{0.0f, 0.0f} : float2{x * value.x, x * value.y};
    }
  }
}

// How a result and other parts of its pair become one: of() each lse into total, then scale() the result, add() the
// others, finish(). Weights sum up to 1; without a softmax they are 1. Parts of weight 0 may hold anything.
struct Weights {
  float most[2];  // lse of rows 2c and 2c + 1, over all of them
  float total[2];
  float factor[2];
  float own[2];

  __device__ __forceinline__ Weights(const float (&own_lse)[2], const float (&most_in)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = most_in[r];
      total[r] = own[r] = of(own_lse[r], r);
    }
  }
  __device__ __forceinline__ float of(float lse, int r) const {
    return Variant::kSoftmax ? part_weight(lse, most[r]) : 1.0f;
  }
  __device__ __forceinline__ void scale(Result& result, uint32_t lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] = !Variant::kSoftmax ? 1.0f : total[r] == 0.0f ? 0.0f : 1.0f / total[r];
      own[r] *= factor[r];
    }
    scale_rows(result, own, lane);
  }
  // Pairs j of the result; value(b): those of block b.
  template <class F>
  __device__ __forceinline__ void add(Result& result, const float (&lse)[2], int j, uint32_t lane,
                                      const F& value) const {
    const float weights[2] = {of(lse[0], 0) * factor[0], of(lse[1], 1) * factor[1]};
    const float weight = factor_of(weights, j, lane);
    if (weight == 0.0f) return;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const float2 x = value(b);
      float2& sum = result.pairs.value[b][j];
      sum = {sum.x + weight * x.x, sum.y + weight * x.y};
    }
  }
  __device__ __forceinline__ void finish(Result& result) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      result.lse[r] = merged_lse(most[r], total[r]);
    }
  }
};

// In SharedMemory::first_parts, above every partial row.
inline constexpr uint32_t kWholePair = abi::kNone;  // the queue begins with a pair that no cut divided
inline constexpr uint32_t kNoWork = abi::kNone - 1;

// Before the CTA's barrier.
__device__ __forceinline__ void announce(SharedMemory& shared, uint32_t first_part, uint32_t warp, uint32_t lane) {
  if (lane != 0) return;
  shared.first_parts[warp] = first_part;
  ptx::mbarrier_init(ptx::smem_address(&shared.part_ready[warp]), 1);
}

// Warps of this CTA that begin with one of `count` parts from partial row `row` on: a bit each, in the order of parts.
__device__ __forceinline__ uint32_t warps_with(const SharedMemory& shared, uint32_t row, uint32_t count, uint32_t group,
                                               uint32_t lane) {
  if constexpr (!kSharedParts) return 0;
  return __ballot_sync(~0u, lane < kWarps && shared.first_parts[lane % kWarps] - row < count * group);
}

// Whether part i of a pair and part i - 1 are both items of this CTA. row: the first partial row of part i, i > 0.
__device__ __forceinline__ bool part_before_in_cta(const SharedMemory& shared, uint32_t row, uint32_t group,
                                                   uint32_t lane) {
  const uint32_t holder = warps_with(shared, row, 1, group, lane);
  const uint32_t busy = __ballot_sync(~0u, lane < kWarps && shared.first_parts[lane % kWarps] != kNoWork);
  return holder != 0 && (busy & (holder - 1)) != 0;
}

__device__ __forceinline__ void put_part(SharedPart& part, const Result (&result)[kRowBlocks], uint32_t lane) {
#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < 2; ++j) part.values[block][2 * b + j][lane] = result[block].pairs.value[b][j];
    }
    if (lane < 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) part.lse[8 * block + 2 * lane + j] = result[block].lse[j];
    }
  }
}

// Adds what the other warp of the team has put.
__device__ __forceinline__ void add_of_team(const SharedPart& part, Result (&result)[kRowBlocks], uint32_t lane) {
#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block) {
    const uint32_t row = 8 * block + 2 * (lane & 3);
    const float lse[2] = {part.lse[row], part.lse[row + 1]};
    Result& to = result[block];
    const float most[2] = {fmaxf(to.lse[0], lse[0]), fmaxf(to.lse[1], lse[1])};
    Weights weights(to.lse, most);
#pragma unroll
    for (int r = 0; r < 2; ++r) weights.total[r] += weights.of(lse[r], r);
    weights.scale(to, lane);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      weights.add(to, lse, j, lane, [&](int b) { return part.values[block][2 * b + j][lane]; });
    }
    weights.finish(to);
  }
}

// The warp's first item, for the warp that takes it.
__device__ __forceinline__ void publish_part(SharedMemory& shared, const Result (&result)[kRowBlocks], uint32_t warp,
                                             uint32_t lane) {
  put_part(shared.parts[warp], result, lane);
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared.part_ready[warp]));
}

// Adds the parts in shared memory of `warps`, a bit each, in their order.
__device__ __forceinline__ void add_shared_parts(SharedMemory& shared, uint32_t warps, Result& result, uint32_t lane) {
  const auto each = [warps](const auto& f) {
#pragma unroll 1
    for (uint32_t left = warps; left != 0; left &= left - 1) f(static_cast<uint32_t>(__ffs(left)) - 1);
  };
  const uint32_t row = 2 * (lane & 3);
  float most[2] = {result.lse[0], result.lse[1]};
  each([&](uint32_t w) {
    ptx::mbarrier_wait(ptx::smem_address(&shared.part_ready[w]), 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], shared.parts[w].lse[row + r]);
  });
  Weights weights(result.lse, most);
  each([&](uint32_t w) {
#pragma unroll
    for (int r = 0; r < 2; ++r) weights.total[r] += weights.of(shared.parts[w].lse[row + r], r);
  });
  weights.scale(result, lane);
  each([&](uint32_t w) {
    const SharedPart& part = shared.parts[w];
    const float lse[2] = {part.lse[row], part.lse[row + 1]};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      weights.add(result, lse, j, lane, [&](int b) { return part.values[0][2 * b + j][lane]; });
    }
  });
  weights.finish(result);
}

}  // namespace fovea::attention::warp_per_worker
