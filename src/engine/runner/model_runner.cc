// From a step to a forward.
#include "engine/runner/model_runner.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "base/hash.h"
#include "base/status.h"
#include "core/plan/explain.h"
#include "core/plan/timeline.h"
#include "device/group/process_group.h"
#include "engine/runner/key_profiler.h"
#include "engine/runner/step_log.h"
#include "engine/scheduler/step_clock.h"

namespace fovea {

namespace {

// Of a step with prompts that is repeated: the GPU takes longer for more than the host does to launch its kernels one
// by one, and their sizes come again more rarely.
constexpr std::size_t kMostTokensRepeated = 256;

// Room for the block rows that plans of requests make too (PlanLimits::max_block_rows and max_covered_rows).
void raise_to_requests(PlanLimits& limits) {
  limits.max_block_rows = std::max(limits.max_block_rows, 3 * limits.max_requests);
  limits.max_covered_rows =
      std::max(limits.max_covered_rows, limits.max_rows + std::max(limits.max_rows, limits.max_shared_rows));
}

}  // namespace

std::uint64_t ModelRunner::next_number() {
  static std::atomic<std::uint64_t> numbers{0};
  return ++numbers;
}

Result<std::unique_ptr<ModelRunner>> ModelRunner::create(Device& device, Model& model, KvPool& pool,
                                                         const ReqToTokenPool& rows,
                                                         const ModelRunnerOptions& options) {
  auto runner = std::unique_ptr<ModelRunner>(new ModelRunner(device, model, pool, rows, options));
  const std::vector<KvGroupSpec>& specs = model.kv_groups();
  for (std::size_t g = 0; g < specs.size(); ++g) {
    Group& group = runner->groups_.emplace_back();
    group.slots.resize(options.max_forward_tokens);
    group.copied.assign(options.max_requests, 0);
    group.version.assign(options.max_requests, 0);
  }
  for (std::size_t a = 0; a < model.attention_groups().size(); ++a) {
    const AttentionGroupSpec& spec = model.attention_groups()[a];
    AttentionGroup attention;
    attention.num_layers = spec.layers.size();
    AttentionConfig& config = attention.config;
    config.options = model.attention_options(a);
    for (const HeadRange& range : spec.ranges) {
      config.pools.push_back(KvPool::format_of(specs[range.kv_group], options.kv_format));
    }
    // The type of most of what is read: that of heads which see all.
    const auto full = std::find_if(spec.ranges.begin(), spec.ranges.end(),
                                   [&](const HeadRange& range) { return specs[range.kv_group].window_tokens == 0; });
    config.set_format(config.pools[full == spec.ranges.end() ? 0 : full - spec.ranges.begin()]);
    config.options.q_dtype = device.activation_dtype();
    config.options.page_tokens = pool.page_tokens();
    config.options.share_prefixes = options.share_prefixes;
    config.options.batch_invariant = options.batch_invariant;
    config.options.max_requests = options.max_requests;
    config.options.max_rows = options.max_forward_tokens;
    config.options.max_pages_per_request = rows.stride();
    config.options.device_growth = false;  // page lists lie on the host
    config.graphs_by_kind = true;
    attention.by_request = plans_by_request(spec, specs);
    if (attention.by_request) {
      attention.kv_group = spec.ranges[0].kv_group;
      attention.window_left = specs[attention.kv_group].window_tokens - 1;
    }
    if (!attention.by_request || options.max_tree_rows > 0) {
      const PlannerOptions planner = planner_options(config);
      attention.head_rows = std::make_unique<HeadBatch>(spec, specs, options.kv_format, planner);
      config.limits = planner.limits;
      attention.head_rows->raise_limits(*config.limits, options.max_tree_rows);
      if (attention.by_request) raise_to_requests(*config.limits);
    }
    FOVEA_ASSIGN_OR_RETURN(attention.op, device.create_attention(config));
    attention.planner = attention.op->planner().options();
    runner->attention_.push_back(std::move(attention));
  }
  if (options.selection.has_value()) {
    std::vector<AttentionConfig> configs;
    for (const AttentionGroup& attention : runner->attention_) configs.push_back(attention.config);
    FOVEA_ASSIGN_OR_RETURN(runner->selection_, Selection::create(device, model, pool, rows, configs, options.kv_format,
                                                                 *options.selection));
  }
  if (device.group() != nullptr && device.group()->rank() == 0) runner->others_.emplace(rows);
  const std::size_t logits = static_cast<std::size_t>(options.max_logit_rows) * model.config().vocab_size;
  FOVEA_ASSIGN_OR_RETURN(runner->logits_, device.allocate(logits * sizeof(float)));
  if (!device.reads_host_memory()) {
    const std::size_t best = static_cast<std::size_t>(options.max_logit_rows) * sizeof(std::int32_t);
    FOVEA_ASSIGN_OR_RETURN(runner->best_memory_, device.allocate(best));
  }
  if (options.clock != nullptr) {
    ModelRunnerOptions of_chunk = options;
    of_chunk.max_requests = of_chunk.max_logit_rows = 1;
    of_chunk.max_tree_rows = 0;
    of_chunk.clock = nullptr;
    FOVEA_ASSIGN_OR_RETURN(runner->chunk_, create(device, model, pool, rows, of_chunk));
    runner->chunk_->logits_ = runner->logits_;
  }
  return runner;
}

std::span<const float> ModelRunner::logits(std::size_t row) const {
  const auto vocab = static_cast<std::size_t>(model_.config().vocab_size);
  if (row < logits_begin_ || row >= logits_end_) return {};
  return {host_logits_ + (row - logits_begin_) * vocab, vocab};
}

std::int32_t ModelRunner::best(std::size_t row) const { return row < best_.size() ? best_[row] : -1; }

void ModelRunner::lay_out(const Step& step) {
  tokens_.clear();
  positions_.clear();
  logit_rows_.clear();
  draws_.clear();
  some_draw_ = false;
  draft_tokens_ = 0;
  q_lens_.clear();
  kv_lens_.clear();
  for (const StepItem& item : step.items) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      std::int32_t* slots = groups_[g].slots.data() + tokens_.size();
      for (std::int32_t i = item.begin; i < item.begin + item.count; ++i) *slots++ = slot_of(*item.sequence, g, i);
    }
    const std::int32_t scored = static_cast<std::int32_t>(tokens_.size()) + item.score_begin - item.begin;
    for (std::int32_t i = 0; i < item.scores; ++i) logit_rows_.push_back(scored + i);
    if (best_memory_ != nullptr) draws_.resize(logit_rows_.size());  // nobody draws from scores
    const auto first = item.sequence->tokens.begin() + item.begin;
    tokens_.insert(tokens_.end(), first, first + item.count - item.drafts);
    const std::int32_t known = item.count - item.drafts;
    for (std::int32_t i = 0; i < known; ++i) positions_.push_back(item.begin + i);
    draft_tokens_ += static_cast<std::size_t>(item.drafts);
    for (const DraftNode& node : item.draft_tree()) {
      tokens_.push_back(node.token);
      positions_.push_back(item.begin + known - 1 + node.depth);
    }
    q_lens_.push_back(item.count);
    kv_lens_.push_back(item.begin + item.count);
    const auto rows = static_cast<std::int32_t>(tokens_.size());
    for (std::int32_t i = item.drafts; item.sample && i >= 0; --i) {
      logit_rows_.push_back(rows - 1 - i);
      if (best_memory_ == nullptr) continue;
      const std::int32_t nth = item.drafts - 1 - i;  // of the draft tokens; -1: none
      const std::int32_t depth = nth < 0 ? 0 : item.draft_tree()[static_cast<std::size_t>(nth)].depth;
      const std::int32_t generated = item.sequence->length() - item.sequence->prompt_length + depth;
      draws_.push_back(draw_row(item.sequence->draw, generated));
      some_draw_ = some_draw_ || item.sequence->draw.draws();
    }
  }
}

