// How the kernels read one row of keys or values: a format per storage type, with the transposition of a block of keys
// to fp32, and the expansion of quantized rows to bf16. Included once per SIMD target.
#if defined(FOVEA_CPU_ATTENTION_KV_FORMAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_CPU_ATTENTION_KV_FORMAT_INL_H_
#undef FOVEA_CPU_ATTENTION_KV_FORMAT_INL_H_
#else
#define FOVEA_CPU_ATTENTION_KV_FORMAT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>

#include "cpu/attention/convert.h"
#include "cpu/attention/math_inl.h"

#undef FOVEA_ATTENTION_SCALAR
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
#define FOVEA_ATTENTION_SCALAR 1
#else
#define FOVEA_ATTENTION_SCALAR 0
#endif

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

// A format's load2 reads 2N elements as two vectors, in whatever lane order is cheapest; store2 puts two such vectors
// of floats back in the order of the elements. load1 reads N elements in order.
struct FormatF32 {
  using T = float;
  static constexpr int kPerWord = 1;        // elements in 32 bits
  static constexpr bool kPackWords = true;  // packed keys are words as stored, not fp32
  static HWY_INLINE void load2(const T* p, VF& a, VF& b) {
    const DF d;
    a = hn::LoadU(d, p);
    b = hn::LoadU(d, p + hn::Lanes(d));
  }
  static HWY_INLINE VF load1(const T* p) { return hn::LoadU(DF(), p); }
  static HWY_INLINE void store2(VF a, VF b, float* p) {
    const DF d;
    hn::StoreU(a, d, p);
    hn::StoreU(b, d, p + hn::Lanes(d));
  }
  static HWY_INLINE void expand(hn::Vec<DU> word, VF& first, VF&) { first = hn::BitCast(DF(), word); }
};

struct FormatBF16 {
  using T = uint16_t;
  static constexpr int kPerWord = 2;
  static constexpr bool kPackWords = true;
  // Even elements, odd elements: one 64-byte load and two integer operations.
  static HWY_INLINE void load2(const T* p, VF& even, VF& odd) {
    const DU du;
    expand(hn::LoadU(du, reinterpret_cast<const uint32_t*>(p)), even, odd);
  }
  static HWY_INLINE VF load1(const T* p) {
    const DU du;
    const hn::Rebind<uint16_t, DU> half;
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(half, p))));
  }
  static HWY_INLINE void store2(VF even, VF odd, float* p) { hn::StoreInterleaved2(even, odd, DF(), p); }
  static HWY_INLINE void expand(hn::Vec<DU> words, VF& even, VF& odd) {
    const DU du;
    even = hn::BitCast(DF(), hn::ShiftLeft<16>(words));
    odd = hn::BitCast(DF(), hn::And(words, hn::Set(du, 0xffff0000u)));
  }
};

struct FormatF16 {
  using T = uint16_t;
  static constexpr int kPerWord = 2;
  static constexpr bool kPackWords = false;  // converting costs more than a shift, so it is done once
  static HWY_INLINE VF load1(const T* p) {
    const DF d;
#if FOVEA_ATTENTION_SCALAR
    // Highway's own conversion takes infinity and NaN for large numbers here.
    HWY_ALIGN float x[hn::MaxLanes(d)];
    for (size_t i = 0; i < hn::Lanes(d); ++i) x[i] = scalar(p[i]);
    return hn::Load(d, x);
#else
    const hn::Rebind<hwy::float16_t, DF> half;
    const hn::Rebind<uint16_t, DF> half_bits;
    return hn::PromoteTo(d, hn::BitCast(half, hn::LoadU(half_bits, p)));
#endif
  }
  static HWY_INLINE void load2(const T* p, VF& a, VF& b) {
    a = load1(p);
    b = load1(p + hn::Lanes(DF()));
  }
  static HWY_INLINE void store2(VF a, VF b, float* p) { FormatF32::store2(a, b, p); }
  static HWY_INLINE float scalar(T x) { return float_of_f16(x); }
#if !FOVEA_ATTENTION_SCALAR
  static HWY_INLINE void expand(hn::Vec<DU> words, VF& even, VF& odd) {
    const DU du;
    const hn::Rebind<hwy::float16_t, DF> half;
    const hn::Rebind<uint16_t, DU> half_bits;
    even = hn::PromoteTo(DF(), hn::BitCast(half, hn::TruncateTo(half_bits, hn::And(words, hn::Set(du, 0xffffu)))));
    odd = hn::PromoteTo(DF(), hn::BitCast(half, hn::TruncateTo(half_bits, hn::ShiftRight<16>(words))));
  }
#endif
};

