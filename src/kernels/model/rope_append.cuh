// fovea_rope_append: what stands between a layer's QKV product and its attention, in one launch: norms of q and k,
// rotary embedding of both, q back to where it was, k and v into the pools, in whatever format each pool stores. A warp
// takes some heads of a row, one after the other, the next four on their way meanwhile. Launched by device/cuda;
// arguments and grid in abi/op_args.h.
//
//   A lane keeps one unit of a head: the two sides of kVec pairs that rotate together, so that a rotation needs no
//   other lane, and its angles are the same in every head. Quantized formats go through shared memory, a row a warp,
//   where the Hadamard rotation and the rounding find it; the arithmetic is that of append_quantized.cuh.
//
// Compiled for FOVEA_HEAD_DIM, FOVEA_DTYPE (of qkv) and FOVEA_VEC (elements an access).
#pragma once

#include "abi/append_args.h"
#include "abi/op_args.h"
#include "kernels/cache/append_quantized.cuh"
#include "kernels/cache/codes.cuh"
#include "kernels/model/reduce.cuh"
#include "kernels/model/rotary.cuh"

namespace fovea::kernels {

template <uint32_t kHeadDim, KvDType kType, uint32_t kVec>
struct RopeAppend {
  static constexpr uint32_t kUnits = kHeadDim / (2 * kVec);
  static_assert(kHeadDim % (2 * kVec) == 0 && kUnits <= 32, "a unit a lane");

  // Of a lane: elements [first, first + kVec) and [second, second + kVec) of the head; nothing of lanes past the last.
  struct Unit {
    abi::UnitRuns at;
    bool is_there;
    float low[kVec];
    float high[kVec];
  };

  // As it lies in memory, on its way.
  struct Loaded {
    Packed<kType, kVec> low, high;
  };
  static __forceinline__ Loaded load_unit(const void* from, long long element, const abi::UnitRuns& at) {
    if (threadIdx.x % 32 >= kUnits) return {};
    return {load<kType, kVec>(from, element + at.first), load<kType, kVec>(from, element + at.second)};
  }
  static __forceinline__ Unit unit_of(const Loaded& loaded, const abi::UnitRuns& at) {
    Unit unit{at, threadIdx.x % 32 < kUnits, {}, {}};
    unpack(loaded.low, unit.low);
    unpack(loaded.high, unit.high);
    return unit;
  }

  // Squares of all heads of a projection that starts at `element`.
  static __forceinline__ float sum_of_squares(const abi::RopeAppendArgs& args, long long element, uint32_t heads) {
    float squares = 0.0f;
    for (uint32_t i = threadIdx.x % 32 * kVec; i < heads * kHeadDim; i += 32 * kVec) {
      const uint32_t head = i / kHeadDim;
      float x[kVec];
      unpack(load<kType, kVec>(args.qkv, element + head * args.head_stride + (i - head * kHeadDim)), x);
#pragma unroll
      for (uint32_t e = 0; e < kVec; ++e) squares = fma_of(x[e], x[e], squares);
    }
    return warp_sum(squares);
  }

  // Of the norms of all heads of a row together.
  struct Squares {
    float q = 0.0f, k = 0.0f;
  };
  static __forceinline__ Squares squares_of_row(const abi::RopeAppendArgs& args, long long row_element) {
    Squares all;
    if (args.does_q != 0 && args.q_norm != nullptr) all.q = sum_of_squares(args, row_element, args.num_qo_heads);
    if (args.k_norm != nullptr) {
      all.k = sum_of_squares(args, row_element + args.num_qo_heads * args.head_stride, args.num_kv_heads);
    }
    return all;
  }

  // head, heads: of the projection. of_all: squares of all of it, for a norm of all heads together.
  static __forceinline__ void normalize(const abi::RopeAppendArgs& args, const float* weight, uint32_t head,
                                        uint32_t heads, float of_all, Unit& unit) {
    float squares = of_all;
    float count = static_cast<float>(kHeadDim);
    if (args.norms_are_whole != 0) {
      count *= static_cast<float>(heads);
      weight += head * kHeadDim;
    } else {
      squares = 0.0f;
#pragma unroll
      for (uint32_t e = 0; e < kVec; ++e) squares = fma_of(unit.low[e], unit.low[e], squares);
#pragma unroll
      for (uint32_t e = 0; e < kVec; ++e) squares = fma_of(unit.high[e], unit.high[e], squares);
      squares = warp_sum(squares);
    }
    const float factor = rsqrtf(squares / count + args.norm_eps);
    if (!unit.is_there) return;
#pragma unroll
    for (uint32_t e = 0; e < kVec; ++e) {
      unit.low[e] *= factor * (weight[unit.at.first + e] + args.norm_offset);
      unit.high[e] *= factor * (weight[unit.at.second + e] + args.norm_offset);
    }
  }

  // Of a lane's pairs, times the attention factor.
  struct Angles {
    bool are_known = false;
    CosSin of[kVec];
  };