void ModelRunner::copy_tables(const Step& step, std::size_t g) {
  Group& group = groups_[g];
  const auto index = static_cast<std::int32_t>(g);
  group.changed = false;
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    const std::int32_t slot = step.items[i].sequence->slot;
    const std::uint64_t version = rows_.version(slot, index);
    const std::int32_t length = rows_.length(slot, index);
    if (group.version[i] != version) {
      group.version[i] = version;
      group.copied[i] = 0;
      group.changed = true;
    }
    const auto row = rows_.row(slot, index);
    const auto to = tables_.entries.begin() + static_cast<std::ptrdiff_t>(tables_.begin(g, i));
    std::copy(row.begin() + group.copied[i], row.begin() + length, to + group.copied[i]);
    group.copied[i] = length;
  }
}

RequestBatch ModelRunner::batch_of(const AttentionGroup& attention) const {
  RequestBatch batch;
  batch.num_requests = static_cast<std::int32_t>(q_lens_.size());
  batch.q_lens = q_lens_.data();
  batch.kv_lens = kv_lens_.data();
  batch.page_indices = tables_.entries.data() + tables_.begin(attention.kv_group, 0);
  batch.page_stride = rows_.stride();
  batch.mask = attention.window_left >= 0 ? AttentionMask::kWindow : AttentionMask::kCausal;
  batch.window_left = attention.window_left;
  return batch;
}

