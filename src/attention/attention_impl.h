// What stands behind fovea::Attention (fovea/attention.h): one implementation a device kind. Made by Attention::create.
#pragma once

#include <memory>

#include "attention/attention_batch.h"
#include "base/status.h"
#include "core/plan/planner.h"
#include "fovea/attention.h"
#include "jit/variant_spec.h"
#include "variant/params.h"

namespace fovea {

class Attention::Impl {
 public:
  explicit Impl(AttentionOptions options) : options_(std::move(options)) {}
  virtual ~Impl() = default;

  virtual Status plan(const RequestBatch& batch, Stream stream) = 0;
  virtual Status plan_cascade(std::int32_t num_rows, std::span<const CascadeLevel> levels, Stream stream) = 0;
  virtual Status plan_selected(const SelectedBatch& batch, Stream stream) = 0;
  virtual Status grow(std::span<const std::int32_t> kv_lens, Stream stream) = 0;
  virtual Status grow_on_device(const TensorView& kv_lens, Stream stream) = 0;
  virtual Status growth_status(Stream) const { return ok_status(); }  // here refusals are grow_on_device()'s
  virtual Status run(const TensorView& q, const PagedKv& kv, const TensorView& out, const TensorView& lse,
                     Stream stream, const RunValues& values) = 0;
  virtual bool recorded() const { return false; }
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::size_t plan_bytes() const = 0;
  virtual const Planner& planner() const = 0;
  const AttentionOptions& options() const { return options_; }

 protected:
  AttentionOptions options_;
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

// Planner options that follow from the public ones; num_workers and the cost model are the device's to set.
PlannerOptions planner_options(const AttentionOptions& options);

Result<std::unique_ptr<Attention::Impl>> create_cpu_paged_attention(const AttentionOptions& options);

}  // namespace fovea
