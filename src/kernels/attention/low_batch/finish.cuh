// The end of an item: what the warps of the CTA found, each of its own tokens, is summed up through shared memory
// behind one barrier, two columns of a row a thread; where cuts divided the pair, the CTA of the first part then adds
// the other parts, whose words say for themselves whether they are there (kernels/attention/combine.cuh).
#pragma once

#include "kernels/attention/low_batch/slice.cuh"

namespace fovea::attention::low_batch {

inline constexpr uint32_t kWarps = FOVEA_FEW_WARPS;
inline constexpr uint32_t kThreads = kWarps * 32;
inline constexpr uint32_t kPitch = kHeadDim + 4;      // floats from row to row
inline constexpr uint32_t kRowChunks = kHeadDim / 4;  // of 16 bytes
inline constexpr uint32_t kPartsAtOnce = 16;          // parts that are brought together at a time, the own one too

inline constexpr uint32_t kGroup = FOVEA_FEW_ROWS;  // query heads a KV head: rows of an item
static_assert(kGroup >= 1 && kGroup <= kRows);

// Where the rows of an item go.
struct Rows {
  uint32_t q_row;
  int32_t position;
  uint32_t first_head;
  uint32_t q_heads;
  bool direct;
  uint32_t own;    // first partial row, unless direct
  uint32_t parts;  // of the pair, where this is the first one and not direct; else 1
};

struct SharedMemory {
  alignas(16) float o[kWarps][kGroup][kPitch];
  float2 states[kWarps][kRows];  // maximum and sum of every row
  Rows rows;                     // of the item, for its end
  alignas(16) float4 parts[kPartsAtOnce][kGroup][kRowChunks];
  float lse[kPartsAtOnce][kGroup];
  float value_scale;  // fp8: what outputs are multiplied by
  ItemRecord records[Variant::kHasLogit || Variant::kHasVisible ? kWarps : 1];
};
static_assert(sizeof(SharedMemory) <= FOVEA_FEW_SMEM_BYTES, "tune/attention_choice.cc counts less than there is");

// worked: the warp had tokens.
__device__ __forceinline__ void put_state(SharedMemory& shared, State& state, bool worked, uint32_t warp,
                                          uint32_t lane) {
  if (worked) finish_sums(state);
  if (!Variant::kSoftmax) state.max[0] = state.max[1] = worked ? 0.0f : kMinusInf;
  const uint32_t row = 2 * (lane & 3);
  if (lane < 4) {
    shared.states[warp][row] = {state.max[0], state.sum[0]};
    shared.states[warp][row + 1] = {state.max[1], state.sum[1]};
  }
  if (!worked) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (row + h >= kGroup) continue;
#pragma unroll
    for (int b = 0; b < kBlocks; b += 2) {
      *reinterpret_cast<float4*>(&shared.o[warp][row + h][output_dim(b, lane)]) = {
          state.o[b][h], state.o[b][h + 2], state.o[b + 1][h], state.o[b + 1][h + 2]};
    }
  }
}

// Four columns of a row over all warps, and the row's maximum and sum.
struct Sum {
  float4 value;
  float most;
  float total;
};
__device__ __forceinline__ Sum sum_warps(const SharedMemory& shared, uint32_t row, uint32_t column) {
  float2 states[kWarps];
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) states[w] = shared.states[w][row];
  Sum sum{{0.0f, 0.0f, 0.0f, 0.0f}, kMinusInf, 0.0f};
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) sum.most = fmaxf(sum.most, states[w].x);
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) {
    const float4 o = *reinterpret_cast<const float4*>(&shared.o[w][row][column]);
    if (states[w].x == kMinusInf && states[w].y == 0.0f) continue;  // o may be anything; a sum may be NaN
    const float weight = Variant::kSoftmax ? ptx::exp2_approx(states[w].x - sum.most) : 1.0f;
    add(sum.value, weight, o);
    sum.total += weight * states[w].y;
  }
  return sum;
}

// Parts first .. first + count of the pair into slots 1 .. count of shared memory, each word once it is there; leaves
// the pattern behind. They lie one behind the other.
class Fetch {
 public:
  static_assert(kPartsAtOnce * kGroup <= kThreads, "a thread has the log-sum-exp of a row");
  __device__ __forceinline__ Fetch(const abi::AttentionArgs& args, SharedMemory& shared, uint64_t first_row,
                                   uint32_t count, uint32_t thread)
      : from_(args.partial_out + first_row * kHeadDim),
        from_lse_(args.partial_lse + first_row),
        to_(&shared.parts[1][0][0]),
        to_lse_(&shared.lse[1][0]),
        chunks_(count * kGroup * kRowChunks),
        rows_(Variant::kSoftmax ? count * kGroup : 0),
        thread_(thread) {}

  // lse: of the thread's row, as far as it was read; returns it.
  __device__ __forceinline__ float ask(bool again, float lse) {
#pragma unroll 1
    for (uint32_t i = thread_; i < chunks_; i += kThreads) {
      if (!again || missing(i)) ptx::cp_async_16(ptx::smem_address(to_ + i), from_ + 4 * i);
    }
    ptx::cp_async_commit();
    return thread_ < rows_ && pending(lse) ? load_part(from_lse_ + thread_) : lse;
  }
  __device__ __forceinline__ float ask() { return ask(false, __uint_as_float(abi::kPartPending)); }
  // lse: from ask().
  __device__ __forceinline__ void wait(float lse) {
    bool some = true;
    while (some) {
      ptx::cp_async_wait<0>();
      some = thread_ < rows_ && pending(lse);
#pragma unroll 1
      for (uint32_t i = thread_; i < chunks_; i += kThreads) some |= missing(i);
      if (some) lse = ask(true, lse);
    }
#pragma unroll 1
    for (uint32_t i = thread_; i < chunks_; i += kThreads) {
      restore_part2(from_ + 4 * i);
      restore_part2(from_ + 4 * i + 2);
    }
    if (thread_ < rows_) {
      to_lse_[thread_] = lse;
      restore_part(from_lse_ + thread_);
    }
  }