Status ModelRunner::plan(const Step& step) {
  const bool decodes = std::all_of(q_lens_.begin(), q_lens_.end(), [](std::int32_t q) { return q == 1; });
  std::vector<std::uint64_t> ids;
  if (decodes) {
    for (const StepItem& item : step.items) ids.push_back(item.sequence->id);
  }
  // A token that was taken back makes a sequence shorter, which no plan grows to.
  const bool same = decodes && ids == planned_ &&
                    std::equal(kv_lens_.begin(), kv_lens_.end(), planned_lens_.begin(), std::greater_equal<>());
  // Not valid while a plan is being made: a failed one must not be grown.
  planned_.clear();
  row_requests_.clear();
  for (std::size_t g = 0; g < groups_.size(); ++g) copy_tables(step, g);
  for (AttentionGroup& attention : attention_) FOVEA_RETURN_IF_ERROR(plan_attention(step, attention, same));
  planned_ = std::move(ids);
  planned_lens_ = kv_lens_;
  for (const StepItem& item : step.items) {
    row_requests_.insert(row_requests_.end(), static_cast<std::size_t>(item.count), item.sequence->arrival);
  }
  return ok_status();
}

void ModelRunner::count_bytes() {
  if (selection_ != nullptr) selection_->count_page_lists();
  kv_bytes_ = selection_ == nullptr ? 0 : selection_->kv_bytes();
  kv_bytes_unshared_ = selection_ == nullptr ? 0 : selection_->kv_bytes_unshared();
  for (std::size_t a = 0; a < attention_.size(); ++a) {
    const std::size_t selected = selection_ == nullptr ? 0 : selection_->layers_selected(a);
    const PlanStats stats = attention_[a].op->stats();
    kv_bytes_ += stats.kv_bytes * (attention_[a].num_layers - selected);
    kv_bytes_unshared_ += stats.kv_bytes_unshared * (attention_[a].num_layers - selected);
  }
}

Status ModelRunner::plan_attention(const Step& step, AttentionGroup& attention, bool same_requests) {
  const bool first = &attention == attention_.data();
  const bool trees = std::any_of(step.items.begin(), step.items.end(),
                                 [](const StepItem& item) { return !is_chain(item.draft_tree()); });
  if (!attention.by_request || trees) {
    const BlockRowBatch batch = attention.head_rows->make(step, positions_, tables_);
    FOVEA_RETURN_IF_ERROR(attention.op->plan_block_rows(batch, device_.stream()));
    if (first && !trees) keep_snapshot(attention, &batch);  // which has no masks
    return ok_status();
  }
  if (same_requests && !groups_[attention.kv_group].changed) return attention.op->grow(kv_lens_, device_.stream());
  FOVEA_RETURN_IF_ERROR(attention.op->plan(batch_of(attention), device_.stream()));
  if (first) keep_snapshot(attention, nullptr);
  return ok_status();
}

// All that the launches depend on: which tokens, positions, slots and rows of logits there are, and what each row sees,
// lies in arrays and plans, at addresses that follow from the numbers of tokens and of rows of logits.
ReplayKey ModelRunner::replay_key() const {
  // Draft tokens are tokens among others.
  const bool decodes = tokens_.size() == q_lens_.size() + draft_tokens_ && logit_rows_.size() == tokens_.size();
  if (!options_.repeats_steps || (!decodes && tokens_.size() > kMostTokensRepeated)) return {};
  // What a device captured for one runner has the addresses of that one's buffers.
  std::uint64_t key = hash_combine(hash_combine(number_, some_draw_ ? 2 : 1), tokens_.size());
  key = hash_combine(key, logit_rows_.size());
  for (const AttentionGroup& attention : attention_) {
    key = hash_combine(key, attention.op->run_kind());
  }
  if (selection_ != nullptr) {
    const std::uint64_t selecting = selection_->replay_key();
    if (selecting == 0) return {};
    key = hash_combine(key, selecting);
  }
  // Steps of decode come with as many sizes as there are sequences; those with prompts with that times their chunks'.
  return {.launches = std::max<std::uint64_t>(key, 1), .of_many = !decodes};
}

