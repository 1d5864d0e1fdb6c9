// What the executor hands to a SIMD kernel: one work item under one KV head, resolved to pointers, and the scratch of
// the thread that runs it. Filled by attention.cc, read by the *_inl.h kernels.
#pragma once

#include <cstdint>

#include "abi/kv_pool.h"
#include "abi/plan.h"
#include "fovea/tensor_view.h"
#include "variant/params.h"

namespace fovea {
class Pause;
}  // namespace fovea

namespace fovea::cpu {

// Tokens of one step of the online softmax. A row sees its blocks in ascending order whatever tile it is in, so its
// bits do not depend on the tile.
inline constexpr int kBlockTokens = 64;
// Tiles of few rows read a whole block as streams of this many tokens side by side (StreamRows).
inline constexpr int kStreamTokens = 16;
inline constexpr int kStreams = kBlockTokens / kStreamTokens;
inline constexpr int kMinHeadDim = 16;
inline constexpr int kMaxHeadDim = 256;
// Rows that one pass of a micro-kernel may take; the scratch for scores holds this many.
inline constexpr int kMaxRowsPerPass = 8;
// Heads of an item that one call may take, and the most rows that they have together: in a page that holds its heads
// one after the other, they are read as one piece.
inline constexpr int kMaxHeadsAtOnce = 8;
inline constexpr int kMaxRowsAtOnce = kMaxHeadsAtOnce * kMaxRowsPerPass;

// Scratch of one thread, all of it 64-byte aligned.
struct ItemScratch {
  float* q;              // [tile rows, head_dim] scaled queries
  float* o;              // [tile rows, head_dim] running outputs, in the pool's lane order
  float* max;            // [tile rows] running maximum, base 2
  float* sum;            // [tile rows] running sum
  uint32_t* k_block;     // [head_dim, kBlockTokens] transposed keys
  float* s_block;        // [kMaxRowsAtOnce, kBlockTokens] logits, then weights
  float* kv_rows;        // [kBlockTokens, head_dim] transformed keys or values
  uint16_t* codes[2];    // [kBlockTokens, head_dim] each: stored numbers of quantized keys and values, in bf16;
                         // the first: values in pairs (PackValuesFn)
  float* q_sum;          // [tile rows] sums of the scaled queries' elements; pools with zeros only
  float* zero_sum;       // [tile rows] running sums of weight * zero of the values
  uint64_t* seen;        // [tile tokens] tokens of the block that each query token sees
  const void** rows[4];  // [kBlockTokens] each: keys and values in the pool, of the block and of the one after it
  const void** streams;  // [kStreams * StreamRows::kAStream]
};

// logits[r * kBlockTokens + t] = sum over d of q[r * head_dim + d] times element d of token t; k_block: keys as
// pack_keys left them. scale multiplies logits of queries rounded to bf16; the others carry it already. ahead: keys of
// the next block whose odd cache lines are fetched meanwhile (pack_keys left them out), or null.
using LogitsFn = void (*)(const float* q, const uint32_t* k_block, int head_dim, int tokens, float scale,
                          const void* const* ahead, float* logits);

// The rows of a block as the kernels for few rows read them. A whole block is kStreams streams, token t the row
// rows[t / kStreamTokens * kAStream + t % kStreamTokens], each followed by what is read after it; of a part of a block,
// token t is rows[t].
struct StreamRows {
  static constexpr int kAStream = 2 * kStreamTokens;
  const void** rows;  // [kStreams * kAStream], all readable
  bool whole;
};

// The same from keys as they lie in the pool, for few rows. What is read next is fetched to the first level meanwhile.
using RowLogitsFn = void (*)(const float* q, const StreamRows& keys, int head_dim, int tokens, float scale,
                             float* logits);

// o[r] = o[r] * alpha[r] + sum over t in [begin, end), ascending, of weights[r * kBlockTokens + t] * v_rows[t]. The
// same part of ahead[t] is prefetched.
using OutputsFn = void (*)(const float* weights, const void* const* v_rows, const void* const* ahead, int begin,
                           int end, int head_dim, const float* alpha, float* o);

// The same over all of a whole block, for few rows; what is read next is fetched to the first level.
using RowOutputsFn = void (*)(const float* weights, const StreamRows& values, int head_dim, const float* alpha,
                              float* o);

// The values of a whole block, for head dims that are multiples of kPackedHeadDim: for each 32 of the head dim and each
// pair of tokens, 64 elements in the order of the lanes of the products.
inline constexpr int kPackedHeadDim = 32;
using PackValuesFn = void (*)(const void* const* v_rows, int head_dim, uint32_t* v_block);

// As OutputsFn over all of a whole block, bit for bit; v_block: values as PackValuesFn left them. ahead may be null.
using PackedOutputsFn = void (*)(const float* weights, const uint32_t* v_block, const void* const* ahead, int head_dim,
                                 const float* alpha, float* o);

// A queue entry, resolved.
struct QueueWork {
  const abi::WorkItem* item = nullptr;
  const abi::BlockRow* block_row = nullptr;
  const abi::KvPoolView* pool = nullptr;
  int kv_head = 0;
};

// How far an item is that was left between two blocks; its rows' state stays in the thread's scratch.
struct ItemPlace {
  static constexpr int64_t kStart = -1;
  int head = 0;            // of ItemArgs::num_heads
  int64_t token = kStart;  // of the run, where the next block begins
};

struct ItemArgs {
  const abi::PlanView* plan;
  QueueWork work;  // of the first head
  int num_heads;   // that stand in the queue one after the other, 1 to kMaxHeadsAtOnce
  QueueWork next;  // what this thread runs afterwards, so that its first block can be fetched early; item may be null
  const AttentionParams* params;
  int group;
  int head_dim;
  const TensorView* q;
  const TensorView* out;
  float* lse;          // [rows, num_qo_heads] or null
  float* partial_out;  // [partial rows, head_dim]
  float* partial_lse;  // [partial rows]
  ItemScratch scratch;
  // Where the item may be left: asked between two blocks of many rows. Null: it is not.
  const Pause* pause;
  bool (*pause_is_due)(const Pause& pause);
  ItemPlace* place;
};

struct MergeArgs {
  const abi::PlanView* plan;
  const AttentionParams* params;
  int group;
  int head_dim;
  const TensorView* out;
  float* lse;
  const float* partial_out;
  const float* partial_lse;
};

// One variant, compiled for the instruction set in use.
struct AttentionKernels {
  // False: it was left at args.place, and goes on from there when it is called again.
  bool (*run_item)(const ItemArgs& args);
  // Merges entries [begin, end) of the plan's merge list.
  void (*merge)(const MergeArgs& args, uint32_t begin, uint32_t end);
};

}  // namespace fovea::cpu
