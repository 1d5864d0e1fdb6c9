// fovea_draw: the token of each row that is drawn with a temperature, the least probability of top-p and the share of
// min-p, as engine/sampler draws it from the same logits and the same uniform number; nothing is sorted but the few
// logits about the least one that top-p keeps. A CTA a row. Launched by device/cuda behind fovea_argmax; arguments in
// abi/op_args.h.
//
//   Weights are integers, exp(..) * 2^40, so sums are exact whatever their order. Top-p: their sum by distance from the
//   largest logit in 1024 buckets; the set ends in one of them, which alone is sorted. Then the row is divided among
//   the warps, and the warp in which the drawn part of the sum lies looks for its token: first among tokens of nearer
//   buckets, in their order, then among the sorted ones.
#pragma once

#include "abi/op_args.h"
#include "kernels/model/argmax.cuh"
#include "kernels/model/reduce.cuh"

namespace fovea::kernels {

template <uint32_t kVec>
struct Draw {
  static constexpr uint32_t kThreads = abi::kDrawThreads;
  static constexpr uint32_t kWarps = kThreads / 32;
  static constexpr uint32_t kBuckets = 1024;
  static constexpr float kBucketsPerUnit = 16.0f;
  static constexpr uint32_t kMostSorted = 4096;
  static constexpr uint32_t kBlock = 32 * kVec;  // elements that a warp looks at together

  struct Shared {
    uint64_t keys[kMostSorted];
    uint64_t mass[kBuckets];
    uint64_t warp[kWarps];
    uint64_t before;  // of buckets nearer than `last`
    uint64_t sorted_mass;
    uint32_t last;
    uint32_t num_keys;
    uint32_t num_sorted;
  };

  const abi::DrawArgs& args;
  abi::DrawRow row;
  const float* logits;
  float max;
  uint32_t last = kBuckets;  // buckets from here on are left out, or sorted

  __forceinline__ float distance(float x) const { return (max - x) * row.inverse_temperature; }
  __forceinline__ uint32_t bucket(float x) const {
    const float d = distance(x) * kBucketsPerUnit;
    return d < static_cast<float>(kBuckets - 1) ? static_cast<uint32_t>(d) : kBuckets - 1;
  }
  __forceinline__ uint64_t weight(float x) const {
    return static_cast<uint64_t>(exp2_of(distance(x) * -1.44269504f) * 1099511627776.0f);
  }
  // Of tokens in their order.
  __forceinline__ uint64_t plain_weight(float x) const {
    if (!(x >= max - row.reach) || (last < kBuckets && bucket(x) >= last)) return 0;
    return weight(x);
  }

  // step(i, x) for the row's elements of this thread, of its warp's part of the row.
  template <typename Step>
  __forceinline__ void each(const Step& step) const {
    const uint32_t begin = part_begin(threadIdx.x / 32), end = part_begin(threadIdx.x / 32 + 1);
#pragma unroll 2
    for (uint32_t i = begin + threadIdx.x % 32 * kVec; i < end; i += kBlock) {
      float x[kVec];
      unpack(fovea::kernels::load<KvDType::kF32, kVec>(logits, i), x);
#pragma unroll
      for (uint32_t e = 0; e < kVec; ++e) step(i + e, x[e]);
    }
  }
  __forceinline__ uint32_t part_begin(uint32_t warp) const {
    const uint32_t blocks = (args.width + kBlock - 1) / kBlock;
    const uint32_t begin = (blocks + kWarps - 1) / kWarps * warp * kBlock;
    return begin < args.width ? begin : args.width;
  }

  // Where top-p's set ends, by buckets, and the keys of that bucket.
  __forceinline__ void find_last(Shared& shared) {
    for (uint32_t i = threadIdx.x; i < kBuckets; i += kThreads) shared.mass[i] = 0;
    if (threadIdx.x == 0) shared.num_keys = 0;
    __syncthreads();
    each([&](uint32_t, float x) {
      const uint64_t w = weight(x);
      if (w != 0)
        atomicAdd(reinterpret_cast<unsigned long long*>(&shared.mass[bucket(x)]), static_cast<unsigned long long>(w));
    });
    __syncthreads();
    if (threadIdx.x < 32) {
      constexpr uint32_t kEach = kBuckets / 32;
      uint64_t sum = 0;
      for (uint32_t i = 0; i < kEach; ++i) sum += shared.mass[threadIdx.x * kEach + i];
      uint64_t up_to = inclusive(sum);
      const uint64_t total = __shfl_sync(~0u, static_cast<unsigned long long>(up_to), 31);
      const uint64_t wanted = static_cast<uint64_t>(static_cast<double>(row.top_p) * static_cast<double>(total));
      const uint32_t reached = __ballot_sync(~0u, up_to >= wanted);
      const uint32_t lane = reached != 0 ? lowest_bit(reached) : 31;
      if (threadIdx.x == lane) {
        uint64_t before = up_to - sum;
        uint32_t i = lane * kEach;
        while (i + 1 < kBuckets && before + shared.mass[i] < wanted) before += shared.mass[i++];
        shared.last = i;
        shared.before = before;
        shared.sorted_mass = wanted;  // what is still to be reached, for sort()
      }
    }
    __syncthreads();
    const uint32_t found = shared.last;
    each([&](uint32_t i, float x) {
      if (bucket(x) != found || weight(x) == 0) return;
      const uint32_t at = add_to(&shared.num_keys, 1);
      if (at < kMostSorted) shared.keys[at] = logit_key(x, i);
    });
    __syncthreads();
  }

