// A warp's arithmetic on a step of 16 tokens (fp8: two slices of 16) whose keys and values come straight from memory
// into registers, as the operands of the products: no shared memory, no barrier, no loader. The dims of a product's
// inner dimension may stand in any order and so may the dims of its outputs: lanes load 16 neighbouring bytes, which
// are operands as they are (keys) or after one `prmt` of two tokens' words (values), fp8 after its conversion to
// halves. Softmax is that of kernels/attention/warp_per_worker.
//
// Lane l, r = l / 4, c = l % 4. Keys: tokens r and r + 8, chunks of 16 bytes c, c + 4, ..; values: tokens 2c, 2c + 1,
// 2c + 8 and 2c + 9, chunks r, r + 8, .. (rows of 64 bytes: chunks of 8); outputs: rows 2c and 2c + 1, the dims of the
// values' chunks.
#pragma once

#include "kernels/attention/pages.cuh"
#include "kernels/attention/warp_per_worker/slice.cuh"

namespace fovea::attention::low_batch {

using warp_per_worker::Place;
using State = warp_per_worker::BlockState;

inline constexpr uint32_t kSlices = warp_per_worker::kSlotSlices;  // of 16 tokens, in a step
inline constexpr uint32_t kTokens = 16 * kSlices;                  // of a step
inline constexpr uint32_t kRows = 8;                               // (query token, query head) rows of an item at most
inline constexpr int kKeyChunks = kRowBytes / 64;
inline constexpr int kValueChunks = kRowBytes < 128 ? 1 : kRowBytes / 128;
inline constexpr int kValueWords = kRowBytes < 128 ? 2 : 4;  // of a chunk
static_assert(kKeyChunks >= 1 && kRowBytes % 64 == 0 && kTokens <= 32);
inline constexpr bool kLooksAhead = kFp8;
static_assert(kFp8 ? !kTokenScales : kQueryBf16 == kMmaBf16);

struct Keys {
  uint32_t of[kSlices][2][kKeyChunks][4];  // of tokens r and r + 8
};
struct Values {
  uint32_t of[kSlices][4][kValueChunks][kValueWords];  // of tokens 2c, 2c + 1, 2c + 8 and 2c + 9
};

// Not kept in the first-level cache.
__device__ __forceinline__ void load_once(const uint8_t* from, uint32_t (&x)[4]) {
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ void load_once(const uint8_t* from, uint32_t (&x)[2]) {
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "l"(from) : "memory");
}

// Where 32 tokens' rows lie in the pool, a lane each: of the window that steps are loaded from; and the page entries of
// the window behind it, which are on their way. fp8: rows of the window behind too, and the entries of the third.
class Window {
 public:
  // [token, end): that the warp loads, of which the query sees some; token a multiple of the step.
  __device__ __forceinline__ Window(const abi::AttentionArgs& args, uint32_t list_begin, const Place& place,
                                    uint32_t head, uint32_t token, uint32_t end, uint32_t lane)
      : list_(args.page_entries + list_begin),
        begin_(place.begin),
        last_(min(place.end, end) - 1),
        head_(head),
        next_(token),
        lane_(lane) {
    load(args);
    const int32_t page = page_;
    const uint32_t in_page = in_page_;
    next_ += 32;
    load(args);
    row_ = row_of(args, page, in_page);
  }

  // Behind the loads of a step that fills its window: finds the rows of the window behind, and asks the L2 for a few of
  // them, so that more bytes are on their way than registers hold.
  __device__ __forceinline__ void look_ahead(const abi::AttentionArgs& args) {
    static_assert(!kLooksAhead || kTokens == 32);
    if constexpr (kLooksAhead) {
      next_row_ = row_of(args, page_, in_page_);
      // Where lists are read late, nothing was asked for before the kernels ahead had ended.
      const uint32_t one_of = args.lists_fixed ? 8 : 4;
      if (lane_ % one_of == 0 && next_ <= last_) {
        ptx::prefetch_l2(static_cast<const uint8_t*>(args.pool.k) + next_row_);
        ptx::prefetch_l2(static_cast<const uint8_t*>(args.pool.v) + next_row_);
      }
      next_ += 32;
      load(args);
      next_ -= 32;
    }
  }
  // token: of the step that is loaded next.
  __device__ __forceinline__ void move_to(const abi::AttentionArgs& args, uint32_t token) {
    if (token < next_) return;
    if constexpr (kLooksAhead) {
      row_ = next_row_;
      next_ += 32;
    } else {
      row_ = row_of(args, page_, in_page_);
      next_ += 32;
      load(args);
    }
  }