Status ModelRunner::read_logits(std::span<const StepItem> items) {
  if (best_memory_ != nullptr) {
    // Rows that somebody wants whole, and those between them.
    logits_begin_ = best_.size();
    logits_end_ = 0;
    std::size_t row = 0;
    for (const StepItem& item : items) {
      const std::size_t end = row + item.results();
      if (end == row) continue;
      if (item.sequence == nullptr) {
        row = end;
        continue;
      }
      const bool by_host = item.scores > 0 || (!item.sequence->greedy && !item.sequence->draw.draws());
      if (by_host ||
          std::find(best_.begin() + static_cast<std::ptrdiff_t>(row), best_.begin() + static_cast<std::ptrdiff_t>(end),
                    abi::kDrawOnHost) != best_.begin() + static_cast<std::ptrdiff_t>(end)) {
        logits_begin_ = std::min(logits_begin_, row);
        logits_end_ = end;
      }
      row = end;
    }
    if (logits_begin_ >= logits_end_) return ok_status();
  }
  const auto vocab = static_cast<std::size_t>(model_.config().vocab_size);
  const auto* const first = static_cast<const float*>(logits_.get()) + logits_begin_ * vocab;
  FOVEA_ASSIGN_OR_RETURN(const void* const read,
                         device_.read(device_.tensor(first, DType::kF32, logits_end_ - logits_begin_, vocab)));
  host_logits_ = static_cast<const float*>(read);
  return ok_status();
}

Status ModelRunner::end_ranks(Status status) {
  ProcessGroup* const group = device_.group();
  if (group == nullptr || status.ok()) return status;
  group->end(make_status(status.code(), "rank {}: {}", group->rank(), status.message()));
  const Status why = group->status();  // where others ended it, that is why this failed
  return why.ok() ? status : why;
}

const char* ModelRunner::why_not_ahead() const {
  if (best_memory_ == nullptr) return "the device computes on the engine's thread";
  if (device_.group() != nullptr) return "other ranks are told each step's tokens";
  if (selection_ != nullptr) return "pages are selected";
  return nullptr;
}

Status ModelRunner::collect(std::span<const StepItem> items, bool logits_there) {
  return end_ranks(collect_here(items, logits_there));
}

Status ModelRunner::collect_here(std::span<const StepItem> items, bool logits_there) {
  const StepLog::Phase phase(options_.log, "wait");
  std::size_t rows = 0;
  for (const StepItem& item : items) rows += item.results();
  logits_begin_ = 0;
  logits_end_ = logits_there ? rows : 0;
  best_.clear();
  if (best_memory_ != nullptr) {
    --open_reads_;
    FOVEA_ASSIGN_OR_RETURN(const void* const best, device_.end_read());
    best_.assign(static_cast<const std::int32_t*>(best), static_cast<const std::int32_t*>(best) + rows);
  }
  return logits_there ? read_logits(items) : ok_status();
}

void ModelRunner::keep_accepted(const StepItem& item, std::int32_t node, std::int32_t place) {
  if (node == place) return;
  const std::int32_t first = item.begin + item.count - item.drafts;
  moves_.clear();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    moves_.push_back({slot_of(*item.sequence, g, first + node), slot_of(*item.sequence, g, first + place)});
  }
  pool_.move_token(moves_);
}

void ModelRunner::forget() {
  for (; open_reads_ > 0; --open_reads_) (void)device_.end_read();
}

Status ModelRunner::run(const Step& step) {
  FOVEA_RETURN_IF_ERROR(launch(step, {}));
  return gives_results() ? collect(step.items, true) : ok_status();
}

Status ModelRunner::launch(const Step& step, std::span<const std::int32_t> token_rows) {
  if (others_.has_value()) FOVEA_RETURN_IF_ERROR(device_.group()->broadcast(others_->write(step)));
  return end_ranks(launch_here(step, token_rows));
}