  static __forceinline__ uint64_t inclusive(uint64_t x) {
#pragma unroll
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, static_cast<unsigned long long>(x), distance);
      if (threadIdx.x % 32 >= distance) x += other;
    }
    return x;
  }
  static __forceinline__ float logit_of(uint64_t key) {
    const uint32_t ordered = static_cast<uint32_t>(key >> 32);
    return bits_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
  }
  static __forceinline__ uint32_t token_of(uint64_t key) { return ~0u - static_cast<uint32_t>(key); }

  // The keys of the last bucket, the likeliest first, and how many of them top-p and min-p keep.
  __forceinline__ void sort(Shared& shared) {
    uint32_t size = 1;
    while (size < shared.num_keys) size *= 2;
    for (uint32_t i = threadIdx.x; i < size; i += kThreads) {
      if (i >= shared.num_keys) shared.keys[i] = 0;
    }
    __syncthreads();
    for (uint32_t run = 2; run <= size; run *= 2) {
      for (uint32_t gap = run / 2; gap > 0; gap /= 2) {
        for (uint32_t i = threadIdx.x; i < size / 2; i += kThreads) {
          const uint32_t a = i / gap * 2 * gap + i % gap, b = a + gap;
          const bool falls = (a & run) == 0 || run == size;
          const uint64_t x = shared.keys[a], y = shared.keys[b];
          if ((x < y) == falls) {
            shared.keys[a] = y;
            shared.keys[b] = x;
          }
        }
        __syncthreads();
      }
    }
    if (threadIdx.x == 0) {
      const uint64_t wanted = shared.sorted_mass;
      uint64_t reached = shared.before, kept_mass = 0;
      uint32_t kept = 0;
      while (kept < shared.num_keys && ((kept == 0 && shared.last == 0) || reached < wanted)) {
        const float x = logit_of(shared.keys[kept]);
        if (!(x >= max - row.reach)) break;
        reached += weight(x);
        kept_mass += weight(x);
        ++kept;
      }
      shared.num_sorted = kept;
      shared.sorted_mass = kept_mass;
    }
    __syncthreads();
  }

  __forceinline__ void run(Shared& shared) {
    const bool top_p = row.top_p < 1.0f;
    if (top_p) {
      find_last(shared);
      if (shared.num_keys > kMostSorted) {
        if (threadIdx.x == 0) args.best[blockIdx.x] = abi::kDrawOnHost;
        return;
      }
      last = shared.last;
      sort(shared);
    }
    uint64_t sum = 0;
    each([&](uint32_t, float x) { sum += plain_weight(x); });
#pragma unroll
    for (uint32_t distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(~0u, static_cast<unsigned long long>(sum), distance);
    }
    if (threadIdx.x % 32 == 0) shared.warp[threadIdx.x / 32] = sum;
    __syncthreads();
    uint64_t plain = 0;
    for (uint32_t w = 0; w < kWarps; ++w) plain += shared.warp[w];
    const uint64_t total = plain + (top_p ? shared.sorted_mass : 0);
    // The uniform number has 53 bits.
    const uint64_t u = static_cast<uint64_t>(row.u_high) << 32 | row.u_low;
    const uint64_t target = __umul64hi(total << 7, u << 4);
    if (target >= plain) {
      if (threadIdx.x != 0 || !top_p) return;
      uint64_t left = target - plain;
      uint32_t i = 0;
      while (i + 1 < shared.num_sorted && left >= weight(logit_of(shared.keys[i]))) {
        left -= weight(logit_of(shared.keys[i++]));
      }
      args.best[blockIdx.x] = static_cast<int32_t>(token_of(shared.keys[i]));
      return;
    }
    uint64_t before = 0;
    uint32_t warp = 0;
    while (before + shared.warp[warp] <= target) before += shared.warp[warp++];
    if (threadIdx.x / 32 != warp) return;
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t block = part_begin(warp); block < part_begin(warp + 1); block += kBlock) {
      const uint32_t i = block + lane * kVec;
      float x[kVec];
      uint64_t weights[kVec] = {};
      uint64_t own = 0;
      if (i < args.width) {
        unpack(fovea::kernels::load<KvDType::kF32, kVec>(logits, i), x);
#pragma unroll
        for (uint32_t e = 0; e < kVec; ++e) own += weights[e] = plain_weight(x[e]);
      }
      const uint64_t up_to = before + inclusive(own);
      const uint32_t reached = __ballot_sync(~0u, up_to > target);
      if (reached != 0) {
        if (lane != lowest_bit(reached)) return;
        uint64_t at = up_to - own;
        uint32_t token = i;
#pragma unroll
        for (uint32_t e = 0; e < kVec; ++e) {
          if (at <= target && weights[e] != 0) token = i + e;
          at += weights[e];
        }
        args.best[blockIdx.x] = static_cast<int32_t>(token);
        return;
      }
      before = __shfl_sync(~0u, static_cast<unsigned long long>(up_to), 31);
    }
  }
};

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_DRAW)
extern "C" __global__ void __launch_bounds__(fovea::abi::kDrawThreads)
    fovea_draw(const __grid_constant__ fovea::abi::DrawArgs args) {
  using Draw = fovea::kernels::Draw<FOVEA_VEC>;
  __shared__ Draw::Shared shared;
  fovea::kernels::wait_for_inputs();
  const fovea::abi::DrawRow row = args.draws[blockIdx.x];
  const int32_t best = args.best[blockIdx.x];
  if (row.inverse_temperature == 0.0f || best < 0) return;
  const float* const logits = args.logits + blockIdx.x * args.stride;
  Draw draw{args, row, logits, logits[best]};
  __syncthreads();  // best is overwritten
  draw.run(shared);
}
#endif