 private:
  __device__ __forceinline__ bool missing(uint32_t i) const {
    const float4 x = to_[i];
    return pending(x.x) || pending(x.y) || pending(x.z) || pending(x.w);
  }
  float* from_;
  float* from_lse_;
  float4* to_;
  float* to_lse_;
  uint32_t chunks_, rows_, thread_;
};

__device__ __forceinline__ void write_output4(const abi::AttentionArgs& args, const Rows& rows, uint32_t row,
                                              uint32_t column, const float4& x, float lse) {
  write_output(args, rows.q_row, rows.first_head + row, rows.position, column, {x.x, x.y});
  write_output(args, rows.q_row, rows.first_head + row, rows.position, column + 2, {x.z, x.w});
  if (column == 0 && args.lse != nullptr) (&lse_at(args, rows.q_row, rows.q_heads, rows.first_head))[row] = lse;
}

// Parts in slots 0 .. count of shared memory, in this order, become slot 0, or the output.
__device__ __forceinline__ void merge_parts(const abi::AttentionArgs& args, SharedMemory& shared, const Rows& rows,
                                            uint32_t count, bool last, uint32_t thread) {
#pragma unroll 1
  for (uint32_t n = thread; n < kGroup * kRowChunks; n += kThreads) {
    const uint32_t row = n / kRowChunks;
    const uint32_t chunk = n % kRowChunks;
    float most = kMinusInf;
#pragma unroll 4
    for (uint32_t p = 0; p <= count; ++p) most = fmaxf(most, shared.lse[p][row]);
    float4 value{0.0f, 0.0f, 0.0f, 0.0f};
    float total = 0.0f;
#pragma unroll 4
    for (uint32_t p = 0; p <= count; ++p) {
      const float lse = shared.lse[p][row];
      const float weight = !Variant::kSoftmax ? 1.0f : lse == kMinusInf ? 0.0f : ptx::exp2_approx(lse - most);
      add(value, weight, shared.parts[p][row][chunk]);
      total += weight;
    }
    const float extra = last ? extra_logit(args, rows.first_head + row) : kMinusInf;
    const RowResult result = finish_row(most, total, extra);
    const float factor = 1.0f / result.divisor;
    value = {value.x * factor, value.y * factor, value.z * factor, value.w * factor};
    if (last) {
      write_output4(args, rows, row, 4 * chunk, value, result.lse);
    } else {
      shared.parts[0][row][chunk] = value;
      if (chunk == 0) shared.states[0][row] = {result.lse, 0.0f};  // log-sum-exps are still read
    }
  }
}

// By all threads, behind put_state() of all warps and a barrier.
__device__ __forceinline__ void write_rows(const abi::AttentionArgs& args, SharedMemory& shared, uint32_t thread) {
  const Rows rows = shared.rows;
  const auto fetch_at = [&](uint32_t first) {
    return Fetch(args, shared, rows.own + first * kGroup, min(kPartsAtOnce - 1, rows.parts - first), thread);
  };
  float lse = 0.0f;
  if (rows.parts > 1) lse = fetch_at(1).ask();  // on their way while this part's sum is made
#pragma unroll 1
  for (uint32_t n = thread; n < kGroup * kRowChunks; n += kThreads) {
    const uint32_t row = n / kRowChunks;
    const uint32_t column = n % kRowChunks * 4;
    const Sum sum = sum_warps(shared, row, column);
    const float extra = rows.direct ? extra_logit(args, rows.first_head + row) : kMinusInf;
    const RowResult result = finish_row(sum.most, sum.total, extra);
    float factor = 1.0f / result.divisor;
    if constexpr (kFp8) factor *= shared.value_scale;
    const float4 value{sum.value.x * factor, sum.value.y * factor, sum.value.z * factor, sum.value.w * factor};
    if (rows.direct) {
      write_output4(args, rows, row, column, value, result.lse);
    } else if (rows.parts > 1) {
      shared.parts[0][row][column / 4] = value;
      if (column == 0) shared.lse[0][row] = result.lse;
    } else {
      float* const to = partial_at(args, rows.own + row) + column;
      store_part(to, {value.x, value.y});
      store_part(to + 2, {value.z, value.w});
      if (Variant::kSoftmax && column == 0) store_part(args.partial_lse + rows.own + row, result.lse);
    }
  }
#pragma unroll 1
  for (uint32_t first = 1; first < rows.parts; first += kPartsAtOnce - 1) {
    const uint32_t count = min(kPartsAtOnce - 1, rows.parts - first);
    const bool last = first + count == rows.parts;
    if (first != 1) lse = fetch_at(first).ask();
    fetch_at(first).wait(lse);
    __syncthreads();
    merge_parts(args, shared, rows, count, last, thread);
    if (last) return;
    __syncthreads();
    if (thread < kGroup) shared.lse[0][thread] = shared.states[0][thread].x;
  }
}

}  // namespace fovea::attention::low_batch
