// What warps, CTAs and clusters of fovea_select do together, on a device: scores of units by tensor cores, sums over a
// CTA, and shared memory of each other. Included by select.cuh; tests run the rest of the kernel on the host with
// scalar code in its place.
#pragma once

#include "kernels/cache/select.cuh"

#if defined(__CUDACC_RTC__)

namespace fovea::kernels {

// A CTA of a cluster, which is one list. Before sm_90 there are no clusters: a CTA is alone.
class SelectCta : public DeviceCta {
 public:
#if __CUDA_ARCH__ >= 900
  static constexpr bool kCachesAll = true;  // the clusters of a list are as large as that takes
#else
  static constexpr bool kCachesAll = false;
#endif
  // arrived: an mbarrier a kind of message.
  __forceinline__ SelectCta(uint64_t* arrived, uint32_t ranks) : list_(blockIdx.x), rank_(0), ranks_(ranks) {
#if __CUDA_ARCH__ >= 900
    if (ranks == 1) return;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(list_));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank_));
    arrived_ = static_cast<uint32_t>(__cvta_generic_to_shared(arrived));
    if (threadIdx.x == 0) {
      for (uint32_t i = 0; i < kSelectMessages; ++i) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(arrived_ + 8 * i));
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }
  // All CTAs of the cluster may be sent to from here on: until they have received the last message, which they do
  // before they end.
  __forceinline__ void meet() const {
#if __CUDA_ARCH__ >= 900
    if (ranks_ != 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
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

  // A step without a barrier after it but that of each warp.
  template <typename Step>
  __forceinline__ void each_thread_of_warps(const Step& step) const {
    step(static_cast<uint32_t>(threadIdx.x));
    __syncwarp();
  }

  // `value` to CTA `rank` of several, where `to` is here.
  template <SelectMessage kMessage, typename T>
  __forceinline__ void send(uint32_t rank, T& to, const T& value) const {
    static_assert(sizeof(T) == 16 || sizeof(T) == 8 || sizeof(T) == 4);
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

  // use(thread, sum of the values of the threads before, value, kept) for value(thread, kept), where `kept` is a word
  // from one to the other. warp_sums: 32 words.
  template <typename Value, typename Use>
  __forceinline__ void scan(uint32_t* warp_sums, const Value& value, const Use& use) const {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = threadIdx.x / 32;
    uint32_t kept = 0;
    const uint32_t mine = value(static_cast<uint32_t>(threadIdx.x), kept);
    uint32_t sum = mine;
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t left = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += left;
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    const uint32_t of_others = __reduce_add_sync(~0u, lane < warp ? warp_sums[lane] : 0u);
    use(static_cast<uint32_t>(threadIdx.x), of_others + sum - mine, mine, kept);
    __syncthreads();
  }

  // use(word, how many of all are greater) for each of `count` words. nth: of the calls that may run side by side.
  template <typename Use>
  __forceinline__ void rank_words(const uint64_t* words, uint32_t count, uint32_t nth, const Use& use) const {
    constexpr uint32_t kEach = 8;  // lanes a word
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t warp = (threadIdx.x / 32 + nth * (abi::kSelectThreads / 64)) % (abi::kSelectThreads / 32);
#pragma unroll 1
    for (uint32_t begin = warp * (32 / kEach); begin < count; begin += abi::kSelectThreads / kEach) {
      const uint32_t i = begin + lane / kEach;
      const uint64_t word = words[i < count ? i : 0];
      uint32_t greater = 0;
#pragma unroll 4
      for (uint32_t j = lane % kEach; j < count; j += kEach) greater += words[j] > word ? 1 : 0;
#pragma unroll
      for (uint32_t bit = 1; bit < kEach; bit *= 2) greater += __shfl_xor_sync(~0u, greater, bit);
      if (i < count && lane % kEach == 0) use(word, greater);
    }
  }

 private:
#if __CUDA_ARCH__ >= 900
  static __forceinline__ uint32_t place_in(uint32_t rank, uint32_t address) {
    uint32_t place;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(address), "r"(rank));
    return place;
  }
#endif

  uint32_t list_;
  uint32_t rank_;
  uint32_t ranks_;
  uint32_t arrived_ = 0;
  uint32_t parities_ = 0;  // that end the next wait, a bit a kind of message
};

// d = 16 * codes x weights for 16 rows of a token's 32 codes and 8 query heads (columns). one: of rows 0 to 7, two: of
// rows 8 to 15; the upper halves of bytes stand 16 times too high as they are, the lower ones are put there.
__forceinline__ void multiply_codes(int32_t (&d)[4], uint32_t one, uint32_t two, uint32_t b0, uint32_t b1) {
  constexpr uint32_t kUpper = 0xf0f0f0f0u;
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %10, %10, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(one << 4 & kUpper), "r"(two << 4 & kUpper), "r"(one & kUpper), "r"(two & kUpper), "r"(b0), "r"(b1), "r"(0));
}

