// From a step to a forward.
#include "engine/runner/model_runner.h"

#include <algorithm>

#include "base/status.h"
#include "core/plan/explain.h"

namespace fovea {

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(Backend& backend, Model& model, KvPool& pool,
                                                         const ReqToTokenPool& rows,
                                                         const ModelRunnerOptions& options) {
  auto runner = std::unique_ptr<ModelRunner>(new ModelRunner(model, pool, rows, options));
  for (std::size_t g = 0; g < model.kv_groups().size(); ++g) {
    const KvGroupSpec& spec = model.kv_groups()[g];
    Group group;
    group.window_left = spec.window_tokens > 0 ? spec.window_tokens - 1 : -1;
    group.num_layers = spec.layers.size();
    group.config = model.attention_config(g);
    group.config.kv_dtype = KvPool::format_of(spec, options.kv_format).dtype;
    PlannerOptions& planner = group.config.planner;
    planner.num_workers = backend.num_threads();
    planner.kv_element_bits = dtype_bits(group.config.kv_dtype);
    planner.page_tokens = pool.page_tokens();
    planner.share_prefixes = options.share_prefixes;
    planner.batch_invariant = options.batch_invariant;
    planner.limits.max_requests = options.max_requests;
    planner.limits.max_rows = options.max_forward_tokens;
    planner.limits.max_pages_per_request = rows.stride();
    FOVEA_ASSIGN_OR_RETURN(group.attention, backend.create_attention(group.config));
    group.page_table.assign(static_cast<std::size_t>(options.max_requests) * rows.stride(), kDummyPage);
    group.slots.resize(options.max_forward_tokens);
    group.copied.assign(options.max_requests, 0);
    group.version.assign(options.max_requests, 0);
    runner->groups_.push_back(std::move(group));
  }
  const std::size_t logits = static_cast<std::size_t>(options.max_requests) * model.config().vocab_size;
  FOVEA_ASSIGN_OR_RETURN(runner->logits_, backend.allocate(logits * sizeof(float)));
  return runner;
}

std::span<const float> ModelRunner::logits(std::size_t sampled) const {
  const auto vocab = static_cast<std::size_t>(model_.config().vocab_size);
  return {static_cast<const float*>(logits_.get()) + sampled * vocab, vocab};
}

void ModelRunner::lay_out(const Step& step) {
  tokens_.clear();
  positions_.clear();
  logit_rows_.clear();
  q_lens_.clear();
  kv_lens_.clear();
  const std::int32_t page_tokens = pool_.page_tokens();
  for (const StepItem& item : step.items) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const auto row = rows_.row(item.sequence->slot, static_cast<std::int32_t>(g));
      std::int32_t* slots = groups_[g].slots.data() + tokens_.size();
      for (std::int32_t i = item.begin; i < item.begin + item.count; ++i) {
        *slots++ = row[i / page_tokens] * page_tokens + i % page_tokens;
      }
    }
    const auto first = item.sequence->tokens.begin() + item.begin;
    tokens_.insert(tokens_.end(), first, first + item.count);
    for (std::int32_t i = 0; i < item.count; ++i) positions_.push_back(item.begin + i);
    q_lens_.push_back(item.count);
    kv_lens_.push_back(item.begin + item.count);
    if (item.sample) logit_rows_.push_back(static_cast<std::int32_t>(tokens_.size()) - 1);
  }
}

bool ModelRunner::copy_tables(const Step& step, std::size_t g) {
  Group& group = groups_[g];
  const auto index = static_cast<std::int32_t>(g);
  bool changed = false;
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    const std::int32_t slot = step.items[i].sequence->slot;
    const std::uint64_t version = rows_.version(slot, index);
    const std::int32_t length = rows_.length(slot, index);
    if (group.version[i] != version) {
      group.version[i] = version;
      group.copied[i] = 0;
      changed = true;
    }
    const auto row = rows_.row(slot, index);
    const auto to = group.page_table.begin() + static_cast<std::ptrdiff_t>(i) * rows_.stride();
    std::copy(row.begin() + group.copied[i], row.begin() + length, to + group.copied[i]);
    group.copied[i] = length;
  }
  return changed;
}

AttentionBatch ModelRunner::batch_of(const Group& group) const {
  AttentionBatch batch;
  batch.num_requests = static_cast<std::int32_t>(q_lens_.size());
  batch.q_lens = q_lens_.data();
  batch.kv_lens = kv_lens_.data();
  batch.page_table = group.page_table.data();
  batch.page_table_stride = rows_.stride();
  batch.mask = group.window_left >= 0 ? abi::MaskKind::kWindow : abi::MaskKind::kCausal;
  batch.window_left = group.window_left;
  return batch;
}

