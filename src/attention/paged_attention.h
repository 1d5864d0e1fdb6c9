// PagedAttention: attention over paged KV on one device, one implementation a device kind. It stands behind
// fovea::Attention, which checks what callers hand over, and the engine runs on it (Device::create_attention), with
// block rows of its own and several KV pools a run.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/attention_batch.h"
#include "attention/attention_checks.h"
#include "base/pause.h"
#include "base/thread_pool.h"
#include "core/plan/planner.h"
#include "fovea/attention.h"
#include "jit/variant_spec.h"
#include "variant/params.h"

namespace fovea {

// How the tokens of a KV pool of the engine are stored.
struct KvFormat {
  DType dtype = DType::kBF16;  // kF32, kF16, kBF16, or quantized: kF8E4M3, kI8, kI4
  bool rotated = false;        // kI8 and kI4: a Hadamard rotation first; see abi/kv_pool.h

  // Quantized formats have a scale and zero for each token and head, of K and of V.
  bool quantized() const { return dtype == DType::kF8E4M3 || dtype == DType::kI8 || dtype == DType::kI4; }
};

// What an object is made for: the public options, and what block rows need beside them.
struct AttentionConfig {
  AttentionOptions options;
  // Of the planner, where block rows need more than the options say; requests, rows and pages a request are the
  // options' in any case.
  std::optional<PlanLimits> limits;
  std::vector<KvFormat> pools;  // by BlockRow::pool; empty: one pool, stored as the options say
  // CUDA graphs: the caller replays a graph only under plans of as many rows and of the run_kind() of those that it
  // captured; so every plan gets the kernel that is best for it.
  bool graphs_by_kind = false;
  // CUDA, with graphs_by_kind: requests of one query token ahead of prompts are a plan and a launch of their own where
  // they read so much. The launch takes some 5 us; among prompts' items decodes take a tenth longer, and twice as long
  // where they share prefixes, which wide tiles read for every request by itself.
  std::int64_t least_decode_bytes = std::int64_t{128} << 20;

  void set_format(const KvFormat& format) {
    options.kv_dtype = format.dtype;
    options.kv_token_scales = format.quantized();
    options.kv_rotated = format.rotated;
  }
};

class PagedAttention {
 public:
  PagedAttention(const AttentionOptions& options, DevicePlace place) : options_(options), place_(place) {}
  virtual ~PagedAttention() = default;

  // As fovea/attention.h says.
  virtual Status plan(const RequestBatch& batch, Stream stream) = 0;
  virtual Status plan_cascade(std::int32_t num_rows, std::span<const CascadeLevel> levels, Stream stream) = 0;
  virtual Status plan_selected(const SelectedBatch& batch, Stream stream) = 0;
  virtual Status plan_ragged(const RaggedBatch& batch, Stream stream) = 0;
  virtual Status plan_blocks(const BlockSparseBatch& batch, Stream stream) = 0;
  virtual Status grow(std::span<const std::int32_t> kv_lens, Stream stream) = 0;
  virtual Status grow_on_device(const TensorView& kv_lens, Stream stream) = 0;
  virtual Status growth_status(Stream) const { return ok_status(); }  // here refusals are grow_on_device()'s
  virtual bool captured() const { return false; }
  // Of the plan: runs of plans of as many rows and of the same kind are the same launches.
  virtual std::uint64_t run_kind() const { return 0; }

  // Plans block rows as given: heads of a layer that read different tokens (streaming heads, selected pages). What the
  // batch points to lies on the host and is borrowed until the next plan. grow() does not follow; plan again.
  virtual Status plan_block_rows(const BlockRowBatch& batch, Stream stream) = 0;
  // q, out: [rows, num_qo_heads, head_dim] in the order of the batch. pools: what BlockRow::pool indexes, one after the
  // other plans; KV head h of the plan is head h of each of them, so that a pool of some heads only is given shifted
  // (abi::shift_heads). lse: f32 [rows, num_qo_heads], or empty. values: of this run.
  virtual Status run(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out,
                     const TensorView& lse, Stream stream, const RunValues& values = {}) = 0;
  // run() that is left when `pause` is due, where it can be: false, until a call with the same arguments and goes_on
  // has come to the end. Other objects may run in between.
  virtual Result<bool> run_part(const TensorView& q, std::span<const abi::KvPoolView> pools, const TensorView& out,
                                Stream stream, const Pause& /*pause*/, bool /*goes_on*/) {
    if (Status status = run(q, pools, out, {}, stream); !status.ok()) return status;
    return true;
  }

  // Rows of the plan; -1 where there is none to run.
  virtual std::int64_t num_rows() const = 0;
  // Tokens that keys and values without pages need under the plan; -1 where it reads pages.
  virtual std::int64_t contiguous_tokens() const = 0;
  // kOutOfRange when the plan is known to read a page outside of [0, num_pages).
  virtual Status check_pages(std::int64_t num_pages) const = 0;
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::size_t plan_bytes() const = 0;
  virtual const Planner& planner() const = 0;  // of the first pool
  // The kernel that runs the plan, and why it was chosen.
  virtual std::string kernel_and_reason() const { return "the only one there is"; }
  virtual PlanStats stats() const { return planner().stats(); }
  const AttentionOptions& options() const { return options_; }
  DevicePlace place() const { return place_; }

 protected:
  AttentionOptions options_;
  DevicePlace place_;
};

// The variant that the options ask for, and its parameters.
struct VariantChoice {
  VariantSpec spec;
  VariantId id;  // of spec, where it is a shipped one
  jit::VariantArgs args;
};
// kUnsupported for combinations that there are none of; kInvalidArgument and kNotFound for wrong values.
Result<VariantChoice> choose_variant(const AttentionOptions& options);
// The parameters of one run: those that the object was made with, and what `values` change.
Status set_run_values(const AttentionOptions& options, const AttentionParams& made, const RunValues& values,
                      AttentionParams& params);
// The variant alone: looks at no memory.
Result<VariantSpec> variant_spec(const AttentionOptions& options);

// That the options make sense, whatever the device.
Status check_attention_options(const AttentionOptions& options);

// Planner options that follow from the public ones; num_workers and the cost model are the device's to set.
PlannerOptions planner_options(const AttentionConfig& config);

// On the CPU. products: how q.k and the weights times V are multiplied where that is faster.
Result<std::unique_ptr<PagedAttention>> create_cpu_paged_attention(const AttentionConfig& config,
                                                                   AttentionProducts products,
                                                                   std::shared_ptr<ThreadPool> threads);
// The same for a caller of the public API: threads as options say, products by the type of q.
Result<std::unique_ptr<PagedAttention>> create_cpu_paged_attention(const AttentionOptions& options);

}  // namespace fovea
