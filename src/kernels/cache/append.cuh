// fovea_append: writes new K and V rows to a paged pool, rotating K and queries by their positions on the way, and
// converting to what the pool stores (e4m3 with a scale a head included). Launched by attention/cuda_paged_ops.h.
//
//   Grid: append_ctas() of kAppendThreads threads, one unit a thread (abi/append_args.h); no shared memory.
//   A unit is two short runs of up to four heads: their loads are issued together, and where K rotates, the cosines and
//   sines of the runs are computed once for all four. How fast and why: docs/kernels/cache.md.
//
// Compiled for FOVEA_HEAD_DIM, FOVEA_Q_DTYPE (of k, v and q), FOVEA_KV_DTYPE (of the pool), FOVEA_VEC (append_vec())
// and FOVEA_ROTATE (0 or 1). Types are values of abi::KvDType.
#pragma once

#include "abi/append_args.h"
#include "kernels/model/rotary.cuh"
#include "kernels/ptx/vec.cuh"

namespace fovea::kernels {

// Where one head of `count` runs of a tensor starts, and how far it is to the next head; elements.
struct HeadRow {
  const void* data;
  long long element;
  long long head_stride;
};

template <uint32_t kHeadDim, KvDType kIn, KvDType kPool, uint32_t kVec, bool kRotate>
struct Append {
  static constexpr uint32_t kUnits = kHeadDim / (2 * kVec);  // a head
  static constexpr uint32_t kHeads = abi::kAppendHeads;
  static_assert(kHeadDim % (2 * kVec) == 0, "two runs a unit");

  // Both runs of the heads of a unit, as they were in memory. Heads past the end are left alone.
  struct Runs {
    Packed<kIn, kVec> first[kHeads];
    Packed<kIn, kVec> second[kHeads];
    uint32_t count;
  };

  // Cosines and sines of the pairs of a unit.
  struct Angles {
    bool rotates;
    float cosines[kVec];
    float sines[kVec];
  };

  static __forceinline__ Runs load_runs(const HeadRow& from, abi::UnitRuns at, uint32_t heads_left) {
    Runs runs;
    runs.count = heads_left < kHeads ? heads_left : kHeads;
#pragma unroll
    for (uint32_t h = 0; h < kHeads; ++h) {
      if (h < runs.count) {
        const long long element = from.element + h * from.head_stride;
        runs.first[h] = load<kIn, kVec>(from.data, element + at.first);
        runs.second[h] = load<kIn, kVec>(from.data, element + at.second);
      }
    }
    return runs;
  }

  static __forceinline__ Angles angles_of(const abi::AppendArgs& args, uint32_t row, abi::UnitRuns at) {
    Angles angles;
    angles.rotates = at.rotates;
    if (at.rotates) {
      const float position = static_cast<float>(args.rope_positions[row]);
      float inv_freq[kVec];
#pragma unroll
      for (uint32_t i = 0; i < kVec; ++i) inv_freq[i] = args.inv_freq[at.first + i];
#pragma unroll
      for (uint32_t i = 0; i < kVec; ++i) {
        const CosSin pair = rotary_cos_sin(position, inv_freq[i]);
        angles.cosines[i] = pair.cosine * args.attention_factor;
        angles.sines[i] = pair.sine * args.attention_factor;
      }
    }
    return angles;
  }

  // Rotates if kTurns, divides by the scale of the head if there are scales, converts and writes.
  template <KvDType kOut, bool kTurns>
  static __forceinline__ void write_runs(const Runs& runs, const Angles& angles, const HeadRow& to, abi::UnitRuns at,
                                         const float* scales) {
    void* base = const_cast<void*>(to.data);
#pragma unroll
    for (uint32_t h = 0; h < kHeads; ++h) {
      if (h >= runs.count) continue;
      const long long element = to.element + h * to.head_stride;
      if constexpr (kIn == kOut && !kTurns) {
        store(base, element + at.first, runs.first[h]);
        store(base, element + at.second, runs.second[h]);
      } else {
        float low[kVec], high[kVec];
        unpack(runs.first[h], low);
        unpack(runs.second[h], high);
        if (kTurns && angles.rotates) {
#pragma unroll
          for (uint32_t i = 0; i < kVec; ++i) {
            const float x = low[i], y = high[i];
            low[i] = x * angles.cosines[i] - y * angles.sines[i];
            high[i] = y * angles.cosines[i] + x * angles.sines[i];
          }
        }
        if constexpr (kOut == KvDType::kF8E4M3) {
          const float inverse = scales != nullptr ? 1.0f / scales[h] : 1.0f;
#pragma unroll
          for (uint32_t i = 0; i < kVec; ++i) {
            low[i] *= inverse;
            high[i] *= inverse;
          }
        }
        store(base, element + at.first, pack<kOut, kVec>(low));
        store(base, element + at.second, pack<kOut, kVec>(high));
      }
    }
  }

