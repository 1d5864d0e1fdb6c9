// See selection.h: which queries select, and their lists. Page-list entries are of 16 tokens here, whatever the size of
// a page.
#include "engine/runner/selection.h"

#include <algorithm>

#include "base/hash.h"
#include "base/status.h"

namespace fovea {
namespace {

std::vector<HeadRange> full_ranges(const AttentionGroupSpec& spec, const Model& model) {
  std::vector<HeadRange> full;
  for (const HeadRange& range : spec.ranges) {
    if (model.kv_groups()[range.kv_group].window_tokens == 0) full.push_back(range);
  }
  return full;
}

bool holds(std::span<const std::int32_t> layers, std::int32_t layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

}  // namespace

std::vector<std::int32_t> layers_that_can_select(const Model& model) {
  std::vector<std::int32_t> layers;
  for (const AttentionGroupSpec& spec : model.attention_groups()) {
    if (!full_ranges(spec, model).empty()) layers.insert(layers.end(), spec.layers.begin(), spec.layers.end());
  }
  std::sort(layers.begin(), layers.end());
  return layers;
}

std::int32_t heads_that_select(const Model& model, std::span<const std::int32_t> layers) {
  std::int32_t heads = 0;
  for (const AttentionGroupSpec& spec : model.attention_groups()) {
    const auto count =
        std::count_if(spec.layers.begin(), spec.layers.end(), [&](std::int32_t layer) { return holds(layers, layer); });
    for (const HeadRange& range : full_ranges(spec, model)) {
      heads += static_cast<std::int32_t>(count) * (range.head_end - range.head_begin);
    }
  }
  return heads;
}

Result<std::unique_ptr<Selection>> Selection::create(Device& device, const Model& model, const KvPool& pool,
                                                     const ReqToTokenPool& rows,
                                                     const std::vector<AttentionConfig>& attention,
                                                     const KvFormat& format, const SelectionOptions& options) {
  const std::size_t kv_groups = model.kv_groups().size();
  auto selection = std::unique_ptr<Selection>(new Selection(pool, rows, format, kv_groups, options));
  selection->device_ = &device;
  selection->layer_group_.assign(pool.layer_views().size(), 0);
  selection->layer_index_.assign(pool.layer_views().size(), -1);
  selection->head_dim_ = model.config().head_dim;
  selection->heads_a_layer_ = static_cast<std::size_t>(model.config().num_kv_heads);
  for (const KvGroupSpec& spec : model.kv_groups()) selection->full_group_.push_back(spec.window_tokens == 0);
  for (std::size_t a = 0; a < model.attention_groups().size(); ++a) {
    FOVEA_RETURN_IF_ERROR(selection->add_group(model, model.attention_groups()[a], attention[a]));
  }
  std::vector<std::int32_t> layers;
  for (std::size_t layer = 0; layer < selection->layer_index_.size(); ++layer) {
    if (selection->layer_index_[layer] < 0) continue;
    selection->layer_index_[layer] = static_cast<std::int32_t>(layers.size());
    layers.push_back(static_cast<std::int32_t>(layer));
  }
  if (layers.empty()) return internal_error("page selection without a layer that selects");
  std::vector<const abi::KeyCode*> codes;
  if (!device.reads_host_memory()) FOVEA_RETURN_IF_ERROR(selection->create_page_lists(model, attention, layers));
  for (std::size_t i = 0; i < layers.size() && options.stat == abi::StatKind::kCodes; ++i) {
    codes.push_back(selection->page_lists_ == nullptr
                        ? selection->options_.codes.of_layer(layers[i])
                        : selection->page_lists_->codes() + i * selection->heads_a_layer_);
  }
  FOVEA_ASSIGN_OR_RETURN(selection->stats_, PageStats::create(device, model.kv_groups(), pool, options.stat, codes,
                                                              options.rotary_dim, layers));
  selection->memory_.resize(static_cast<std::size_t>(rows.num_slots()));
  if (selection->page_lists_ == nullptr) {
    selection->list_maker_ = std::make_unique<ListMaker>(
        static_cast<std::int32_t>(layers.size()), model.config().num_kv_heads, rows.num_slots(), selection->head_dim_);
  }
  return selection;
}

Status Selection::add_group(const Model& model, const AttentionGroupSpec& spec, const AttentionConfig& config) {
  Group& group = groups_.emplace_back();
  group.config = config;
  for (std::size_t r = 0; r < spec.ranges.size(); ++r) {
    if (model.kv_groups()[spec.ranges[r].kv_group].window_tokens == 0) group.full.push_back({spec.ranges[r], r});
  }
  bool any = false;
  for (const std::int32_t layer : spec.layers) {
    layer_group_[static_cast<std::size_t>(layer)] = static_cast<std::int32_t>(groups_.size()) - 1;
    if (group.full.empty() || !holds(options_.layers, layer)) continue;
    layer_index_[static_cast<std::size_t>(layer)] = 0;
    any = true;
  }
  if (!any) return ok_status();
  AttentionOptions& options = group.config.options;
  options.page_tokens = kEntryTokens;
  options.max_pages_per_request = rows_.stride() * (pool_.page_tokens() / kEntryTokens);
  const PlannerOptions planner = planner_options(group.config);
  group.head_rows = std::make_unique<HeadBatch>(spec, model.kv_groups(), format_, planner);
  PlanLimits& limits = group.config.limits.emplace(planner.limits);
  group.head_rows->raise_limits(limits);
  // A selecting query has a block row for each of its heads.
  limits.max_covered_rows += limits.max_rows * options.num_kv_heads;
  limits.max_block_rows += limits.max_rows * options.num_kv_heads;
  FOVEA_ASSIGN_OR_RETURN(group.attention, device_->create_attention(group.config));
  return ok_status();
}

Status Selection::create_page_lists(const Model& model, const std::vector<AttentionConfig>& attention,
                                    const std::vector<std::int32_t>& layers) {
  if (std::count(full_group_.begin(), full_group_.end(), true) != 1) {
    return unsupported("page selection on {} with {} KV groups that keep every token, expected one", device_->name(),
                       std::count(full_group_.begin(), full_group_.end(), true));
  }
  const AttentionOptions& a = attention[0].options;
  std::vector<abi::KeyCode> codes;
  for (const std::int32_t layer : layers) {
    const abi::KeyCode* const of_layer = options_.codes.of_layer(layer);
    codes.insert(codes.end(), of_layer, of_layer + heads_a_layer_);
  }
  PageListsOptions o;
  o.q_dtype = a.q_dtype;
  o.sm_scale = a.sm_scale;
  o.head_dim = head_dim_;
  o.num_layers = static_cast<std::int32_t>(layers.size());
  o.num_kv_heads = a.num_kv_heads;
  o.group = a.num_qo_heads / a.num_kv_heads;
  o.codes = codes;
  o.max_rows = a.max_rows;
  o.max_units = rows_.stride() * (pool_.page_tokens() / kEntryTokens);
  o.max_entries = std::int64_t{o.max_units} * a.max_requests * static_cast<std::int64_t>(model.kv_groups().size());
  o.budget_units = options_.list_units;
  o.memories = 2 * rows_.num_slots();
  o.sink_tokens = options_.sink_tokens;
  o.recent_tokens = options_.recent_tokens;
  o.interval = options_.reuse.interval;
  o.candidate_factor = options_.reuse.candidate_factor;
  FOVEA_ASSIGN_OR_RETURN(page_lists_, device_->create_page_lists(o));
  return ok_status();
}

Status Selection::copy_page(std::size_t kv_group, std::int32_t from, std::int32_t to) {
  return stats_->copy_page(kv_group, from, to);
}

ChooseRule Selection::rule_of(const Sequence& sequence, std::int32_t tokens) const {
  ChooseRule rule;
  rule.unit_tokens = sequence.sparse.policy->unit_tokens;
  rule.budget_tokens = sequence.sparse.budget.at(tokens);
  rule.sink_tokens = options_.sink_tokens;
  rule.recent_tokens = options_.recent_tokens;
  rule.mass = sequence.sparse.policy->mass;
  return rule;
}

Status Selection::begin(const Step& step, std::span<const std::int32_t> positions) {
  queries_.clear();
  selecting_.clear();
  kv_bytes_ = kv_bytes_unshared_ = statistics_read_ = 0;
  std::int32_t row = 0;
  decodes_ = true;
  for (const StepItem& item : step.items) {
    const std::size_t first = queries_.size();
    selecting_.push_back(begin_prompt(item, row) + begin_item(item, row));
    for (std::size_t i = first; i < queries_.size(); ++i) queries_[i].item = selecting_.size() - 1;
    decodes_ = decodes_ && item.count == 1;
    row += item.count;
  }
  for (Group& group : groups_) group.layers_selected = 0;
  if (queries_.empty()) return ok_status();
  copy_tables(step);
  for (Group& group : groups_) {
    if (group.attention != nullptr) group.unselected = group.head_rows->make(step, positions, tables_, selecting_);
  }
  return page_lists_ == nullptr ? ok_status() : plan_page_lists(step);
}

ChooseRule Selection::prompt_rule(const Sequence& sequence, std::int32_t tokens) const {
  ChooseRule rule = rule_of(sequence, tokens);
  rule.budget_tokens = std::max(rule.budget_tokens, sequence.sparse.prompt_budget->at(tokens));
  rule.recent_tokens = options_.prompt_recent;
  return rule;
}

// The blocks of a prompt that select; how many queries they have. Whether one selects is decided by where it begins:
// those behind it then do too, also by the smaller budget of single queries.
std::int32_t Selection::begin_prompt(const StepItem& item, std::int32_t row) {
  const SparseSetting& sparse = item.sequence->sparse;
  if (sparse.policy == nullptr || !sparse.prompt_budget.has_value()) return 0;
  const std::int32_t end = std::min(item.begin + item.count, sparse.first_position);
  std::int32_t selecting = 0;
  for (std::int32_t begin = item.begin; begin < end;) {
    const std::int32_t block = begin / options_.prompt_block * options_.prompt_block;
    const std::int32_t rows = std::min(end, block + options_.prompt_block) - begin;
    if (!under_budget(prompt_rule(*item.sequence, block + 1), block + 1)) {
      Query query{item.sequence, row + begin - item.begin, begin + rows, rows};
      query.prompt = true;
      queries_.push_back(query);
      selecting += rows;
    }
    begin += rows;
  }
  return selecting;
}

// The queries of a request that select are its last; how many.
std::int32_t Selection::begin_item(const StepItem& item, std::int32_t row) {
  const Sequence& sequence = *item.sequence;
  if (sequence.sparse.policy == nullptr) return 0;
  const std::size_t before = queries_.size();
  Memory& memory = memory_[static_cast<std::size_t>(sequence.slot)];
  std::int32_t scan = -1;
  for (std::int32_t i = std::max(0, sequence.sparse.first_position - item.begin); i < item.count; ++i) {
    const std::int32_t tokens = item.begin + i + 1;
    if (under_budget(rule_of(sequence, tokens), tokens)) continue;
    // Another request's, or of tokens that are computed again.
    if (memory.sequence != sequence.id || tokens <= memory.selected_tokens) {
      memory.sequence = sequence.id;
      memory.scanned_tokens = 0;
    }
    memory.selected_tokens = tokens;
    Query query{&sequence, row + i, tokens};
    // Those of prompts and the first behind them scan, so that choices of a request need nothing of each other.
    const SelectMemory last{{}, tokens <= sequence.prompt_length + 1 ? 0 : memory.scanned_tokens};
    query.work = select_work(options_.reuse, last, tokens, sequence.sparse.phase);
    if (query.work == SelectWork::kScan) {
      memory.scanned_tokens = tokens;
      scan = static_cast<std::int32_t>(queries_.size());
    } else if (scan >= 0) {
      query.scan = scan;
      queries_[static_cast<std::size_t>(scan)].kept = true;
    }
    queries_.push_back(query);
  }
  if (scan >= 0 && options_.reuse.interval > 1) {
    queries_[static_cast<std::size_t>(scan)].kept = queries_[static_cast<std::size_t>(scan)].remembered = true;
  }
  if (page_lists_ != nullptr) say_memories(memory, before, scan);
  return static_cast<std::int32_t>(queries_.size() - before);
}

// What the device's rows say of queries [first_query, ..) of one item, the last of whose scans is kept.
void Selection::say_memories(Memory& memory, std::size_t first_query, std::int32_t scan) {
  const auto slot = static_cast<std::uint32_t>(&memory - memory_.data());
  for (std::size_t i = first_query; i < queries_.size(); ++i) {
    Query& query = queries_[i];
    query.records = static_cast<std::uint32_t>(num_units(query.tokens, kEntryTokens));
    if (query.work == SelectWork::kScan) continue;
    if (query.scan >= 0) {
      query.work = SelectWork::kScan;
      query.scan = -1;
      continue;
    }
    query.reads = 2 * slot + memory.bank;
    abi::SelectRow asked{};
    asked.reads = query.reads;
    abi::SelectArgs args{};
    args.rows = &asked;
    args.recent_tokens = static_cast<std::uint32_t>(options_.recent_tokens);
    query.records = abi::span_count(abi::select_span(args, asked, static_cast<std::uint32_t>(query.tokens),
                                                     {memory.candidates, memory.last_scan}, 0));
  }
  if (scan < 0 || options_.reuse.interval <= 1) return;
  Query& last = queries_[static_cast<std::size_t>(scan)];
  memory.bank ^= 1;
  last.writes = 2 * slot + memory.bank;
  const std::int32_t budget = rule_of(*last.sequence, last.tokens).budget_tokens / kEntryTokens;
  memory.candidates = static_cast<std::uint32_t>(
      std::min(options_.reuse.candidate_factor * budget, num_units(last.tokens, kEntryTokens)));
  memory.last_scan = static_cast<std::uint32_t>(last.tokens);
}

abi::PageStatsView Selection::statistics(std::int32_t layer, std::size_t range) const {
  if (!selects(layer)) return {};
  const Group& group = groups_[static_cast<std::size_t>(layer_group_[static_cast<std::size_t>(layer)])];
  for (const FullHeads& full : group.full) {
    if (full.range == range) return stats_->view(layer, full.heads);
  }
  return {};
}

std::uint64_t Selection::replay_key() const {
  if (queries_.empty()) return 1;
  if (page_lists_ == nullptr) return 0;
  std::uint64_t key = hash_combine(2, select_rows_.size());
  for (const Group& group : groups_) {
    if (group.attention != nullptr) {
      key = hash_combine(key, group.attention->run_kind());
    }
  }
  return key;
}

ListQuery Selection::list_query(const Query& query, const FullHeads& full) const {
  const Sequence& sequence = *query.sequence;
  ListQuery made;
  SelectJob& job = made.job;
  job.policy = sequence.sparse.policy;
  job.rule = rule_of(sequence, query.tokens);
  job.row = query.row;
  job.pages = rows_.row(sequence.slot, static_cast<std::int32_t>(full.heads.kv_group)).data();
  job.tokens = query.tokens;
  made.seen = query.tokens;
  made.memory = sequence.slot;
  made.work = query.work;
  made.scan = query.scan;
  made.remembered = query.remembered;
  if (query.kept) {
    const std::int32_t most = job.rule.budget_tokens / job.rule.unit_tokens;
    // Lists that are kept as they are leave room for what will be written.
    const std::int32_t room = num_units(options_.reuse.interval, job.rule.unit_tokens) + 1;
    made.num_candidates =
        options_.reuse.candidate_factor > 0 ? options_.reuse.candidate_factor * most : std::max(most - room, 1);
  }
  if (!query.prompt) return made;
  // Chosen are whole units before the block; what is left of the budget goes to them.
  job.rule = prompt_rule(sequence, query.tokens);
  const std::int32_t unit = job.rule.unit_tokens;
  job.tokens = (query.tokens - query.rows) / unit * unit;
  job.rule.budget_tokens -= query.tokens - job.tokens;
  job.rows = query.rows;
  job.mean_rows = options_.prompt_mean;
  return made;
}

// The query heads of KV heads that select.
TensorView Selection::queries_of(const TensorView& q, const HeadRange& heads, const Group& of) {
  const std::int64_t group = of.config.options.num_qo_heads / of.config.options.num_kv_heads;
  TensorView part = q;
  part.shape[1] = (heads.head_end - heads.head_begin) * group;
  part.data = static_cast<std::byte*>(q.data) + heads.head_begin * group * q.strides[1] * dtype_bits(q.dtype) / 8;
  return part;
}

Status Selection::make_lists(std::int32_t layer, const Group& group, const TensorView& q) {
  const ListCounts before = list_maker_->counts();
  for (const FullHeads& full : group.full) {
    list_queries_.clear();
    for (const Query& query : queries_) list_queries_.push_back(list_query(query, full));
    const TensorView part = queries_of(q, full.heads, group);
    FOVEA_RETURN_IF_ERROR(list_maker_->make(
        layer_index_[static_cast<std::size_t>(layer)], static_cast<std::uint64_t>(layer), full.heads.head_begin,
        full.heads.head_end, list_queries_, [&](std::span<const SelectJob> jobs) {
          return device_->select_pages(part, group.config.options.sm_scale, pool_of(layer, full),
                                       stats_->view(layer, full.heads), jobs);
        }));
  }
  const ListCounts& after = list_maker_->counts();
  counts_.refreshes += after.scans - before.scans;
  counts_.rescorings += after.rescorings - before.rescorings;
  counts_.reuses += after.reuses - before.reuses;
  counts_.records_read += after.records - before.records;
  statistics_read_ += after.record_bytes - before.record_bytes;
  return ok_status();
}

Result<bool> Selection::attend(std::int32_t layer, const TensorView& q, const TensorView& out) {
  if (queries_.empty() || !selects(layer)) return false;
  Group& group = group_of(layer);
  if (page_lists_ != nullptr) return attend_page_lists(layer, group, q, out);
  FOVEA_RETURN_IF_ERROR(make_lists(layer, group, q));
  FOVEA_RETURN_IF_ERROR(run_plan(layer, group, q, out));
  ++group.layers_selected;
  return true;
}

}  // namespace fovea
