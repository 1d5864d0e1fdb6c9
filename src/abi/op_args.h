// Arguments of the kernels between a model's matrix products (kernels/model). Filled by device/cuda, read by the
// kernels. Strides are in elements, the last dim of every tensor is contiguous. Compiles under g++ and NVRTC.
#pragma once

#include "abi/kv_pool.h"
#include "abi/page_stats.h"

namespace fovea::abi {

// fovea_rms_norm: a CTA a row and head, norm_threads() threads.
struct NormArgs {
  const void* x;
  void* residual;       // or null: residual += x, and the norm is of the sum
  void* out;            // may be x or residual
  const float* weight;  // [dim]
  long long x_row_stride, x_head_stride;
  long long residual_row_stride, residual_head_stride;
  long long out_row_stride, out_head_stride;
  uint32_t heads;  // of a row
  uint32_t dim;
  float weight_offset;
  float eps;
};

// Threads of a CTA for rows of so many runs of elements, and how many runs each of them keeps: four where there are
// enough, all on their way at once, so that an SM has many rows in flight.
inline constexpr uint32_t kMostNormThreads = 1024;
inline constexpr uint32_t kMostNormRuns = 4;
constexpr uint32_t norm_threads(uint32_t runs) {
  const uint32_t whole_warps = (runs + 127) / 128 * 32;
  return whole_warps < kMostNormThreads ? whole_warps : kMostNormThreads;
}

// The others: kOpThreads threads a CTA, a run of elements a thread.
inline constexpr uint32_t kOpThreads = 256;

// Values of fovea::Activation.
enum class GateKind : uint32_t { kSilu = 0, kGeluTanh = 1, kGelu = 2 };

// fovea_gate: out[r, i] = act(gate_up[r, i]) * gate_up[r, width + i].
struct GateArgs {
  const void* gate_up;
  void* out;
  long long gate_up_stride, out_stride;
  uint32_t rows;
  uint32_t width;
  GateKind kind;
};

// fovea_embed: out[i] = scale * table[ids[i]]. A row whose id is outside of the table becomes zeros.
struct EmbedArgs {
  const void* table;
  const int32_t* ids;
  void* out;
  long long table_stride, out_stride;
  uint32_t rows;
  uint32_t width;
  uint32_t table_rows;
  float scale;
};

// fovea_add: x += y. fovea_softcap: x = cap * tanh(x / cap).
struct PairArgs {
  void* x;
  const void* y;
  long long x_stride, y_stride;
  uint32_t rows;
  uint32_t width;
  float cap;
};

// fovea_argmax: parts CTAs a row. best: the token of the largest logit, the smallest of equals; -1 where the largest is
// no finite number. rows_state is zero before the first launch, and after each.
struct ArgmaxRow {
  uint64_t key;
  uint32_t arrived;
  uint32_t unused;
};
struct ArgmaxArgs {
  const float* logits;
  int32_t* best;  // [rows]
  ArgmaxRow* rows_state;
  long long stride;
  uint32_t width;
  uint32_t parts;
};
constexpr uint32_t argmax_parts(uint32_t width) {
  const uint32_t parts = width / 8192 + 1;
  return parts < 32 ? parts : 32;
}

// How the token of a row of logits is drawn; engine/sampler says what it means.
struct DrawRow {
  float inverse_temperature;  // 0: the row's best token stays
  float top_p;                // below 1: the likeliest tokens of that much probability
  float reach;                // of them, those whose logit is at most so much below the largest; min-p
  uint32_t unused;
  uint32_t u_low, u_high;  // 53 bits of a uniform number
};
static_assert(sizeof(DrawRow) == 24);

// fovea_draw: a CTA a row, behind fovea_argmax. kDrawOnHost: too many logits at the end of top-p's set are about equal.
inline constexpr uint32_t kDrawThreads = 1024;
inline constexpr int32_t kDrawOnHost = -2;
struct DrawArgs {
  const float* logits;
  const DrawRow* draws;  // [rows]
  int32_t* best;         // [rows] what fovea_argmax wrote; becomes what was drawn
  long long stride;
  uint32_t width;
};

// Where k and v of KV heads [head_begin, head_end) go.
struct RopeTarget {
  const int32_t* slots;  // [rows] page * page_tokens + token of the page; negative or outside of the pool: skipped
  KvPoolView pool;       // its head h is KV head h
  int32_t head_begin;
  int32_t head_end;
  PageStatsView stats;  // kCodes, of these heads, its head 0 the first of them; data null: none are kept
};
inline constexpr uint32_t kMostRopeTargets = 8;  // of a launch
inline constexpr uint32_t kRopeWarps = 8;        // of a CTA

// fovea_rope_append: warps_a_row warps a row, each for as many of its heads.
struct RopeAppendArgs {
  void* qkv;  // [rows, num_qo_heads + 2 * num_kv_heads, head_dim]: q, which is written back, then k, then v
  long long row_stride, head_stride;
  const float* q_norm;  // [head_dim], of each head, or [heads * head_dim], of all heads of a row together; or null
  const float* k_norm;
  const int32_t* positions;  // [rows]
  const float* inv_freq;     // [rotary_dim / 2] radians a position
  float attention_factor;    // multiplies cosines and sines
  float norm_offset;
  float norm_eps;
  uint32_t norms_are_whole;  // of all heads of a row together; then a row is a CTA's
  uint32_t rotary_dim;       // leading dims that rotate: dims i and i + rotary_dim / 2 are a pair; 0: none
  uint32_t rows;
  uint32_t num_qo_heads;
  uint32_t num_kv_heads;
  uint32_t warps_a_row;  // rope_warps_a_row()
  uint32_t does_q;       // whether this launch is the one that does q
  uint32_t num_targets;  // of this launch
  RopeTarget targets[kMostRopeTargets];
};

// Heads of a row that a launch computes.
constexpr uint32_t rope_heads_a_row(const RopeAppendArgs& args) {
  uint32_t heads = args.does_q != 0 ? args.num_qo_heads : 0;
  for (uint32_t i = 0; i < args.num_targets; ++i) {
    heads += 2 * static_cast<uint32_t>(args.targets[i].head_end - args.targets[i].head_begin);
  }
  return heads;
}

// A warp for each head of few rows, so that nothing waits; of many rows a warp takes some heads, whose angles it
// computes once. Norms of all heads read what other warps write: those meet at a barrier.
inline constexpr uint32_t kRopeHeadsAWarp = 8;
inline constexpr uint32_t kManyRopeHeads = 8192;  // of all rows; twice what an H200 holds at once
constexpr uint32_t rope_warps_a_row(const RopeAppendArgs& args) {
  const uint32_t heads = rope_heads_a_row(args);
  if (args.norms_are_whole != 0) return kRopeWarps;
  return args.rows * heads < kManyRopeHeads ? heads : (heads + kRopeHeadsAWarp - 1) / kRopeHeadsAWarp;
}

}  // namespace fovea::abi