#if !FOVEA_ATTENTION_SCALAR
// 4x4 transposition inside each 16-byte block: lane (b, j) of v[i] becomes lane (b, i) of v[j].
HWY_INLINE void transpose_blocks(hn::Vec<DU>* v) {
  const DU du;
  const hn::Repartition<uint64_t, DU> dw;
  const auto a0 = hn::BitCast(dw, hn::InterleaveLower(du, v[0], v[1]));
  const auto a1 = hn::BitCast(dw, hn::InterleaveUpper(du, v[0], v[1]));
  const auto a2 = hn::BitCast(dw, hn::InterleaveLower(du, v[2], v[3]));
  const auto a3 = hn::BitCast(dw, hn::InterleaveUpper(du, v[2], v[3]));
  v[0] = hn::BitCast(du, hn::InterleaveLower(dw, a0, a2));
  v[1] = hn::BitCast(du, hn::InterleaveUpper(dw, a0, a2));
  v[2] = hn::BitCast(du, hn::InterleaveLower(dw, a1, a3));
  v[3] = hn::BitCast(du, hn::InterleaveUpper(dw, a1, a3));
}

// Words [0, 8) at `offset` of as many rows as a vector has lanes, transposed: lane t of out[w] is word w of rows[t].
HWY_INLINE void load_transposed(const void* const* rows, size_t offset, hn::Vec<DU> (&out)[8]) {
  const DU du;
  const auto at = [&](int t) { return static_cast<const uint8_t*>(rows[t]) + offset; };
#if HWY_TARGET <= HWY_AVX3
  // Half a vector a row, rows j and j + 8 in one: fewer and wider loads than blocks of 16 bytes, for one more shuffle.
  for (int j = 0; j < 8; ++j) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at(j)));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at(j + 8)));
    out[j] = hn::Vec<DU>{_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)};
  }
  transpose_blocks(out);
  transpose_blocks(out + 4);
  const __m512i even_blocks = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
  const __m512i odd_blocks = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
  for (int w = 0; w < 4; ++w) {
    const __m512i first = out[w].raw, second = out[w + 4].raw;
    out[w] = hn::Vec<DU>{_mm512_permutex2var_epi64(first, even_blocks, second)};
    out[w + 4] = hn::Vec<DU>{_mm512_permutex2var_epi64(first, odd_blocks, second)};
  }
  (void)du;
#else
  const hn::Half<DU> half;
  const auto load = [&](int t, int word) {
    return hn::LoadU(half, reinterpret_cast<const uint32_t*>(at(t) + 4 * word));
  };
  for (int w = 0; w < 8; w += 4) {
    for (int j = 0; j < 4; ++j) out[w + j] = hn::Combine(du, load(j + 4, w), load(j, w));
    transpose_blocks(out + w);
  }
#endif
}
#endif

// Fetches the cache line at rows + offset to the second level: by the time it is used, the first level, which the
// packed keys fill, would have lost it.
HWY_INLINE void prefetch(const void* row, size_t offset) {
  __builtin_prefetch(static_cast<const uint8_t*>(row) + offset, 0, 2);
}
inline constexpr int kLineWords = 16;

