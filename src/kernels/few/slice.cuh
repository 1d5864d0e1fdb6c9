// A warp's arithmetic on 16 tokens whose keys and values come straight from memory into registers, as the operands of
// the products: no shared memory, no barrier, no loader. The dims of a product's inner dimension may stand in any order
// and so may the dims of its outputs: lanes load 16 neighbouring bytes, which are operands as they are (keys) or after
// one `prmt` of two tokens' words (values). Softmax is that of kernels/warps.
//
// Lane l, r = l / 4, c = l % 4. Keys: tokens r and r + 8, chunks of 16 bytes c, c + 4, ..; values: tokens 2c, 2c + 1,
// 2c + 8 and 2c + 9, chunks r, r + 8, ..; outputs: rows 2c and 2c + 1, the dims of the values' chunks.
#pragma once

#include "kernels/warps/loader.cuh"
#include "kernels/warps/slice.cuh"

namespace fovea::few {

using namespace fovea::decode;
using warps::Place;
using warps::State;

inline constexpr uint32_t kTokens = 16;  // of a slice
inline constexpr uint32_t kRows = 8;     // (query token, query head) rows of an item at most
inline constexpr int kKeyChunks = kRowBytes / 64;
inline constexpr int kValueChunks = kRowBytes / 128;
static_assert(kElementBits == 16 && kRowBytes % 128 == 0 && kQueryBf16 == kMmaBf16);

struct Keys {
  uint4 of[2][kKeyChunks];  // of tokens r and r + 8
};
struct Values {
  uint4 of[4][kValueChunks];  // of tokens 2c, 2c + 1, 2c + 8 and 2c + 9
};

// Not kept in the first-level cache.
__device__ __forceinline__ uint4 load_once(const uint8_t* from) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from)
               : "memory");
  return x;
}

// Where 32 tokens' rows lie in the pool, a lane each: of the window that slices are loaded from; and the page entries
// of the window behind it, which are on their way.
class Window {
 public:
  // [token, end): that the warp loads, token a multiple of the slice; not empty.
  __device__ __forceinline__ Window(const abi::AttentionArgs& args, const abi::WorkItem& item, uint32_t head,
                                    uint32_t token, uint32_t end, uint32_t lane)
      : list_(args.page_entries + item.list_begin),
        begin_(item.kv_begin),
        last_(min(item.kv_end, end) - 1),
        head_(head),
        next_(token),
        lane_(lane) {
    load(args);
    move_to(args, token);
  }

  // token: of the slice that is loaded next.
  __device__ __forceinline__ void move_to(const abi::AttentionArgs& args, uint32_t token) {
    if (token < next_) return;
    const abi::KvPoolView& pool = args.pool;
    long long page = page_;
    long long in_page = in_page_;
    if (pool.entries_per_page > 1) {
      in_page += page_ % pool.entries_per_page * pool.entry_tokens;
      page = page_ / pool.entries_per_page;
    }
    row_ = static_cast<uint64_t>(page * pool.page_stride + in_page * pool.token_stride +
                                 static_cast<long long>(head_) * pool.head_stride) *
           kElementBits / 8;
    next_ += 32;
    load(args);
  }

  // Byte offset of a token's row; token: of the window.
  __device__ __forceinline__ uint64_t row(uint32_t token) const { return __shfl_sync(~0u, row_, (token - next_) & 31); }

 private:
  // Tokens that the warp does not load take the place of the nearest one that it does.
  __device__ __forceinline__ void load(const abi::AttentionArgs& args) {
    const uint32_t token = min(max(next_ + lane_, begin_), last_);
    const uint32_t entry_tokens = static_cast<uint32_t>(args.pool.entry_tokens);
    const uint32_t entry = token / entry_tokens;
    page_ = list_[entry];
    in_page_ = token - entry * entry_tokens;
  }

  const int32_t* list_;
  uint32_t begin_, last_, head_;
  uint32_t next_;  // token of lane 0 in the window behind
  uint32_t lane_;
  int32_t page_ = 0;
  uint32_t in_page_ = 0;
  uint64_t row_ = 0;
};

// Asks the L2 for the rows of a slice's keys and values. A hint: nothing is read, so it may come before kernels have
// ended that write some of them.
__device__ __forceinline__ void prefetch_slice(const abi::AttentionArgs& args, const Window& window, uint32_t token,
                                               uint32_t lane) {
  constexpr uint32_t kLine = 128;
  constexpr uint32_t kLines = kRowBytes / kLine;
  static_assert(kLines <= 2, "two lanes a row");
  const uint64_t at = window.row(token + lane / 2) + lane % kLines * kLine;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint8_t*>(args.pool.k) + at));
  asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint8_t*>(args.pool.v) + at));
}

