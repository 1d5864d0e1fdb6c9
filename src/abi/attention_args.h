// The argument of the attention kernels: everything fixed for the life of a captured graph. Filled by
// attention/cuda_attention.cc, read by kernels/. Compiles under g++ and NVRTC.
#pragma once

#include "abi/device_plan.h"
#include "abi/kv_pool.h"

namespace fovea::abi {

inline constexpr uint32_t kVariantParamBytes = 256;

// A word of a partial state that is not written yet: a NaN that no arithmetic makes.
inline constexpr uint32_t kPartPending = 0xffffffffu;

// A cuTensorMap of the K or V pool; zeros where the kernel gathers pages without one.
struct alignas(64) TensorMap {
  uint64_t words[16];
};
static_assert(sizeof(TensorMap) == 128);

struct AttentionArgs {
  const uint8_t* plan;          // DevicePlanHeader
  const int32_t* page_entries;  // page lists that WorkItem::list_begin points into
  const int32_t* kv_positions;  // one a page entry, or null; see BlockRow::positions_begin
  const int32_t* kv_lens;       // by length slot, or null: then no item has an open end
  const uint8_t* mask_bits;     // MaskKind::kBits, or null
  const void* q;                // [rows, num_qo_heads, head_dim], last dim contiguous
  void* out;                    // same shape, type of q
  float* lse;                   // [rows, num_qo_heads] base-2 log-sum-exp, or null
  long long q_row_stride;       // elements
  long long q_head_stride;
  long long out_row_stride;
  long long out_head_stride;
  // Every word of the partial states is kPartPending before the first launch, and after every launch again.
  float* partial_out;  // [max_partial_rows, head_dim]; sums over exp2(logit - lse) * value, divided by their weight
  float* partial_lse;  // [max_partial_rows] base 2
  uint32_t* merge_counters;  // [max_merges], zero before the first launch; every launch leaves zeros
  // Parts of plans with kPlanShares, in a workspace of their own (kernels/attention/prefix_forest): as large, and laid
  // out as that executor likes.
  float* shared_out;
  float* shared_lse;
  uint32_t* shared_counters;  // [max_merges + max_partial_rows / group, group], zero before the first launch; every
                              // launch leaves zeros
  uint32_t* span_counter;  // zero before the first launch; every launch leaves zero: CTAs claim the queues that they do
                           // not start with (worker numbers from the grid's size on) by counting it up
  uint32_t num_pages;      // of the pool, for checked builds
  uint32_t first_merges;   // 1: of a divided pair, the worker of the first part waits for the others and merges, unless
                           // queues are claimed; needs a device that runs two CTAs at once. 0: who comes last
  uint32_t lists_fixed;    // 1: page_entries are written with the plan, and no kernel ahead of this one writes them
  uint32_t reserved;
  KvPoolView pool;
  alignas(16) uint8_t variant_params[kVariantParamBytes];  // the variant's parameter struct
};

}  // namespace fovea::abi