// Transposes the keys of a block: word w (32 bits, one or two elements) of token t goes to block[w * kBlockTokens + t],
// or, for a format that is converted here, element d as fp32 to block[d * kBlockTokens + t]. Tokens are filled up to
// whole vectors: rows has kBlockTokens pointers, all of them readable; `ahead` as many, of which every ahead_step-th
// cache line is prefetched.
template <class Format>
HWY_NOINLINE void pack_keys(const void* const* rows, const void* const* ahead, int ahead_step, int tokens, int head_dim,
                            uint32_t* HWY_RESTRICT block) {
  using T = typename Format::T;
  const int words = head_dim / Format::kPerWord;
#if FOVEA_ATTENTION_SCALAR
  const int filled = (tokens + 7) / 8 * 8;
  for (int t = 0; t < filled; ++t) {
    if constexpr (Format::kPackWords) {
      for (int w = 0; w < words; ++w) {
        std::memcpy(block + w * kBlockTokens + t, static_cast<const uint8_t*>(rows[t]) + 4 * w, 4);
      }
    } else {
      for (int d = 0; d < head_dim; ++d) {
        const float x = Format::scalar(static_cast<const T*>(rows[t])[d]);
        std::memcpy(block + d * kBlockTokens + t, &x, 4);
      }
    }
  }
#else
  const DU du;
  const int lanes = static_cast<int>(hn::Lanes(du));
  for (int t = 0; t < tokens; t += lanes) {
    for (int w = 0; w < words; w += 8) {
      if (w % (kLineWords * ahead_step) == 0) {
        for (int j = 0; j < lanes; ++j) prefetch(ahead[t + j], static_cast<size_t>(w) * 4);
      }
      hn::Vec<DU> v[8];
      load_transposed(rows + t, static_cast<size_t>(w) * 4, v);
      constexpr int kRowsAWord = Format::kPackWords ? 1 : Format::kPerWord;
      uint32_t* to = block + static_cast<size_t>(w) * kRowsAWord * kBlockTokens + t;
      for (int i = 0; i < 8; ++i) {
        if constexpr (Format::kPackWords) {
          hn::Store(v[i], du, to);
          to += kBlockTokens;
        } else {
          VF even, odd;
          Format::expand(v[i], even, odd);
          hn::Store(hn::BitCast(du, even), du, to);
          hn::Store(hn::BitCast(du, odd), du, to + kBlockTokens);
          to += 2 * kBlockTokens;
        }
      }
    }
  }
#endif
}

// Two neighbouring stored numbers of a quantized type, as bf16 in one word; exact. pairs: what Pair types N lanes hold.
struct CodesI8 {
  using Pair = uint16_t;
  static HWY_INLINE hn::Vec<DU> expand(hn::Vec<DU> pairs) {
    return join(hn::And(pairs, hn::Set(DU(), 0xffu)), hn::ShiftRight<8>(pairs), static_cast<float>(abi::kI8Bias));
  }
  // Integers become floats by standing in the low bits of 2^23; those below 257 have their low half clear.
  static HWY_INLINE hn::Vec<DU> join(hn::Vec<DU> even, hn::Vec<DU> odd, float bias) {
    const DU du;
    const DF d;
    const auto two23 = hn::Set(du, 0x4b000000u);
    const auto shift = hn::Set(d, 8388608.0f + bias);
    const auto low = hn::Sub(hn::BitCast(d, hn::Or(even, two23)), shift);
    const auto high = hn::Sub(hn::BitCast(d, hn::Or(odd, two23)), shift);
    return hn::Or(hn::ShiftRight<16>(hn::BitCast(du, low)), hn::BitCast(du, high));
  }
};
struct CodesI4 {
  using Pair = uint8_t;
  static HWY_INLINE hn::Vec<DU> expand(hn::Vec<DU> pairs) {
    return CodesI8::join(hn::And(pairs, hn::Set(DU(), 0xfu)), hn::ShiftRight<4>(pairs),
                         static_cast<float>(abi::kI4Bias));
  }
};
struct CodesE4M3 {
  using Pair = uint16_t;
  static HWY_INLINE hn::Vec<DU> expand(hn::Vec<DU> pairs) {
    return hn::Or(hn::ShiftRight<16>(one(hn::And(pairs, hn::Set(DU(), 0xffu)))), one(hn::ShiftRight<8>(pairs)));
  }
  // The exponent moves to fp32's place, a product corrects its bias (7 to 127) and subnormals.
  static HWY_INLINE hn::Vec<DU> one(hn::Vec<DU> x) {
    const DU du;
    const DF d;
    const auto size = hn::And(x, hn::Set(du, 0x7fu));
    const auto scaled = hn::BitCast(du, hn::Mul(hn::BitCast(d, hn::ShiftLeft<20>(size)), hn::Set(d, 0x1p120f)));
    const auto nan = hn::VecFromMask(du, hn::Eq(size, hn::Set(du, 0x7fu)));
    const auto sign = hn::ShiftLeft<24>(hn::And(x, hn::Set(du, 0x80u)));
    return hn::Or(hn::Or(scaled, sign), hn::And(nan, hn::Set(du, 0x7fc00000u)));
  }
};