// 16 bytes to shared memory, past the first-level cache.
__forceinline__ void copy_16(uint32_t to, const uint8_t* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <uint32_t kLeft>
__forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
  __syncwarp();
}

// Four matrices of 8 rows of 16 bytes; lane l gives the address of a row.
__forceinline__ void load_rows(uint32_t (&words)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// Warps claim pieces of their CTA's positions, whose codes they ask for kSelectStageUnits at a time, kSelectStages
// ahead, into rings of shared memory of their own. Rows of a product are tokens t and t + 8 of the eight units of a
// stage: lane 4r + c gets bytes 4c to 4c + 3 of tokens of unit r, which are operands as they are, and keeps the
// greatest sums of its unit and of query heads 2c and 2c + 1. So nothing is shuffled before a unit has one number a
// query head.
class CodeScorer {
 public:
  // Where the lane's first unit probably stands if candidates are rescored.
  __forceinline__ void guess_at(const SelectCta& cta, const abi::SelectArgs& args) {
    const SelectShare share(args.num_candidates + 1, cta.rank(), cta.ranks());
    guessed_at_ = share.first + threadIdx.x / 32 * piece_of(share.count) + threadIdx.x % 32;
  }
  // It is on its way.
  __forceinline__ void guess(const abi::SelectArgs& args, uint32_t memory) {
    if (guessed_at_ >= args.num_candidates) return;
    guess_ = static_cast<uint32_t>(args.candidates[static_cast<uint64_t>(memory) * args.num_candidates + guessed_at_]);
  }

  // The first places of codes are on their way.
  __forceinline__ void find(const SelectWork& work, const SelectKeys& keys) {
    piece_ = piece_of(keys.count);
    next_piece_ = threadIdx.x / 32 * piece_;
    next_place_ = place_at(work, keys, next_piece_);
  }

  // And the first codes.
  __forceinline__ void fill(const SelectWork& work, const SelectKeys& keys, uint8_t* ring, uint32_t* claimed) {
    ring_ = static_cast<uint32_t>(__cvta_generic_to_shared(ring)) + threadIdx.x / 32 * (kStages * kStageBytes);
    codes_ = static_cast<const uint8_t*>(work.args.stats.data) + threadIdx.x % 16 * 16;
    claimed_ = claimed;
    issued_ = piece_;
#pragma unroll 1
    for (uint32_t stage = 0; stage < kStages; ++stage) issue(work, keys, stage);
  }

  // Keys of what this CTA scores: here and counted, or to everyone.
  __forceinline__ void score(const SelectCta& cta, const SelectWork& work, const SelectQuery& query,
                             const SelectKeys& keys, const SelectBins& bins) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t c = lane % 4;
    const Weights weights{reinterpret_cast<const uint32_t*>(query.weights)[lane],
                          reinterpret_cast<const uint32_t*>(query.weights)[32 + lane]};
    const Heads heads{{query.scale[2 * c], query.scale[2 * c + 1]}, {query.constant(2 * c), query.constant(2 * c + 1)}};
    uint32_t stage = 0;
#pragma unroll 1
    while (true) {
      const uint32_t one = __shfl_sync(~0u, positions_, stage);
      if (one >= keys.count) break;
      const uint32_t two = __shfl_sync(~0u, positions_, stage + 1);
      float scores[2];
      scores[0] = score_stage(work, keys, weights, heads, stage);
      scores[1] = two < keys.count ? score_stage(work, keys, weights, heads, stage + 1) : 0.0f;
      // The greatest of all query heads: of the first stage's units in even lanes, of the second's in odd ones.
      const bool second = c % 2 != 0;
      float score = fmaxf(second ? scores[1] : scores[0], __shfl_xor_sync(~0u, second ? scores[0] : scores[1], 1));
      score = fmaxf(score, __shfl_xor_sync(~0u, score, 2));
      const uint32_t nth = (second ? two : one) + lane / 4;
      if (nth < keys.count) put(cta, keys, bins, keys.first + nth, score, c >= 2);
      stage = (stage + 2) % kStages;
    }
  }

 private:
  // Of two lanes that come here for a position; `other` is the second.
  static __forceinline__ void put(const SelectCta& cta, const SelectKeys& keys, const SelectBins& bins,
                                  uint32_t position, float score, bool other) {
    const uint32_t key = keys.key_of(position, score);
    uint32_t& place = keys.at(position - keys.start);
    if (keys.shared) {
#pragma unroll 1
      for (uint32_t j = other ? 1 : 0; j < cta.ranks(); j += 2) cta.send<kKeysMessage>(j, place, key);
    } else if (!other) {
      place = key;
      bins.add(key);
    }
  }

  static constexpr uint32_t kWarps = abi::kSelectThreads / 32;
  static constexpr uint32_t kUnits = abi::kSelectStageUnits;
  static constexpr uint32_t kStages = abi::kSelectStages;
  static constexpr uint32_t kStageBytes = kUnits * abi::kSelectRecordRoom;
  static_assert(kUnits == 8 && kStages % 2 == 0 && kStages <= 32 && abi::kSubPageTokens == 16);

  struct Weights {
    uint32_t even;
    uint32_t odd;
  };
  // Of the two query heads of a lane.
  struct Heads {
    float scale[2];
    float constant[2];
  };

  static __forceinline__ uint32_t piece_of(uint32_t count) {
    const uint32_t even = abi::select_share(count, kWarps);
    return even < 32 ? even : 32;
  }

  // Of the lane's unit of a piece.
  __forceinline__ SelectPlace place_at(const SelectWork& work, const SelectKeys& keys, uint32_t piece) const {
    if (piece >= keys.count) return {0, 0};
    const uint32_t in_cta = piece + threadIdx.x % 32;
    const uint32_t position = keys.first + (in_cta < keys.count ? in_cta : keys.count - 1);
    const bool guessed = position == guessed_at_ && position < work.span.num_old && !work.span.scan;
    return work.place_of(guessed ? guess_ : work.unit_at(position));
  }

  // With the next piece; the places of the one after it are on their way meanwhile.
  __forceinline__ void go_on(const SelectWork& work, const SelectKeys& keys) {
    issued_piece_ = next_piece_;
    issued_ = 0;
    if (issued_piece_ >= keys.count) return;
    record_ = work.record_of(next_place_);
    const uint32_t lane = threadIdx.x % 32;
    if (keys.entries != nullptr && lane < piece_ && issued_piece_ + lane < keys.count) {
      keys.entries[issued_piece_ + lane] = work.entry_of(next_place_);
    }
    next_piece_ = keys.count;
    if (kWarps * piece_ >= keys.count) return;
    uint32_t nth = 0;
    if (lane == 0) nth = add_to(claimed_, 1);
    next_piece_ = (kWarps + __shfl_sync(~0u, nth, 0)) * piece_;
    next_place_ = place_at(work, keys, next_piece_);
  }

  // The next kUnits units into a stage; at the end an empty group of copies.
  __forceinline__ void issue(const SelectWork& work, const SelectKeys& keys, uint32_t stage) {
    if (issued_ == piece_) go_on(work, keys);
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t position = issued_piece_ + issued_;
    if (lane == stage) positions_ = position;
    if (position < keys.count) {
      const uint32_t to = ring_ + stage * kStageBytes + lane / 16 * abi::kSelectRecordRoom + lane % 16 * 16;
#pragma unroll
      for (uint32_t unit = 0; unit < kUnits; unit += 2) {
        const uint64_t record = __shfl_sync(~0u, record_, issued_ + unit + lane / 16);
        copy_16(to + unit * abi::kSelectRecordRoom, codes_ + record * 16);
      }
      issued_ = position + kUnits >= keys.count ? piece_ : issued_ + kUnits;
    }
    end_copies();
  }

  // The greater score of the lane's two query heads for unit lane / 4 of a stage, which is asked for anew.
  __forceinline__ float score_stage(const SelectWork& work, const SelectKeys& keys, const Weights& weights,
                                    const Heads& heads, uint32_t stage) {
    const uint32_t lane = threadIdx.x % 32;
    // Of matrices: tokens 0, 8, 1 and 9, then two further on each time.
    const uint32_t row = lane % 8 * abi::kSelectRecordRoom + lane / 8 % 2 * 128 + lane / 16 * 16;
    cp_async_wait<kStages - 1>();
    uint32_t words[4][4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) load_rows(words[i], ring_ + stage * kStageBytes + row + i * 32);
    __syncwarp();
    issue(work, keys, stage);
    constexpr int32_t kLeast = -(1 << 30);
    int32_t most[2] = {kLeast, kLeast};
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      int32_t d[4];
      multiply_codes(d, words[i / 2][i % 2 * 2], words[i / 2][i % 2 * 2 + 1], weights.even, weights.odd);
      most[0] = __vimax3_s32(most[0], d[0], d[2]);
      most[1] = __vimax3_s32(most[1], d[1], d[3]);
    }
    float best = bits_as_float(0xff800000u);
#pragma unroll
    for (uint32_t g = 0; g < 2; ++g) {
      best = fmaxf(best, heads.constant[g] + product(heads.scale[g], static_cast<float>(most[g] >> 4)));
    }
    return best;
  }

  uint32_t* claimed_;
  const uint8_t* codes_;  // of this lane in a record
  uint32_t ring_;         // of this warp
  uint32_t guessed_at_ = ~0u;
  uint32_t guess_ = 0;     // the unit there
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
