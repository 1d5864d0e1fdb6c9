// What warps, CTAs and clusters of fovea_select do together, on a device: scores of units by tensor cores, sums over a
// CTA, and shared memory of each other. Included by select.cuh; tests run the rest of the kernel on the host with
// scalar code in its place.
#pragma once

#include "kernels/any/select.cuh"

#if defined(__CUDACC_RTC__)

namespace fovea::kernels {

// A CTA of a cluster, which is one list. Before sm_90 there are no clusters: a CTA is alone.
class SelectCta : public DeviceCta {
 public:
  // arrived: an mbarrier a kind of message. Returns when all CTAs of the cluster may be sent to. They may be until they
  // have received the last message, which they do before they end.
  __forceinline__ SelectCta(uint64_t* arrived, uint32_t ranks)
      : list_(blockIdx.x / ranks), rank_(blockIdx.x - list_ * ranks), ranks_(ranks) {
#if __CUDA_ARCH__ >= 900
    if (ranks == 1) return;
    arrived_ = static_cast<uint32_t>(__cvta_generic_to_shared(arrived));
    if (threadIdx.x == 0) {
      for (uint32_t i = 0; i < kSelectMessages; ++i) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(arrived_ + 8 * i));
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }
  __forceinline__ uint32_t list() const { return list_; }
  __forceinline__ uint32_t rank() const { return rank_; }
  __forceinline__ uint32_t ranks() const { return ranks_; }

  // A step without a barrier after it.
  template <typename Step>
  __forceinline__ void each_thread_alone(const Step& step) const {
    step(static_cast<uint32_t>(threadIdx.x));
  }

  // `value` to CTA `rank`, where `to` is here.
  template <SelectMessage kMessage, typename T>
  __forceinline__ void send(uint32_t rank, T& to, const T& value) const {
    static_assert(sizeof(T) == 16 || sizeof(T) == 8 || sizeof(T) == 4);
    if (ranks_ == 1) {
      to = value;
      return;
    }
#if __CUDA_ARCH__ >= 900
    const uint32_t address = place_in(rank, static_cast<uint32_t>(__cvta_generic_to_shared(&to)));
    const uint32_t barrier = place_in(rank, arrived_ + 8 * kMessage);
    const auto* const words = reinterpret_cast<const uint32_t*>(&value);
    if constexpr (sizeof(T) == 16) {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
          "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(barrier)
          : "memory");
    } else if constexpr (sizeof(T) == 8) {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(address),
                   "r"(words[0]), "r"(words[1]), "r"(barrier)
                   : "memory");
    } else {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
                   "r"(words[0]), "r"(barrier)
                   : "memory");
    }
#endif
  }

  // Waits for `bytes` of a kind of message, those of this CTA among them.
  template <SelectMessage kMessage>
  __forceinline__ void receive(uint32_t bytes) {
    if (ranks_ == 1) {
      __syncthreads();
      return;
    }
#if __CUDA_ARCH__ >= 900
    const uint32_t barrier = arrived_ + 8 * kMessage;
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    }
    const uint32_t parity = parities_ >> kMessage & 1u;
    uint32_t done;
    do {
      asm volatile(
          "{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}\n"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
    } while (done == 0);
    parities_ ^= 1u << kMessage;
#endif
  }

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

 private:
#if __CUDA_ARCH__ >= 900
  static __forceinline__ uint32_t place_in(uint32_t rank, uint32_t address) {
    uint32_t place;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(address), "r"(rank));
    return place;
  }
#endif
  static __forceinline__ uint32_t inclusive(uint32_t sum, uint32_t lane) {
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t left = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += left;
    }
    return sum;
  }

  uint32_t list_;
  uint32_t rank_;
  uint32_t ranks_;
  uint32_t arrived_ = 0;
  uint32_t parities_ = 0;  // that end the next wait, a bit a kind of message
};