// Replaces the rows of a block (as BlockWalk gives them) by rows of bf16 at `to`; of `ahead`, cache lines are fetched.
template <class Codes>
HWY_NOINLINE void expand_block(const void** rows, const void* const* ahead, int tokens, int head_dim,
                               uint16_t* HWY_RESTRICT to) {
  using Pair = typename Codes::Pair;
  const DU du;
  const hn::Rebind<Pair, DU> dp;
  const int lanes = static_cast<int>(hn::Lanes(du));
  const int pairs = head_dim / 2;
  const size_t row_bytes = static_cast<size_t>(pairs) * sizeof(Pair);
  for (int t = 0; t < tokens; ++t, to += head_dim) {
    const Pair* from = static_cast<const Pair*>(rows[t]);
    rows[t] = to;
    for (size_t line = 0; line < row_bytes; line += 64) prefetch(ahead[t], line);
    const auto at = [&](int i) { return reinterpret_cast<uint32_t*>(to) + i; };
    int i = 0;
    for (; i + lanes <= pairs; i += lanes) {
      hn::StoreU(Codes::expand(hn::PromoteTo(du, hn::LoadU(dp, from + i))), du, at(i));
    }
    if (i < pairs) {  // half a vector, of a head dim of an odd number of them
      HWY_ALIGN Pair last[hn::MaxLanes(du)] = {};
      HWY_ALIGN uint32_t words[hn::MaxLanes(du)];
      std::memcpy(last, from + i, static_cast<size_t>(pairs - i) * sizeof(Pair));
      hn::Store(Codes::expand(hn::PromoteTo(du, hn::Load(dp, last))), du, words);
      std::memcpy(at(i), words, static_cast<size_t>(pairs - i) * sizeof(uint32_t));
    }
  }
  for (int t = tokens; t < kBlockTokens; ++t) rows[t] = rows[tokens - 1];
}

// KvScale words of a block to fp32.
HWY_INLINE void expand_scales(const uint32_t* words, float* scale, float* zero) {
#if FOVEA_ATTENTION_SCALAR
  for (int t = 0; t < kBlockTokens; ++t) {
    scale[t] = float_of_f16(static_cast<uint16_t>(words[t]));
    zero[t] = float_of_f16(static_cast<uint16_t>(words[t] >> 16));
  }
#else
  const DF d;
  for (int t = 0; t < kBlockTokens; t += static_cast<int>(hn::Lanes(d))) {
    VF scales, zeros;
    FormatF16::expand(hn::Load(DU(), words + t), scales, zeros);
    hn::Store(scales, d, scale + t);
    hn::Store(zeros, d, zero + t);
  }
#endif
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FOVEA_CPU_ATTENTION_KV_FORMAT_INL_H_
