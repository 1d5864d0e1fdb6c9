// Items of many rows, or of few rows and many tokens, under one warpgroup: 64 rows against the 64 tokens of a stage by
// wgmma, so that keys and values leave shared memory once for 64 rows and not for 16. The state is that of the other
// executor (attention/slice.cuh), 16 rows a warp. Used by prefix_forest/units.cuh.
#pragma once

#include "kernels/attention/general/consumer.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace fovea::attention::prefix_forest {

inline constexpr uint32_t kGroupWarps = 4;
inline constexpr uint32_t kGroupThreads = 32 * kGroupWarps;

// Which instantiations there are, and for which variants, says tune::AttentionChoice::shared_header: 16-bit KV whose
// rows are whole 128-byte panels; logits that are plain products and no hooks on queries and outputs, which would
// spill.
static_assert(Variant::kSoftmax && !Variant::kHasLogit && !Variant::kHasVisible && !Variant::kHasQuery &&
              !Variant::kHasOutput && !kTransformsKv);
static_assert(FOVEA_ARCH >= 900 && kElementBits == 16 && (kHeadDim == 64 || kHeadDim == 128) && kBoxTokens >= 16);
static_assert(kConsumerWarps == 8 && kStageTokens == 64 && kPanelBytes == 128);

// Zeros in the values of the stage's tokens outside of the run, whose memory may hold NaN: P is 0 there. By a
// warpgroup; barrier: of its threads.
__device__ __forceinline__ void clear_values(uint8_t* v_tile, const Work& work, uint32_t stage_token, uint32_t thread,
                                             uint32_t barrier) {
  constexpr uint32_t kChunks = kRowBytes / 16;
  for (uint32_t i = thread; i < kStageTokens * kChunks; i += kGroupThreads) {
    const uint32_t token = stage_token + i / kChunks;
    if (token >= work.begin && token < work.end) continue;
    *reinterpret_cast<uint4*>(v_tile + StageTile::chunk(i / kChunks, i % kChunks)) = uint4{0, 0, 0, 0};
  }
  ptx::fence_before_async_copies();
  ptx::barrier_sync(barrier, kGroupThreads);
}

// logits = Q K^T: 8 tokens in four registers, the lane's rows as in mma_16816's C.
__device__ __forceinline__ void multiply_keys_wide(const Queries& q, uint32_t k_tile,
                                                   float (&logits)[kBoxes][kBoxTokens / 2]) {
  unrolled<0, kBlocks>([&]<int b>() {
    uint32_t a[4];
    q.get<b>(a);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const uint32_t at = k_tile + box * kBoxBytes + b / 4 * StageTile::kPanelStride + b % 4 * 32;
      ptx::wgmma<kMmaBf16, false>(logits[box], a, ptx::wgmma_matrix(at), b == 0);
    }
  });
}

// state.o += P V.
__device__ __forceinline__ void multiply_values_wide(State& state, const uint32_t (&p)[kSlices][4], uint32_t v_tile) {
  auto& o = reinterpret_cast<float(&)[kHeadDim / 2]>(state.o);
#pragma unroll
  for (int s = 0; s < kSlices; ++s) {
    constexpr int kPerBox = kBoxTokens / kSliceTokens;
    const uint32_t at = v_tile + s / kPerBox * kBoxBytes + s % kPerBox * kSliceTokens * kPanelBytes;
    ptx::wgmma<kMmaBf16, true>(o, p[s], ptx::wgmma_matrix(at, StageTile::kPanelStride), 0);
  }
}

// Logits become P, the state's maxima and sums move on. partial: some token of the stage is outside of the run.
__device__ __forceinline__ void softmax_wide(const Work& work, const Queries& q, State& state,
                                             float (&x)[kStageTokens / 2], uint32_t stage_token, bool partial,
                                             uint32_t lane) {
#pragma unroll
  for (int i = 0; i < kStageTokens / 2; ++i) x[i] *= q.scale[kScaleRows ? i / 2 % 2 : 0];
  if (partial) {
#pragma unroll
    for (int i = 0; i < kStageTokens / 2; ++i) {
      const uint32_t token = stage_token + i / 4 * 8 + 2 * (lane & 3) + i % 2;
      if (token < work.begin || token >= work.end) x[i] = kMinusInf;
    }
  }
  const auto most_of = [&](int h) {
    float most = kMinusInf;
#pragma unroll
    for (int n = 0; n < kStageTokens / 8; ++n) most = fmaxf(most, fmaxf(x[4 * n + 2 * h], x[4 * n + 2 * h + 1]));
    return most;
  };
  float shift[2];
  raise(state, most_of, shift);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float even = 0.0f;
    float odd = 0.0f;
#pragma unroll
    for (int n = 0; n < kStageTokens / 8; ++n) {
      x[4 * n + 2 * h] = ptx::exp2_approx(x[4 * n + 2 * h] - shift[h]);
      x[4 * n + 2 * h + 1] = ptx::exp2_approx(x[4 * n + 2 * h + 1] - shift[h]);
      even += x[4 * n + 2 * h];
      odd += x[4 * n + 2 * h + 1];
    }
    state.sum[h] += even + odd;
  }
}

// All stages of an item for the 64 rows of a warpgroup. arrivals: of each warp, a stage.
__device__ __forceinline__ void run_wide(const Work& work, const Queries& q, State& state, SharedMemory& shared,
                                         const Stages& stages, uint32_t arrivals) {
  const uint32_t lane = work.lane;
  const uint32_t barrier = 2 + work.warp / kGroupWarps, thread = work.warp % kGroupWarps * 32 + lane;
  for (uint32_t k = 0; k < stages.count; ++k) {
    const RingSlot<kStages> slot(stages.use + k);
    wait_for_stage(shared, slot.index, slot.parity, stages.use + k);
    // What threads copied is not yet visible to the products; what TMA brought is.
    if constexpr (!kTma) ptx::fence_before_async_copies();
    const uint32_t stage_token = stages.base + k * kStageTokens;
    const bool partial = stage_token < work.begin || stage_token + kStageTokens > work.end;
    const uint32_t k_tile = ptx::smem_address(shared.kv[slot.index][0]);
    if (partial) clear_values(shared.kv[slot.index][1], work, stage_token, thread, barrier);
    __syncwarp();
    float x[kStageTokens / 2];
    ptx::wgmma_fence();
    multiply_keys_wide(q, k_tile, reinterpret_cast<float(&)[kBoxes][kBoxTokens / 2]>(x));
    ptx::wgmma_commit();
    ptx::wgmma_wait_all();
    softmax_wide(work, q, state, x, stage_token, partial, lane);
    uint32_t p[kSlices][4];
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[s][i] = ptx::pack2<kMmaBf16>(x[8 * s + 2 * i], x[8 * s + 2 * i + 1]);
    }
    ptx::wgmma_fence();
    multiply_values_wide(state, p, k_tile + kTileBytes);
    ptx::wgmma_commit();
    ptx::wgmma_wait_all();
    __syncwarp();
    ptx::mbarrier_arrive_warp(ptx::smem_address(&shared.empty[slot.index]), arrivals, lane);
  }
}

}  // namespace fovea::attention::prefix_forest