  static __forceinline__ void rotate(const abi::RopeAppendArgs& args, uint32_t row, Angles& angles, Unit& unit) {
    if (!unit.is_there || !unit.at.rotates) return;
    if (!angles.are_known) {
      const float position = static_cast<float>(args.positions[row]);
#pragma unroll
      for (uint32_t e = 0; e < kVec; ++e) {
        const CosSin pair = rotary_cos_sin(position, args.inv_freq[unit.at.first + e]);
        angles.of[e] = {pair.cosine * args.attention_factor, pair.sine * args.attention_factor};
      }
      angles.are_known = true;
    }
#pragma unroll
    for (uint32_t e = 0; e < kVec; ++e) {
      const float cosine = angles.of[e].cosine, sine = angles.of[e].sine;
      const float x = unit.low[e], y = unit.high[e];
      unit.low[e] = x * cosine - y * sine;
      unit.high[e] = y * cosine + x * sine;
    }
  }

  template <KvDType kOut>
  static __forceinline__ void write_unit(const Unit& unit, void* to, long long element) {
    if (!unit.is_there) return;
    store(to, element + unit.at.first, pack<kOut, kVec>(unit.low));
    store(to, element + unit.at.second, pack<kOut, kVec>(unit.high));
  }

  // In shared memory, in the order of the CPU (cpu/attention/quantized.h).
  static __forceinline__ void hadamard(float* head) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t half = 1; half < kHeadDim; half *= 2) {
      for (uint32_t pair = lane; pair < kHeadDim / 2; pair += 32) {
        const uint32_t i = pair / half * 2 * half + pair % half;
        const float a = head[i], b = head[i + half];
        head[i] = a + b;
        head[i + half] = a - b;
      }
      __syncwarp();
    }
    constexpr float kBy = AppendQuantized<kHeadDim, kType, KvDType::kI8, 1, false>::Row::inverse_root();
    for (uint32_t i = lane; i < kHeadDim; i += 32) head[i] *= kBy;
    __syncwarp();
  }

  template <KvDType kPool>
  static __forceinline__ void write_quantized(const float* head, uint8_t* to, abi::KvScale* scale) {
    using Format = AppendQuantized<kHeadDim, kType, kPool, 1, false>;
    const uint32_t lane = threadIdx.x % 32;
    float least = Format::kLargest, most = -Format::kLargest;
    for (uint32_t i = lane; i < kHeadDim; i += 32) {
      const float x = Format::clean(head[i]);
      least = fminf(x, least);
      most = fmaxf(x, most);
    }
    least = -warp_max(-least);
    most = warp_max(most);
    const typename Format::Scaling scaling = Format::Scaling::of(least, most);
    if (lane == 0) *scale = scaling.stored;
    for (uint32_t pair = lane; pair < kHeadDim / 2; pair += 32) {
      const uint32_t low = scaling.rounded(head[2 * pair]), high = scaling.rounded(head[2 * pair + 1]);
      if constexpr (Format::kHalfBytes) {
        to[pair] = static_cast<uint8_t>(low | high << 4);
      } else {
        reinterpret_cast<uint16_t*>(to)[pair] = static_cast<uint16_t>(low | high << 8);
      }
    }
  }

  // For the choice of pages: codes of the key as activations store it.
  static __forceinline__ void write_codes(const abi::RopeTarget& target, int32_t page, int32_t token, uint32_t head,
                                          const Unit& unit, float* scratch) {
    if (unit.is_there) {
      Unit rounded = unit;
      unpack(pack<kType, kVec>(unit.low), rounded.low);
      unpack(pack<kType, kVec>(unit.high), rounded.high);
      write_unit<KvDType::kF32>(rounded, scratch, 0);
    }
    __syncwarp();
    const uint32_t byte = threadIdx.x % 32;
    if (byte < abi::kCodeChannels / 2) {
      const uint32_t of_stats = head - static_cast<uint32_t>(target.head_begin);
      const abi::KeyCode& code = target.stats.codes[of_stats];
      const uint32_t low = code_of_key(scratch[code.channel[2 * byte]], code, 2 * byte);
      const uint32_t high = code_of_key(scratch[code.channel[2 * byte + 1]], code, 2 * byte + 1);
      *place_of_codes(target.stats, page, token, of_stats, byte) = static_cast<uint8_t>(low | high << 4);
    }
    __syncwarp();
  }

  // head: of the pool; scratch: shared memory of this warp, [kHeadDim].
  static __forceinline__ void append(const abi::RopeTarget& target, uint32_t row, uint32_t head, bool keys,
                                     const Unit& unit, float* scratch) {
    const abi::KvPoolView& pool = target.pool;
    const int32_t slot = target.slots[row];
    const int32_t page = slot / pool.page_tokens;
    if (slot < 0 || page >= pool.num_pages) return;
    const int32_t token = slot - page * pool.page_tokens;
    if (keys && target.stats.data != nullptr) write_codes(target, page, token, head, unit, scratch);
    void* const to = keys ? pool.k : pool.v;
    const long long element = page * pool.page_stride + token * pool.token_stride + head * pool.head_stride;
    switch (pool.dtype) {
      case KvDType::kF32: return write_unit<KvDType::kF32>(unit, to, element);
      case KvDType::kF16: return write_unit<KvDType::kF16>(unit, to, element);
      case KvDType::kBF16: return write_unit<KvDType::kBF16>(unit, to, element);
      default: break;
    }
    write_unit<KvDType::kF32>(unit, scratch, 0);
    __syncwarp();
    if (pool.rotated != 0) hadamard(scratch);
    abi::KvScale* const scale = static_cast<abi::KvScale*>(keys ? pool.k_scale : pool.v_scale) +
                                page * pool.scale_page_stride + head * pool.scale_head_stride + token;
    uint8_t* const bytes = static_cast<uint8_t*>(to);
    switch (pool.dtype) {
      case KvDType::kI4: return write_quantized<KvDType::kI4>(scratch, bytes + element / 2, scale);
      case KvDType::kI8: return write_quantized<KvDType::kI8>(scratch, bytes + element, scale);
      default: return write_quantized<KvDType::kF8E4M3>(scratch, bytes + element, scale);
    }
  }

  // A head of the row, and where it goes.
  struct Head {
    const abi::RopeTarget* target;  // null: q
    uint32_t head;                  // of the projection
    bool keys;
    long long element;  // of qkv
  };

  static __forceinline__ Head head_of(const abi::RopeAppendArgs& args, long long row_element, uint32_t part) {
    const uint32_t queries = args.does_q != 0 ? args.num_qo_heads : 0;
    if (part < queries) return {nullptr, part, false, row_element + part * args.head_stride};
    part -= queries;
    const abi::RopeTarget* target = args.targets;
    uint32_t heads = static_cast<uint32_t>(target->head_end - target->head_begin);
    while (part >= 2 * heads) {
      part -= 2 * heads;
      ++target;
      heads = static_cast<uint32_t>(target->head_end - target->head_begin);
    }
    const bool keys = part < heads;
    const uint32_t head = static_cast<uint32_t>(target->head_begin) + (keys ? part : part - heads);
    const uint32_t first = args.num_qo_heads + (keys ? 0 : args.num_kv_heads);
    return {target, head, keys, row_element + (first + head) * args.head_stride};
  }

  static __forceinline__ void run(const abi::RopeAppendArgs& args, float* scratch) {
    const uint32_t heads = abi::rope_heads_a_row(args);
    const uint32_t warp = blockIdx.x * abi::kRopeWarps + threadIdx.x / 32;
    const uint32_t row = warp / args.warps_a_row;
    if (row >= args.rows) return;
    const uint32_t a_warp = (heads + args.warps_a_row - 1) / args.warps_a_row;
    const uint32_t begin = (warp - row * args.warps_a_row) * a_warp, end = min(begin + a_warp, heads);
    const long long row_element = row * args.row_stride;
    Squares squares;
    if (args.norms_are_whole != 0) {
      // Before any warp of the row, which is this CTA's, writes its heads back.
      squares = squares_of_row(args, row_element);
      __syncthreads();
    }
    const abi::UnitRuns runs = abi::unit_runs(threadIdx.x % 32, kVec, kHeadDim, args.rotary_dim);
    const auto load_part = [&](uint32_t part) -> Loaded {
      if (part >= end) return {};
      return load_unit(args.qkv, head_of(args, row_element, part).element, runs);
    };
    constexpr uint32_t kAhead = 4;
    Loaded ahead[kAhead];
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i) ahead[i] = load_part(begin + i);
    Angles angles;