  // Byte offset of a token's row; token: of the window.
  __device__ __forceinline__ uint64_t row(uint32_t token) const { return __shfl_sync(~0u, row_, (token - next_) & 31); }

 private:
  // Of the lane's token of window next_. Tokens that the warp does not load or the query does not see take the place of
  // the nearest one for which neither is so.
  __device__ __forceinline__ void load(const abi::AttentionArgs& args) {
    const uint32_t token = min(max(next_ + lane_, begin_), last_);
    const uint32_t entry_tokens = static_cast<uint32_t>(args.pool.entry_tokens);
    const uint32_t entry = token / entry_tokens;
    page_ = list_[entry];
    in_page_ = token - entry * entry_tokens;
  }
  __device__ __forceinline__ uint64_t row_of(const abi::AttentionArgs& args, long long page, long long in_page) const {
    find_page(args.pool, page, in_page);
    return pool_row(args.pool, head_, page, in_page);
  }

  const int32_t* list_;
  uint32_t begin_, last_, head_;
  uint32_t next_;  // token of lane 0 in the window behind
  uint32_t lane_;
  int32_t page_ = 0;  // of the entries on their way
  uint32_t in_page_ = 0;
  uint64_t row_ = 0;
  uint64_t next_row_ = 0;
};

// Asks the L2 for the rows of a step's keys and values. A hint: nothing is read, so it may come before kernels have
// ended that write some of them.
__device__ __forceinline__ void prefetch_step(const abi::AttentionArgs& args, const Window& window, uint32_t token,
                                              uint32_t lane) {
  constexpr uint32_t kLine = 128;
  constexpr uint32_t kLines = kRowBytes < 128 ? 1 : kRowBytes / kLine;
  constexpr uint32_t kLanes = 32 / kTokens;  // a row
  static_assert(kLines <= kLanes);
  const uint64_t at = window.row(token + lane / kLanes) + lane % kLines * kLine;
  ptx::prefetch_l2(static_cast<const uint8_t*>(args.pool.k) + at);
  ptx::prefetch_l2(static_cast<const uint8_t*>(args.pool.v) + at);
}

// window: holds the step, whose first token is `token`.
__device__ __forceinline__ void load_keys(const abi::AttentionArgs& args, const Window& window, uint32_t token,
                                          uint32_t lane, Keys& keys) {
  const uint8_t* const k = static_cast<const uint8_t*>(args.pool.k) + 16 * (lane & 3);
#pragma unroll
  for (uint32_t i = 0; i < 2 * kSlices; ++i) {
    const uint8_t* const row = k + window.row(token + lane / 4 + 8 * i);
#pragma unroll
    for (int j = 0; j < kKeyChunks; ++j) load_once(row + 64 * j, keys.of[i / 2][i % 2][j]);
  }
}

__device__ __forceinline__ void load_values(const abi::AttentionArgs& args, const Window& window, uint32_t token,
                                            uint32_t lane, Values& values) {
  const uint8_t* const v = static_cast<const uint8_t*>(args.pool.v) + 4 * kValueWords * (lane / 4);
#pragma unroll
  for (uint32_t i = 0; i < 4 * kSlices; ++i) {
    const uint8_t* const row = v + window.row(token + 2 * (lane & 3) + i % 2 + i / 2 * 8);
#pragma unroll
    for (int j = 0; j < kValueChunks; ++j) load_once(row + 128 * j, values.of[i / 4][i % 4][j]);
  }
}

// The lane's part of the queries as the products with keys take it: row r, the dims of the keys' chunks.
struct Queries {
  uint32_t of[kHeadDim / 8];
};
__device__ __forceinline__ Queries load_queries(const abi::AttentionArgs& args, uint32_t q_row, uint32_t first_head,
                                                uint32_t group, uint32_t lane) {
  Queries q;
  const uint32_t row = lane / 4;
  const auto* const from = static_cast<const uint16_t*>(args.q) + static_cast<long long>(q_row) * args.q_row_stride +
                           static_cast<long long>(first_head + row) * args.q_head_stride + (kFp8 ? 16 : 8) * (lane & 3);
#pragma unroll
  for (int n = 0; n < kHeadDim / 32; ++n) {
    const uint16_t* const at = from + (kFp8 ? n / 2 * 64 + n % 2 * 8 : n * 32);
    const uint4 x = row < group ? *reinterpret_cast<const uint4*>(at) : uint4{0, 0, 0, 0};
    q.of[4 * n] = x.x, q.of[4 * n + 1] = x.y, q.of[4 * n + 2] = x.z, q.of[4 * n + 3] = x.w;
  }
  return q;
}

// bf16 queries that meet fp8 keys become halves, each row times a power of two that brings it into their range. Returns
// it, of row r.
__device__ __forceinline__ float make_halves(Queries& q) {
  if constexpr (!kScaleRows) return 1.0f;
  float most = 0.0f;
#pragma unroll
  for (const uint32_t x : q.of) {
    most = fmaxf(most, fmaxf(fabsf(ptx::unpack_low<kQueryBf16>(x)), fabsf(ptx::unpack_high<kQueryBf16>(x))));
  }
  const float factor = range_factor(most);
#pragma unroll
  for (uint32_t& x : q.of) {
    x = ptx::pack2<kMmaBf16>(ptx::unpack_low<kQueryBf16>(x) * factor, ptx::unpack_high<kQueryBf16>(x) * factor);
  }
  return factor;
}

// Logits of a slice.
__device__ __forceinline__ void multiply_keys(const Queries& q, const uint32_t (&keys)[2][kKeyChunks][4],
                                              float (&logits)[4]) {
  float odd[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) logits[i] = odd[i] = 0.0f;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    float(&to)[4] = n % 2 == 0 ? logits : odd;
    if constexpr (kFp8) {
      uint32_t k[4];
      ptx::halves_of_e4m3(keys[0][n / 4][n % 4], k[0], k[2]);
      ptx::halves_of_e4m3(keys[1][n / 4][n % 4], k[1], k[3]);
      ptx::mma_16816<kMmaBf16>(to, k, q.of[2 * n], q.of[2 * n + 1]);
    } else {
      const uint32_t(&low)[4] = keys[0][n / 2], (&high)[4] = keys[1][n / 2];
      const int w = n % 2 * 2;
      ptx::mma_16816<kMmaBf16>(to, {low[w], high[w], low[w + 1], high[w + 1]}, q.of[2 * n], q.of[2 * n + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) logits[i] += odd[i];
}

// Dim of state.o[b][0] and [1]; [2] and [3] are of the next.
__device__ __forceinline__ uint32_t output_dim(int b, uint32_t lane) {
  if constexpr (kFp8) return lane / 4 * (kHeadDim / 8) + b * 2;
  return b / 4 * 64 + lane / 4 * 8 + b % 4 * 2;
}

// state.o += V^T P of a slice, whose first token is `token`. Values outside of [begin, end) are those of a token
// inside, of which only an infinite one shows under a P of 0; fp8 has none.
__device__ __forceinline__ void multiply_values(State& state, const uint32_t (&p)[2],
                                                const uint32_t (&values)[4][kValueChunks][kValueWords],
                                                const Place& place, uint32_t token, uint32_t lane) {
  uint32_t keep[2];
#pragma unroll
  for (uint32_t i = 0; i < 2 && !kFp8; ++i) {
    const uint32_t first = token + 8 * i + 2 * (lane & 3);
    keep[i] = (place.sees(first) ? 0xffffu : 0u) | (place.sees(first + 1) ? 0xffff0000u : 0u);
  }
#pragma unroll
  for (int n = 0; n < kValueChunks * kValueWords; ++n) {
    const int j = n / kValueWords, w = n % kValueWords;
    const uint32_t a = values[0][j][w], b = values[1][j][w], c = values[2][j][w], d = values[3][j][w];
    if constexpr (kFp8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t bytes = half == 0 ? 0x5140 : 0x7362;  // two dims of two tokens
        uint32_t v[4];
        ptx::halves_of_e4m3(__byte_perm(a, b, bytes), v[0], v[1]);
        ptx::halves_of_e4m3(__byte_perm(c, d, bytes), v[2], v[3]);
        ptx::mma_16816<kMmaBf16>(state.o[2 * n + half], v, p[0], p[1]);
      }
    } else {
      ptx::mma_16816<kMmaBf16>(state.o[n],
                               {__byte_perm(a, b, 0x5410) & keep[0], __byte_perm(a, b, 0x7632) & keep[0],
                                __byte_perm(c, d, 0x5410) & keep[1], __byte_perm(c, d, 0x7632) & keep[1]},
                               p[0], p[1]);
    }
  }
}

}  // namespace fovea::attention::low_batch