// window: holds the slice, whose first token is `token`.
__device__ __forceinline__ void load_keys(const abi::AttentionArgs& args, const Window& window, uint32_t token,
                                          uint32_t lane, Keys& keys) {
  const uint8_t* const k = static_cast<const uint8_t*>(args.pool.k) + 16 * (lane & 3);
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    const uint8_t* const row = k + window.row(token + lane / 4 + 8 * h);
#pragma unroll
    for (int j = 0; j < kKeyChunks; ++j) keys.of[h][j] = load_once(row + 64 * j);
  }
}

__device__ __forceinline__ void load_values(const abi::AttentionArgs& args, const Window& window, uint32_t token,
                                            uint32_t lane, Values& values) {
  const uint8_t* const v = static_cast<const uint8_t*>(args.pool.v) + 16 * (lane / 4);
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint8_t* const row = v + window.row(token + 2 * (lane & 3) + i % 2 + i / 2 * 8);
#pragma unroll
    for (int j = 0; j < kValueChunks; ++j) values.of[i][j] = load_once(row + 128 * j);
  }
}

// The lane's part of the queries as the products with keys take it: row r, chunks c, c + 4, ..
struct Queries {
  uint4 of[kKeyChunks];
};
__device__ __forceinline__ Queries load_queries(const abi::AttentionArgs& args, uint32_t q_row, uint32_t first_head,
                                                uint32_t group, uint32_t lane) {
  Queries q;
  const uint32_t row = lane / 4;
  const auto* const from = static_cast<const uint16_t*>(args.q) + static_cast<long long>(q_row) * args.q_row_stride +
                           static_cast<long long>(first_head + row) * args.q_head_stride + 8 * (lane & 3);
#pragma unroll
  for (int j = 0; j < kKeyChunks; ++j) {
    q.of[j] = row < group ? *reinterpret_cast<const uint4*>(from + 32 * j) : uint4{0, 0, 0, 0};
  }
  return q;
}

__device__ __forceinline__ void multiply_keys(const Queries& q, const Keys& keys, float (&logits)[4]) {
  float odd[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) logits[i] = odd[i] = 0.0f;
#pragma unroll
  for (int j = 0; j < kKeyChunks; ++j) {
    const uint4 &low = keys.of[0][j], &high = keys.of[1][j];
    ptx::mma_16816<kMmaBf16>(logits, {low.x, high.x, low.y, high.y}, q.of[j].x, q.of[j].y);
    ptx::mma_16816<kMmaBf16>(odd, {low.z, high.z, low.w, high.w}, q.of[j].z, q.of[j].w);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) logits[i] += odd[i];
}

// Dim of state.o[b][0] and [1]; [2] and [3] are of the next.
__device__ __forceinline__ uint32_t output_dim(int b, uint32_t lane) { return b / 4 * 64 + lane / 4 * 8 + b % 4 * 2; }

// state.o += V^T weights. Values outside of [begin, end) may be anything, NaN too. token: the slice's first.
__device__ __forceinline__ void multiply_values(State& state, const uint32_t (&weights)[2], const Values& values,
                                                const Place& place, uint32_t token, uint32_t lane) {
  uint32_t keep[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t first = token + 8 * i + 2 * (lane & 3);
    keep[i] = (place.sees(first) ? 0xffffu : 0u) | (place.sees(first + 1) ? 0xffff0000u : 0u);
  }
  const auto product = [&](float(&o)[4], uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    ptx::mma_16816<kMmaBf16>(o,
                             {__byte_perm(a, b, 0x5410) & keep[0], __byte_perm(a, b, 0x7632) & keep[0],
                              __byte_perm(c, d, 0x5410) & keep[1], __byte_perm(c, d, 0x7632) & keep[1]},
                             weights[0], weights[1]);
  };
#pragma unroll
  for (int j = 0; j < kValueChunks; ++j) {
    const uint4 &a = values.of[0][j], &b = values.of[1][j], &c = values.of[2][j], &d = values.of[3][j];
    product(state.o[4 * j], a.x, b.x, c.x, d.x);
    product(state.o[4 * j + 1], a.y, b.y, c.y, d.y);
    product(state.o[4 * j + 2], a.z, b.z, c.z, d.z);
    product(state.o[4 * j + 3], a.w, b.w, c.w, d.w);
  }
}

}  // namespace fovea::few