  // Query heads [head, head + kHeads) of a row.
  static __forceinline__ void rotate_queries(const abi::AppendArgs& args, uint32_t row, uint32_t head,
                                             abi::UnitRuns at) {
    const HeadRow from{args.q, row * args.q_row_stride + head * args.q_head_stride, args.q_head_stride};
    const HeadRow to{args.q_out, row * args.q_out_row_stride + head * args.q_out_head_stride, args.q_out_head_stride};
    const Runs runs = load_runs(from, at, args.num_qo_heads - head);
    write_runs<kIn, true>(runs, angles_of(args, row, at), to, at, nullptr);
  }

  // Heads [head, head + kHeads) of K or V of a row.
  template <bool kKeys>
  static __forceinline__ void append_heads(const abi::AppendArgs& args, uint32_t row, uint32_t head, abi::UnitRuns at) {
    constexpr bool kTurns = kRotate && kKeys;
    const long long row_stride = kKeys ? args.k_row_stride : args.v_row_stride;
    const long long head_stride = kKeys ? args.k_head_stride : args.v_head_stride;
    const HeadRow from{kKeys ? args.k : args.v, row * row_stride + head * head_stride, head_stride};
    const Runs runs = load_runs(from, at, args.num_kv_heads - head);  // while the slot is on its way
    const abi::AppendSlot slot = abi::append_slot(args, row);
    if (slot.target != abi::AppendTarget::kWrite) {
      if (slot.target == abi::AppendTarget::kOutOfRange && args.error != nullptr) keep_maximum(args.error, ~row);
      return;
    }
    Angles angles;
    if constexpr (kTurns) angles = angles_of(args, row, at);
    const abi::KvPoolView& pool = args.pool;
    const HeadRow to{kKeys ? pool.k : pool.v, slot.element + head * pool.head_stride, pool.head_stride};
    const void* scales = kKeys ? pool.k_scale : pool.v_scale;
    const bool scaled =
        kPool == KvDType::kF8E4M3 && pool.granularity == abi::ScaleGranularity::kHead && scales != nullptr;
    write_runs<kPool, kTurns>(runs, angles, to, at, scaled ? static_cast<const float*>(scales) + head : nullptr);
  }

  // What thread `thread` of the launch does.
  static __forceinline__ void run(const abi::AppendArgs& args, uint32_t thread) {
    const uint32_t per_row = abi::append_threads_a_row(args, kVec, kHeadDim);
    if (per_row == 0 || thread >= args.rows * per_row) return;
    const uint32_t row = thread / per_row;
    const uint32_t rest = thread - row * per_row;
    const uint32_t group = rest / kUnits;
    const uint32_t kv_groups = abi::head_groups(args.num_kv_heads);
    const abi::UnitRuns turning = abi::unit_runs(rest % kUnits, kVec, kHeadDim, kRotate ? args.rotary_dim : 0);
    if (group < kv_groups) {
      append_heads<true>(args, row, group * kHeads, turning);
    } else if (group < 2 * kv_groups) {
      append_heads<false>(args, row, (group - kv_groups) * kHeads, turning);
    } else if constexpr (kRotate) {
      rotate_queries(args, row, (group - 2 * kv_groups) * kHeads, turning);
    }
  }
};

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_HEAD_DIM)
extern "C" __global__ void __launch_bounds__(fovea::abi::kAppendThreads)
    fovea_append(const __grid_constant__ fovea::abi::AppendArgs args) {
  using fovea::abi::KvDType;
  fovea::kernels::wait_for_inputs();
  fovea::kernels::Append<FOVEA_HEAD_DIM, static_cast<KvDType>(FOVEA_Q_DTYPE), static_cast<KvDType>(FOVEA_KV_DTYPE),
                         FOVEA_VEC, FOVEA_ROTATE != 0>::run(args, blockIdx.x * blockDim.x + threadIdx.x);
}
#endif
