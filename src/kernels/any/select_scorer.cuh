// What warps and CTAs of fovea_select do together, on a device: scores of units by tensor cores, sums over a CTA, and
// who is last. Included by select.cuh; tests run the rest of the kernel on the host with scalar code in its place.
#pragma once

#include "kernels/any/select.cuh"

#if defined(__CUDACC_RTC__)

namespace fovea::kernels {

struct SelectCta : DeviceCta {
  // before[i] becomes the sum of values[< i]; one value a thread. warp_sums: 32 words.
  __forceinline__ void exclusive_sums(const uint32_t* values, uint32_t* before, uint32_t* warp_sums) const {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t value = values[threadIdx.x];
    const uint32_t sum = inclusive(value, lane);
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    const uint32_t of_warps = inclusive(warp_sums[lane], lane);
    const uint32_t of_others = __shfl_sync(~0u, of_warps, warp == 0 ? 0 : warp - 1);
    before[threadIdx.x] = sum - value + (warp == 0 ? 0 : of_others);
    __syncthreads();
  }

  // Whether this is the last of `count` CTAs that come here; then it sees what the others wrote before.
  __forceinline__ bool is_last(uint32_t* counter, uint32_t count, uint32_t& flag) const {
    __threadfence();
    __syncthreads();
    if (count == 1) return true;
    if (threadIdx.x == 0) {
      const bool last = atomicAdd(counter, 1u) == count - 1;
      flag = last;
      if (last) *counter = 0;
      __threadfence();
    }
    __syncthreads();
    return flag != 0;
  }

 private:
  static __forceinline__ uint32_t inclusive(uint32_t sum, uint32_t lane) {
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t left = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += left;
    }
    return sum;
  }
};

// d += codes x weights for 16 tokens (rows) and 8 query heads (columns), over all 32 codes of a token.
__forceinline__ void multiply_codes(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__forceinline__ uint32_t load_once(const uint8_t* from) {
  uint32_t word;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(word) : "l"(from));
  return word;
}

// A warp takes 16 positions at a time, two units in one go: lanes 0..15 hold one, lanes 16..31 the other. Lane
// (u, r, c) of 2 x 4 x 4 reads, of unit u, bytes 4i + c (i = 0..3) of tokens 4r .. 4r + 3 in four words, and turns them
// so that a word holds one token: an operand of the product, with channels in the order of weight_place().
struct CodeScorer {
  static constexpr uint32_t kPositions = 16;
  static constexpr uint32_t kPairs = 4;  // of units that are in flight together

  // keys[p] for the positions of this CTA's share.
  __forceinline__ void score(const SelectCta&, const SelectWork& work, const SelectQuery& query, uint32_t* keys) const {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warps = work.args.splits * (abi::kSelectThreads / 32);
    const uint32_t count = abi::span_count(work.span);
    const uint32_t c = lane % 4;
    const uint32_t b0 = reinterpret_cast<const uint32_t*>(query.weights)[lane];
    const uint32_t b1 = reinterpret_cast<const uint32_t*>(query.weights)[32 + lane];
    const float scales[2] = {query.scale[2 * c], query.scale[2 * c + 1]};
    const float constants[2] = {query.constant[2 * c], query.constant[2 * c + 1]};
    const uint8_t* const codes =
        static_cast<const uint8_t*>(work.args.stats.data) + c * abi::kSubPageTokens + lane / 4 % 4 * 4;

    uint32_t first = (work.split * (abi::kSelectThreads / 32) + threadIdx.x / 32) * kPositions;
    uint32_t unit = unit_of(work, first, count, lane);
    uint32_t record = work.record_of(unit);
    while (first < count) {
      const uint32_t next = first + warps * kPositions;
      const uint32_t next_unit = unit_of(work, next, count, lane);
      const uint32_t next_record = work.record_of(next_unit);  // on its way while these are scored
      uint32_t key = 0;
#pragma unroll
      for (uint32_t half = 0; half < kPositions / 2; half += kPairs) {
        uint32_t words[kPairs][4];
#pragma unroll
        for (uint32_t p = 0; p < kPairs; ++p) {
          const uint64_t at = __shfl_sync(~0u, record, 2 * (half + p) + lane / 16);
          const uint8_t* const from = codes + at * 16;
#pragma unroll
          for (uint32_t i = 0; i < 4; ++i) words[p][i] = load_once(from + i * 4 * abi::kSubPageTokens);
        }
#pragma unroll
        for (uint32_t p = 0; p < kPairs; ++p) {
          const float score = score_of(words[p], b0, b1, scales, constants);
          if (lane % 16 == half + p) key = abi::score_key(score, float_as_bits(score));
        }
      }
      // Lane l of half a warp has the score of that half's unit of pair l % 16.
      const uint32_t at = 2 * (lane % 16) + lane / 16;
      const uint32_t of = __shfl_sync(~0u, unit, at % kPositions);
      if (at < kPositions && first + at < count) keys[first + at] = work.forced(of) ? abi::kForcedKey : key;
      first = next;
      unit = next_unit;
      record = next_record;
    }
  }

 private:
  static __forceinline__ uint32_t unit_of(const SelectWork& work, uint32_t first, uint32_t count, uint32_t lane) {
    const uint32_t position = first + lane % kPositions;
    return work.unit_at(position < count ? position : count - 1);
  }

  static __forceinline__ float score_of(const uint32_t (&words)[4], uint32_t b0, uint32_t b1, const float (&scales)[2],
                                        const float (&constants)[2]) {
    const uint32_t x0 = __byte_perm(words[0], words[1], 0x5140);
    const uint32_t x1 = __byte_perm(words[2], words[3], 0x5140);
    const uint32_t y0 = __byte_perm(words[0], words[1], 0x7362);
    const uint32_t y1 = __byte_perm(words[2], words[3], 0x7362);
    const uint32_t tokens[4] = {__byte_perm(x0, x1, 0x5410), __byte_perm(x0, x1, 0x7632), __byte_perm(y0, y1, 0x5410),
                                __byte_perm(y0, y1, 0x7632)};
    int32_t sums[2][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t one = tokens[2 * i];
      const uint32_t two = tokens[2 * i + 1];
      multiply_codes(sums[i], one & 0x0f0f0f0fu, two & 0x0f0f0f0fu, one >> 4 & 0x0f0f0f0fu, two >> 4 & 0x0f0f0f0fu, b0,
                     b1);
    }
    float best = bits_as_float(0xff800000u);
#pragma unroll
    for (uint32_t g = 0; g < 2; ++g) {
      int32_t sum = max(max(sums[0][g], sums[0][g + 2]), max(sums[1][g], sums[1][g + 2]));
      sum = max(sum, __shfl_xor_sync(~0u, sum, 4));
      sum = max(sum, __shfl_xor_sync(~0u, sum, 8));
      best = fmaxf(best, constants[g] + product(scales[g], static_cast<float>(sum)));
    }
    best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
    return fmaxf(best, __shfl_xor_sync(~0u, best, 2));
  }
};

}  // namespace fovea::kernels

#endif