#pragma unroll 1
    for (uint32_t part = begin; part < end; ++part) {
      const Head at = head_of(args, row_element, part);
      Unit unit = unit_of(ahead[0], runs);
#pragma unroll
      for (uint32_t i = 0; i + 1 < kAhead; ++i) ahead[i] = ahead[i + 1];
      ahead[kAhead - 1] = load_part(part + kAhead);
      if (at.target == nullptr) {
        if (args.q_norm != nullptr) normalize(args, args.q_norm, at.head, args.num_qo_heads, squares.q, unit);
        rotate(args, row, angles, unit);
        write_unit<kType>(unit, args.qkv, at.element);
        continue;
      }
      if (at.keys) {
        if (args.k_norm != nullptr) normalize(args, args.k_norm, at.head, args.num_kv_heads, squares.k, unit);
        rotate(args, row, angles, unit);
      }
      append(*at.target, row, at.head, at.keys, unit, scratch);
      __syncwarp();  // scratch is the next head's
    }
  }
};

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_ROPE_APPEND)
extern "C" __global__ void __launch_bounds__(fovea::abi::kRopeWarps * 32)
    fovea_rope_append(const __grid_constant__ fovea::abi::RopeAppendArgs args) {
  __shared__ float scratch[fovea::abi::kRopeWarps][FOVEA_ROPE_HEAD_DIM];
  fovea::kernels::wait_for_inputs();
  fovea::kernels::RopeAppend<FOVEA_ROPE_HEAD_DIM, static_cast<fovea::abi::KvDType>(FOVEA_DTYPE), FOVEA_VEC>::run(
      args, scratch[threadIdx.x / 32]);
}
#endif
