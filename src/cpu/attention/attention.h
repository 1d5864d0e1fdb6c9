// Attention on the CPU: executes a plan (abi/plan.h) and nothing else. Called by the CPU backend and `fovea bench
// attention`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "abi/kv_pool.h"
#include "abi/plan.h"
#include "base/pause.h"
#include "base/thread_pool.h"
#include "cpu/attention/item.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"
#include "variant/params.h"

namespace fovea::cpu {

// Partial states and the threads' scratch. Grows when a call needs more than any before, else allocates nothing; one
// call at a time.
class AttentionWorkspace {
 public:
  // partial_rows: Planner::max_partial_rows(); tile_rows: (token, query head) rows of the largest tile.
  Status reserve(uint32_t partial_rows, int head_dim, int tile_rows, int num_threads);

  float* partial_out() { return partial_out_.get(); }
  float* partial_lse() { return partial_lse_.get(); }
  ItemScratch scratch(int thread) const;
  // How far a thread is in a call that was left.
  struct alignas(64) Place {
    uint32_t launch = 0;
    uint32_t worker = 0;
    uint32_t entry = 0;  // of the worker's queue
    uint32_t heads = 0;  // of that entry, done
    ItemPlace item;
  };
  std::vector<Place>& places() { return places_; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  template <typename T>
  using Buffer = std::unique_ptr<T[], Free>;
  template <typename T>
  static Buffer<T> allocate(size_t count);

  size_t thread_bytes() const;

  Buffer<float> partial_out_;
  Buffer<float> partial_lse_;
  Buffer<std::byte> scratch_;
  std::vector<Place> places_;
  size_t partial_floats_ = 0;
  size_t partial_rows_ = 0;
  int head_dim_ = 0;
  int tile_rows_ = 0;
  int num_threads_ = 0;
};

// The kernels of a shipped variant for the instruction set in use (cpu/simd.h).
AttentionKernels attention_kernels(VariantId variant);

// The function format_ops of matmul_inl.h for the instruction set in use, which variants compiled at run time share.
void* format_ops_in_use();

// out[row, head, :] = attention of q[row, head, :] over what the plan gives the row. q, out: [rows, num_qo_heads,
// head_dim], fp32 or bf16, the last dim contiguous; pools of any storage type, each its own; elements of a row
// contiguous; head_dim a multiple of 16 from 16 to 256, a power of two for rotated pools. lse: [rows, num_qo_heads]
// base-2 log-sum-exp, sinks included, or null; 0 for variants without softmax. Rows without any KV get output 0 and
// log-sum-exp -inf (with a sink: the sink's logit). The result does not depend on the number of threads.
Status run_attention(const abi::PlanView& plan, const AttentionParams& params, VariantId variant, const TensorView& q,
                     const abi::KvPoolView* pools, int num_pools, const TensorView& out, float* lse,
                     AttentionWorkspace& workspace, ThreadPool& threads);

// The same with the kernels of a variant of the caller's own (cpu/attention/executor_inl.h).
Status run_attention(const abi::PlanView& plan, const AttentionParams& params, const AttentionKernels& kernels,
                     const TensorView& q, const abi::KvPoolView* pools, int num_pools, const TensorView& out,
                     float* lse, AttentionWorkspace& workspace, ThreadPool& threads);

// The same, left when `pause` is due: false, until a call with the same arguments has come to the end. goes_on: it
// takes up what the workspace's latest call left. The result is bit for bit that of one call.
Result<bool> run_attention_part(const abi::PlanView& plan, const AttentionParams& params,
                                const AttentionKernels& kernels, const TensorView& q, const abi::KvPoolView* pools,
                                int num_pools, const TensorView& out, float* lse, AttentionWorkspace& workspace,
                                ThreadPool& threads, const Pause& pause, bool goes_on);

}  // namespace fovea::cpu
