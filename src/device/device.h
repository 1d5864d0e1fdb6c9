// Backend: what the engine asks of a device. The CPU backend fills it here (cpu_backend.cc), the CUDA one later; both
// are found by name. The engine sees this interface and nothing below it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "abi/kv_pool.h"
#include "abi/page_stats.h"
#include "core/plan/planner.h"
#include "core/rope/rope.h"
#include "core/select/job.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea {

// Attention of the layers of one KV group: same heads, same mask, same page tables.
struct AttentionOpConfig {
  PlannerOptions planner;
  DType kv_dtype = DType::kBF16;
  float sm_scale = 0.0f;         // multiplies q.k; 1/sqrt(head_dim) for most models
  float softcap = 0.0f;          // logits become softcap * tanh(logits / softcap); 0: off
  const float* sinks = nullptr;  // [num_qo_heads] sink logits, or null; must outlive the op
};

// Plans once a forward, runs once a layer.
class AttentionOp {
 public:
  virtual ~AttentionOp() = default;
  virtual Status plan(const AttentionBatch& batch) = 0;
  // Same requests as the last plan(), lengths grew.
  virtual Status grow(const std::int32_t* kv_lens) = 0;
  // Instead of plan(), for heads of a layer that read different tokens (streaming heads, selected pages): the block
  // rows as given. What the batch points to is borrowed until the next plan. grow() does not follow; plan again.
  virtual Status plan_block_rows(const BlockRowBatch& batch) = 0;
  // q, out: [rows, num_qo_heads, head_dim] in the backend's activation dtype; rows in the order of the batch.
  // pools: what BlockRow::pool indexes, one after plan(); KV head h of the plan is head h of each of them, so that a
  // pool of some heads only is given shifted (abi::shift_heads). lse: [rows, num_qo_heads] base-2 log-sum-exp, or null.
  virtual Status run(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out,
                     float* lse) = 0;
  virtual PlanStats stats() const = 0;
  virtual const Planner& planner() const = 0;
};

// y = x W^T + b, prepared once from weights [out_features, in_features].
class Linear {
 public:
  virtual ~Linear() = default;
  // x: [rows, in_features], y: [rows, out_features], activation dtype; rows may be strided.
  virtual Status forward(const TensorView& x, const TensorView& y) = 0;
  virtual std::int64_t in_features() const = 0;
  virtual std::int64_t out_features() const = 0;
};

enum class Activation : std::uint8_t { kSilu, kGeluTanh, kGelu };

struct BackendOptions {
  std::int32_t num_threads = 0;  // 0: what the machine and the cgroup allow
  bool batch_invariant = false;  // one fixed K order in matrix products, fixed chunks in attention
  // Where the machine multiplies bf16 faster, products of 8 rows or more (prefill, large batches) with bf16 weights may
  // round activations to bf16, and attention over bf16 KV its queries and softmax weights. Off in batch-invariant mode.
  bool bf16_products = true;
  std::string_view simd;  // "", "avx512", "avx2" or "scalar": at most this instruction set
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual DType activation_dtype() const = 0;
  virtual std::int32_t num_threads() const = 0;

  // Device memory, 64-byte aligned, zeroed; freed with the last copy of the pointer.
  virtual Result<std::shared_ptr<void>> allocate(std::size_t bytes) = 0;
  // Bytes that KV pools may take now.
  virtual std::size_t memory_available() const = 0;

  virtual Result<std::unique_ptr<AttentionOp>> create_attention(const AttentionOpConfig& config) = 0;
  // weights: [out_features of the part, in_features] each, one type (bf16, f16 or f32), on the host, stacked along
  // out_features; biases: as many, [out_features of the part] each, or none at all. Weights must outlive the Linear.
  virtual Result<std::unique_ptr<Linear>> create_linear(std::span<const TensorView> weights,
                                                        std::span<const TensorView> biases) = 0;

  // Scatters k, v [rows, kv_heads, head_dim] into the pool. slots[i] = page * page_tokens + offset; negative: skip row.
  virtual Status append_kv(const TensorView& k, const TensorView& v, const std::int32_t* slots,
                           const abi::KvPoolView& pool) = 0;
  // Page selection; kUnsupported on a device that has none. update_page_stats follows an append to the same slots
  // [rows] and makes the statistics of the sub-pages that were written to anew, from the keys as stored. select_pages
  // fills the jobs' lists for queries q [rows, num_qo_heads, head_dim] that have gone through RoPE.
  virtual Status update_page_stats(const std::int32_t* slots, std::int64_t rows, const abi::KvPoolView& pool,
                                   const abi::PageStatsView& stats);
  virtual Status select_pages(const TensorView& q, float sm_scale, const abi::KvPoolView& pool,
                              const abi::PageStatsView& stats, std::span<const SelectJob> jobs);
  // out[i] = scale * table[ids[i]]; table [vocab, hidden] in its storage dtype. Also gathers rows of activations.
  virtual Status embed(const TensorView& table, const std::int32_t* ids, float scale, const TensorView& out) = 0;
  // out = x / rms(x) * (weight + weight_offset) over the last dim. x may be [rows, dim] or [rows, heads, dim]. In place
  // allowed. When residual is not empty: residual += x first, and the norm is of that sum.
  virtual Status rms_norm(const TensorView& x, const TensorView& weight, float weight_offset, float eps,
                          const TensorView& residual, const TensorView& out) = 0;
  // Rotates x [rows, heads, head_dim] in place by positions[rows].
  virtual Status rope(const TensorView& x, const std::int32_t* positions, const RopeConfig& config) = 0;
  // out[r, i] = act(gate_up[r, i]) * gate_up[r, width + i].
  virtual Status gated_activation(Activation activation, const TensorView& gate_up, const TensorView& out) = 0;
  // x += y
  virtual Status add(const TensorView& x, const TensorView& y) = 0;
  // x = cap * tanh(x / cap)
  virtual Status softcap(const TensorView& x, float cap) = 0;
};

// name: "cpu". Later "cuda". kNotFound lists the names there are.
Result<std::unique_ptr<Backend>> create_backend(std::string_view name, const BackendOptions& options);

}  // namespace fovea