Status ModelRunner::plan(const Step& step) {
  const bool decodes = std::all_of(q_lens_.begin(), q_lens_.end(), [](std::int32_t q) { return q == 1; });
  std::vector<std::uint64_t> ids;
  if (decodes) {
    for (const StepItem& item : step.items) ids.push_back(item.sequence->id);
  }
  const bool same = decodes && ids == planned_;
  // Not valid while a plan is being made: a failed one must not be grown.
  planned_.clear();
  kv_bytes_ = kv_bytes_unshared_ = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    const bool changed = copy_tables(step, g);
    if (same && !changed) {
      FOVEA_RETURN_IF_ERROR(group.attention->grow(kv_lens_.data()));
    } else {
      FOVEA_RETURN_IF_ERROR(group.attention->plan(batch_of(group)));
      if (g == 0) keep_snapshot(group);
    }
    const PlanStats stats = group.attention->stats();
    kv_bytes_ += stats.kv_bytes * group.num_layers;
    kv_bytes_unshared_ += stats.kv_bytes_unshared * group.num_layers;
  }
  planned_ = std::move(ids);
  return ok_status();
}

Status ModelRunner::run(const Step& step) {
  if (static_cast<std::int32_t>(step.items.size()) > options_.max_requests ||
      step.num_tokens > options_.max_forward_tokens) {
    return internal_error("a step of {} sequences and {} tokens; made for {} and {}", step.items.size(),
                          step.num_tokens, options_.max_requests, options_.max_forward_tokens);
  }
  for (const PageCopy& copy : step.copies) pool_.copy_page(copy.group, copy.from, copy.to);
  lay_out(step);
  FOVEA_RETURN_IF_ERROR(plan(step));
  ForwardBatch batch;
  batch.tokens = tokens_;
  batch.positions = positions_;
  batch.logit_rows = logit_rows_;
  for (Group& group : groups_) {
    batch.slots.emplace_back(group.slots.data(), tokens_.size());
    batch.attention.push_back(group.attention.get());
  }
  batch.layer_kv = pool_.layer_views();
  return model_.forward(batch, cpu_tensor(logits_.get(), DType::kF32, logit_rows_.size(), model_.config().vocab_size));
}

void ModelRunner::keep_snapshot(const Group& group) {
  const std::lock_guard lock(snapshot_mutex_);
  if (q_lens_.size() < 2 && snapshot_.q_lens.size() >= 2) return;
  snapshot_.q_lens = q_lens_;
  snapshot_.kv_lens = kv_lens_;
  snapshot_.window_left = group.window_left;
  const std::int32_t longest = *std::max_element(kv_lens_.begin(), kv_lens_.end());
  snapshot_.stride = (longest + pool_.page_tokens() - 1) / pool_.page_tokens();
  snapshot_.page_table.resize(q_lens_.size() * snapshot_.stride);
  for (std::size_t i = 0; i < q_lens_.size(); ++i) {
    std::copy_n(group.page_table.begin() + static_cast<std::ptrdiff_t>(i) * rows_.stride(), snapshot_.stride,
                snapshot_.page_table.begin() + static_cast<std::ptrdiff_t>(i) * snapshot_.stride);
  }
}

Result<Planner> ModelRunner::plan_snapshot() const {
  FOVEA_ASSIGN_OR_RETURN(Planner planner, Planner::create(groups_[0].config.planner));
  AttentionBatch batch;
  batch.num_requests = static_cast<std::int32_t>(snapshot_.q_lens.size());
  batch.q_lens = snapshot_.q_lens.data();
  batch.kv_lens = snapshot_.kv_lens.data();
  batch.page_table = snapshot_.page_table.data();
  batch.page_table_stride = snapshot_.stride;
  batch.mask = snapshot_.window_left >= 0 ? abi::MaskKind::kWindow : abi::MaskKind::kCausal;
  batch.window_left = snapshot_.window_left;
  FOVEA_RETURN_IF_ERROR(planner.plan(batch));
  return planner;
}

std::string ModelRunner::explain_svg() const {
  const std::lock_guard lock(snapshot_mutex_);
  const auto planner = plan_snapshot();
  return planner.ok() ? draw_plan(*planner) : std::string();
}

std::string ModelRunner::explain_text() const {
  const std::lock_guard lock(snapshot_mutex_);
  const auto planner = plan_snapshot();
  return planner.ok() ? explain_plan(*planner) : planner.status().to_string();
}

}  // namespace fovea