Status ModelRunner::launch_here(const Step& step, std::span<const std::int32_t> token_rows) {
  const bool has_part = !step.items.empty() && step.items.back().part;
  const std::int32_t tokens = step.num_tokens + (has_part ? step.items.back().count : 0);
  if (static_cast<std::int32_t>(step.items.size()) > options_.max_requests || tokens > options_.max_forward_tokens ||
      (has_part && chunk_ == nullptr)) {
    return internal_error("a step of {} sequences and {} tokens; made for {} and {}", step.items.size(), tokens,
                          options_.max_requests, options_.max_forward_tokens);
  }
  FOVEA_RETURN_IF_ERROR(pool_.move_tokens());
  for (const PageCopy& copy : step.copies) {
    FOVEA_RETURN_IF_ERROR(pool_.copy_page(copy.group, copy.from, copy.to));
    if (selection_ != nullptr) FOVEA_RETURN_IF_ERROR(selection_->copy_page(copy.group, copy.from, copy.to));
  }
  if (!has_part) return forward(step, token_rows);
  Step others;
  others.items.assign(step.items.begin(), step.items.end() - 1);
  kv_bytes_ = kv_bytes_unshared_ = 0;
  if (!others.items.empty()) FOVEA_RETURN_IF_ERROR(forward(others, {}));
  const std::size_t rows = others.items.empty() ? 0 : logit_rows_.size();
  options_.clock->begin_part(step.least_seconds);
  const StepLog::Phase phase(options_.log, "compute");
  FOVEA_ASSIGN_OR_RETURN(chunk_is_whole_, chunk_->forward_part(step.items.back(), rows, *options_.clock));
  if (!chunk_is_whole_) return ok_status();
  kv_bytes_ += chunk_->kv_bytes_;
  kv_bytes_unshared_ += chunk_->kv_bytes_unshared_;
  return ok_status();
}

Result<bool> ModelRunner::forward_part(const StepItem& item, std::size_t first_row, StepClock& clock) {
  if (!item.goes_on) {
    Step chunk;
    chunk.items.push_back(item);
    chunk.items.back().sample = item.count == item.sequence->remaining();
    lay_out(chunk);
    FOVEA_RETURN_IF_ERROR(plan(chunk));
  }
  FOVEA_ASSIGN_OR_RETURN(const bool whole,
                         model_.forward_part(make_batch(), logits_of_step(first_row), clock, item.goes_on));
  if (whole) count_bytes();
  return whole;
}

ForwardBatch ModelRunner::make_batch() const {
  ForwardBatch batch;
  batch.tokens = tokens_;
  batch.positions = positions_;
  batch.logit_rows = logit_rows_;
  for (const Group& group : groups_) batch.slots.emplace_back(group.slots.data(), tokens_.size());
  for (const AttentionGroup& attention : attention_) batch.attention.push_back(attention.op.get());
  batch.layer_kv = pool_.layer_views();
  return batch;
}

TensorView ModelRunner::logits_of_step(std::size_t first_row) const {
  const auto vocab = static_cast<std::size_t>(model_.config().vocab_size);
  return device_.tensor(static_cast<float*>(logits_.get()) + first_row * vocab, DType::kF32, logit_rows_.size(), vocab);
}

Status ModelRunner::forward(const Step& step, std::span<const std::int32_t> token_rows) {
  std::optional<StepLog::Phase> phase(std::in_place, options_.log, "plan");
  lay_out(step);
  FOVEA_RETURN_IF_ERROR(plan(step));
  ForwardBatch batch = make_batch();
  if (selection_ != nullptr) {
    FOVEA_RETURN_IF_ERROR(selection_->begin(step, positions_));
    batch.selection = selection_.get();
  } else if (options_.profiler != nullptr) {
    options_.profiler->begin(batch);
    batch.selection = options_.profiler;
  }
  const TensorView logits = logits_of_step(0);
  if (best_memory_ != nullptr && !logit_rows_.empty()) {
    batch.best = device_.tensor(best_memory_.get(), DType::kI32, logit_rows_.size());
    if (some_draw_) batch.draws = draws_;
  }
  batch.token_rows = token_rows;
  batch.latest = static_cast<const std::int32_t*>(best_memory_.get());
  batch.key = replay_key();
  phase.emplace(options_.log, device_.reads_host_memory() ? "compute" : "enqueue");
  if (options_.log != nullptr) options_.log->device_begins(step.items.size(), tokens_.size());
  FOVEA_RETURN_IF_ERROR(model_.forward(batch, logits));
  if (options_.log != nullptr) options_.log->device_ends();
  if (!gives_results()) return ok_status();
  count_bytes();
  if (best_memory_ == nullptr) return ok_status();
  FOVEA_RETURN_IF_ERROR(device_.begin_read(device_.tensor(best_memory_.get(), DType::kI32, logit_rows_.size())));
  ++open_reads_;
  return ok_status();
}

