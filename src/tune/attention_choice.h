// How each attention kernel is configured for a need (grid, tiles, costs, macros), or why it cannot serve it: pure
// functions. Which of them runs a plan is plan_choice.h's. Called by attention/ and `fovea warmup`; the figures behind
// the numbers are in docs/kernels/general.md.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "abi/kv_pool.h"
#include "fovea/status.h"

namespace fovea::tune {

struct AttentionNeed {
  std::string arch = "sm_90a";
  int num_sms = 132;
  int head_dim = 128;
  abi::KvDType q_dtype = abi::KvDType::kBF16;
  abi::KvDType kv_dtype = abi::KvDType::kBF16;
  int page_tokens = 16;  // tokens a page-list entry names
  int group = 4;         // query heads a KV head
  bool batch_invariant = false;
  bool transforms_kv = false;      // the variant has a key or value hook
  bool token_scales = false;       // fp8 KV with a scale for each token and head; integers have one in any case
  bool transforms_q = false;       // the variant has a query hook
  bool plain_logits = true;        // the variant has no hook but an extra logit
  bool hooks_logits_alone = true;  // it has softmax, and no hooks but on logits and for an extra one
  bool checked = false;            // page entries are compared with the pool's size
};

struct AttentionChoice {
  std::string header;                               // kernel source, below src/
  std::string shared_header;                        // that of plans which share runs, launched alike; empty: the same
  bool tma = false;                                 // pages come by TMA, else they are gathered
  int box_tokens = 16;                              // TMA: tokens a box
  bool box_panels = true;                           // TMA: a box has all panels of its rows; else one
  bool row_boxes = false;                           // TMA: a box has 128 bytes of its rows, and zeros beyond their end
  std::vector<std::pair<std::string, int>> tuning;  // further macros
  int threads = 0;                                  // a CTA
  std::int64_t smem_bytes = 0;                      // dynamic, a CTA
  bool programmatic_launch = false;                 // the kernel waits for its inputs itself (PDL)
  int ctas = 0;                                     // the grid
  // Planner options.
  int num_workers = 0;
  int shared_rounds = 1;
  int shared_tile_rows = 0;
  int shared_part_bytes = 0;
  int shared_balance_rows = 0;
  int tile_rows = 128;
  int tile_tokens = 0;
  int block_tokens = 64;
  int cost_item_bytes = 4096;
  int cost_balance_rows = 128;
  std::int64_t cost_divide_bytes = 0;
  int least_part_bytes = 0;
  bool longest_first = false;
};

// kUnsupported, with the reason. Strides and addresses are for the caller to check: both loaders need rows of K and V
// that start at multiples of 16 bytes.
Result<AttentionChoice> choose_attention(const AttentionNeed& need);

// The kernel whose workers are warps (kernels/attention/warp_per_worker/kernel.cuh), and how its plans are made:
// nothing shared, no mask but by position. It runs plans of decode alone, one query token a request and up to 8 query
// heads a KV head; with teams of two warps, tiles of up to 32 (query token, query head) rows. kUnsupported, with the
// reason.
Result<AttentionChoice> choose_warp_per_worker_attention(const AttentionNeed& need, bool teams = false);

// The kernel for plans of decode with few pairs (kernels/attention/low_batch/kernel.cuh), over chosen pages too: 16-bit
// KV or fp8, head dims 64 and 128. kUnsupported, with the reason.
Result<AttentionChoice> choose_low_batch_attention(const AttentionNeed& need);

// The kernel for many query tokens a request (kernels/attention/prefill/kernel.cuh): sm_90a, KV of the queries' type or
// quantized, head dims 64 to 128 in steps of 16, 192 and 256, softmax without hooks but on logits. It runs every plan.
// kUnsupported, with the reason.
Result<AttentionChoice> choose_prefill_attention(const AttentionNeed& need);

// A pool's keys or values as the kernel's TMA boxes see them: dims innermost first, strides in bytes.
struct KvTensorMap {
  std::uint32_t rank = 0;
  std::uint64_t dims[5] = {};
  std::uint64_t strides[5] = {};  // [0] is not read
  std::uint32_t box[5] = {};
  int swizzle_bytes = 0;  // 0, 32, 64, 128
};
KvTensorMap kv_tensor_map(const AttentionChoice& choice, const abi::KvPoolView& pool, int num_kv_heads, int head_dim);

}  // namespace fovea::tune