// d += codes x weights for 16 tokens (rows) and 8 query heads (columns), over all 32 codes of a token.
__forceinline__ void multiply_codes(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// 16 bytes to shared memory, past the first-level cache.
__forceinline__ void copy_16(uint32_t to, const uint8_t* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <uint32_t kLeft>
__forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
  __syncwarp();
}

// Four matrices of 8 x 8 pairs of bytes, transposed; lane l gives the address of 16 bytes.
__forceinline__ void load_transposed(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// Warps claim pieces of their CTA's positions, which they score kSelectStageUnits at a time out of rings of shared
// memory of their own, kSelectStages ahead. A load of 512 bytes, transposed by pairs of bytes, brings lane 4r + c bytes
// 2c, 2c + 1, 8 + 2c and 9 + 2c of tokens 2r and 2r + 1, of two units; sorted by token they are operands of the
// product, with channels in the order of weight_place(). A product takes the 16 tokens of a unit, all 32 codes, and 8
// query heads.
class CodeScorer {
 public:
  // The first places of codes are on their way.
  __forceinline__ void find(const SelectWork& work, const SelectKeys& keys) {
    const uint32_t even = abi::select_share(keys.count, kWarps);
    piece_ = even < 32 ? even : 32;
    next_piece_ = threadIdx.x / 32 * piece_;
    next_place_ = place_at(work, keys, next_piece_);
  }

  // And the first codes.
  __forceinline__ void fill(const SelectWork& work, const SelectKeys& keys, uint8_t* ring, uint32_t* claimed) {
    ring_ = static_cast<uint32_t>(__cvta_generic_to_shared(ring)) + threadIdx.x / 32 * (kStages * kStageBytes) +
            threadIdx.x % 32 * 16;
    codes_ = static_cast<const uint8_t*>(work.args.stats.data) + threadIdx.x % 16 * 16;
    claimed_ = claimed;
    go_on(work, keys);
#pragma unroll 1
    for (uint32_t stage = 0; stage < kStages; ++stage) issue(work, keys, stage);
  }

  // Keys of all positions of this CTA; ends with a barrier of the CTA.
  __forceinline__ void score(const SelectCta&, const SelectWork& work, const SelectQuery& query, const SelectKeys& keys,
                             SelectExtremes& extremes) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t c = lane % 4;
    const uint32_t b0 = reinterpret_cast<const uint32_t*>(query.weights)[lane];
    const uint32_t b1 = reinterpret_cast<const uint32_t*>(query.weights)[32 + lane];
    const Heads heads{{query.scale[2 * c], query.scale[2 * c + 1]},
                      {query.constant(2 * c), query.constant(2 * c + 1)},
                      {8 * query.sum[2 * c], 8 * query.sum[2 * c + 1]}};
    SelectExtremes mine{0, 0};
    uint32_t stage = 0;
#pragma unroll 1
    while (true) {
      const uint32_t at = __shfl_sync(~0u, positions_, stage);
      if (at >= keys.count) break;
      wait_for_copies<kStages - 1>();
      uint32_t words[kUnits / 2][4];
#pragma unroll
      for (uint32_t p = 0; p < kUnits / 2; ++p) load_transposed(words[p], ring_ + stage * kStageBytes + p * kPairBytes);
      __syncwarp();
      issue(work, keys, stage);
      uint32_t most[kUnits];
#pragma unroll
      for (uint32_t i = 0; i < kUnits; ++i) {
        most[i] = sums_of(words[i / 2][i % 2 * 2], words[i / 2][i % 2 * 2 + 1], b0, b1, heads);
      }
      // The greatest of all tokens. A lane goes on with half of the units each time, at last with one: bits 2, 3 and 4
      // of its number.
#pragma unroll
      for (uint32_t half = kUnits / 2, bit = 4; half > 0; half /= 2, bit *= 2) {
        const bool upper = (lane & bit) != 0;
#pragma unroll
        for (uint32_t i = 0; i < half; ++i) {
          const uint32_t other = __shfl_xor_sync(~0u, upper ? most[2 * i] : most[2 * i + 1], bit);
          most[i] = __vmaxs2(upper ? most[2 * i + 1] : most[2 * i], other);
        }
      }
      const float score = score_of(most[0], heads);
      const uint32_t position = at + lane / 4;
      if (c == 0 && position < keys.count) mine.add(keys.put(position, score));
      stage = (stage + 1) % kStages;
    }
    warp_keep_maximum(&extremes.greatest, mine.greatest);
    warp_keep_maximum(&extremes.not_least, mine.not_least);
    __syncthreads();
  }

 private:
  static constexpr uint32_t kWarps = abi::kSelectThreads / 32;
  static constexpr uint32_t kUnits = abi::kSelectStageUnits;
  static constexpr uint32_t kStages = abi::kSelectStages;
  static constexpr uint32_t kStageBytes = kUnits * abi::kCodeRecordBytes;
  static constexpr uint32_t kPairBytes = 2 * abi::kCodeRecordBytes;
  static_assert(kUnits == 8 && kStages <= 32);

  // Of the two query heads of a lane.
  struct Heads {
    float scale[2];
    float constant[2];
    int32_t middle[2];  // sum of weights times 8
  };

  // Of the lane's unit of a piece.
  __forceinline__ SelectPlace place_at(const SelectWork& work, const SelectKeys& keys, uint32_t piece) const {
    if (piece >= keys.count) return {0, 0};
    const uint32_t position = piece + threadIdx.x % 32;
    return work.place_of(work.unit_at(keys.first + (position < keys.count ? position : keys.count - 1)));
  }

  // With the next piece; the places of the one after it are on their way meanwhile.
  __forceinline__ void go_on(const SelectWork& work, const SelectKeys& keys) {
    issued_piece_ = next_piece_;
    issued_ = 0;
    if (issued_piece_ >= keys.count) return;
    record_ = work.record_of(next_place_);
    uint32_t nth = 0;
    if (threadIdx.x % 32 == 0) nth = add_to(claimed_, 1);
    next_piece_ = (kWarps + __shfl_sync(~0u, nth, 0)) * piece_;
    next_place_ = place_at(work, keys, next_piece_);
  }

  // The next kUnits units into a stage; at the end an empty group of copies.
  __forceinline__ void issue(const SelectWork& work, const SelectKeys& keys, uint32_t stage) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t position = issued_piece_ + issued_;
    if (lane == stage) positions_ = position;
    if (position < keys.count) {
      const uint32_t to = ring_ + stage * kStageBytes;
#pragma unroll
      for (uint32_t pair = 0; pair < kUnits / 2; ++pair) {
        const uint64_t record = __shfl_sync(~0u, record_, issued_ + 2 * pair + lane / 16);
        copy_16(to + pair * kPairBytes, codes_ + record * 16);
      }
      issued_ += kUnits;
      if (issued_ == piece_ || position + kUnits >= keys.count) {
        go_on(work, keys);
      }
    }
    end_copies();
  }

  // Of a unit, sums of weight * (code - 8) of this lane's two query heads, the greater of its two tokens: 16 bits each,
  // which is enough for 32 * 127 * 8. low, high: bytes 2c.. and 8 + 2c.. of both tokens.
  static __forceinline__ uint32_t sums_of(uint32_t low, uint32_t high, uint32_t b0, uint32_t b1, const Heads& heads) {
    const uint32_t one = __byte_perm(low, high, 0x6420);
    const uint32_t two = __byte_perm(low, high, 0x7531);
    int32_t d[4] = {-heads.middle[0], -heads.middle[1], -heads.middle[0], -heads.middle[1]};
    multiply_codes(d, one & 0x0f0f0f0fu, two & 0x0f0f0f0fu, one >> 4 & 0x0f0f0f0fu, two >> 4 & 0x0f0f0f0fu, b0, b1);
    return __vmaxs2(__byte_perm(d[0], d[1], 0x5410), __byte_perm(d[2], d[3], 0x5410));
  }

  // The greatest of all query heads.
  static __forceinline__ float score_of(uint32_t sums, const Heads& heads) {
    const int32_t parts[2] = {static_cast<short>(sums & 0xffffu), static_cast<int32_t>(sums) >> 16};
    float best = bits_as_float(0xff800000u);
#pragma unroll
    for (uint32_t g = 0; g < 2; ++g) {
      const int32_t sum = parts[g] + heads.middle[g];
      best = fmaxf(best, heads.constant[g] + product(heads.scale[g], static_cast<float>(sum)));
    }
    best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
    return fmaxf(best, __shfl_xor_sync(~0u, best, 2));
  }

  uint32_t* claimed_;
  const uint8_t* codes_;   // of this lane in a record
  uint32_t ring_;          // of this lane in the first stage
  uint32_t piece_;         // positions of a piece, at most 32
  uint32_t issued_piece_;  // whose codes are being asked for; none: the number of positions or more
  uint32_t issued_;        // positions of it so far
  uint32_t record_;        // of its units, by lane
  uint32_t next_piece_;
  SelectPlace next_place_;
  uint32_t positions_;  // that a stage begins with, by lane
};

}  // namespace fovea::kernels

#endif