void ModelRunner::keep_snapshot(const AttentionGroup& attention, const BlockRowBatch* head_rows) {
  const std::lock_guard lock(snapshot_mutex_);
  if (q_lens_.size() < 2 && snapshot_.q_lens.size() >= 2) return;
  snapshot_.q_lens = q_lens_;
  snapshot_.kv_lens = kv_lens_;
  if (head_rows != nullptr) {
    snapshot_.block_rows.assign(head_rows->block_rows.begin(), head_rows->block_rows.end());
    snapshot_.row_indices.assign(head_rows->row_indices.begin(), head_rows->row_indices.end());
    snapshot_.q_pos.assign(head_rows->q_pos.begin(), head_rows->q_pos.end());
    return;
  }
  snapshot_.window_left = attention.window_left;
  const std::int32_t longest = *std::max_element(kv_lens_.begin(), kv_lens_.end());
  snapshot_.stride = (longest + pool_.page_tokens() - 1) / pool_.page_tokens();
  snapshot_.page_table.resize(q_lens_.size() * snapshot_.stride);
  for (std::size_t i = 0; i < q_lens_.size(); ++i) {
    std::copy_n(tables_.entries.begin() + static_cast<std::ptrdiff_t>(tables_.begin(attention.kv_group, i)),
                snapshot_.stride, snapshot_.page_table.begin() + static_cast<std::ptrdiff_t>(i) * snapshot_.stride);
  }
}

Result<Planner> ModelRunner::plan_snapshot() const {
  FOVEA_ASSIGN_OR_RETURN(Planner planner, Planner::create(attention_[0].planner));
  if (!attention_[0].by_request) {
    BlockRowBatch batch;
    batch.num_rows = static_cast<std::int32_t>(snapshot_.q_pos.size());
    batch.block_rows = snapshot_.block_rows;
    batch.row_indices = snapshot_.row_indices;
    batch.q_pos = snapshot_.q_pos;
    batch.page_entries = tables_.entries.data();  // a plan points to the lists and does not read them
    FOVEA_RETURN_IF_ERROR(planner.plan_block_rows(batch));
    return planner;
  }
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

TimelineView ModelRunner::timeline(std::size_t limit) const {
  TimelineView out;
  if (row_requests_.empty()) return out;
  const Planner& planner = attention_[0].op->planner();
  const abi::PlanView plan = planner.view();
  const PlanStats stats = planner.stats();
  out.workers = static_cast<std::int32_t>(plan.launches[0].num_workers);
  out.cost = stats.total_cost;
  out.longest = stats.max_worker_cost;
  out.kv_bytes = stats.kv_bytes;
  out.kv_bytes_unshared = stats.kv_bytes_unshared;
  std::vector<TimelineEntry> entries = plan_timeline(planner);
  out.items_left_out = keep_largest(entries, limit);
  out.items.reserve(entries.size());
  for (const TimelineEntry& entry : entries) {
    const abi::WorkItem& item = plan.items[abi::queue_item(entry.entry)];
    const std::uint32_t requests = plan.block_rows[item.block_row].num_requests;
    TimelineItem& shown = out.items.emplace_back();
    shown.worker = static_cast<std::int32_t>(entry.worker);
    shown.begin = entry.begin;
    shown.cost = entry.cost;
    shown.request = requests == 1 ? row_requests_[plan.row_indices[item.row_begin]] : 0;
    shown.requests = static_cast<std::int32_t>(requests);
    shown.head = static_cast<std::int32_t>(abi::queue_head(entry.entry));
    shown.query_tokens = item.row_count;
    shown.kv_tokens = static_cast<std::int32_t>(item.kv_end - item.kv_begin);
  }
  return out;
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
