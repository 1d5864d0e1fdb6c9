// See selection.h. Page-list entries are of 16 tokens here, whatever the size of a page.
#include "engine/runner/selection.h"

#include <algorithm>
#include <numeric>

#include "base/hash.h"
#include "base/status.h"

namespace fovea {
namespace {

constexpr std::int32_t kEntryTokens = abi::kSubPageTokens;

abi::BlockRow block_row(std::int32_t row, std::int32_t count, std::int32_t head_begin, std::int32_t head_end) {
  abi::BlockRow made{};
  made.row_begin = static_cast<std::uint32_t>(row);
  made.row_count = static_cast<std::uint32_t>(count);
  made.positions_begin = abi::kNone;
  made.length_slot = abi::kNone;
  made.head_begin = static_cast<std::uint16_t>(head_begin);
  made.head_end = static_cast<std::uint16_t>(head_end);
  made.flags = abi::kRowsContiguous;
  made.num_requests = 1;
  return made;
}

// Layers can select whose heads all stand in one KV group that keeps every token.
bool can_select(const AttentionGroupSpec& spec, const Model& model) {
  return spec.ranges.size() == 1 && model.kv_groups()[spec.ranges[0].kv_group].window_tokens == 0;
}

}  // namespace

std::vector<std::int32_t> layers_that_can_select(const Model& model) {
  std::vector<std::int32_t> layers;
  for (const AttentionGroupSpec& spec : model.attention_groups()) {
    if (can_select(spec, model)) layers.insert(layers.end(), spec.layers.begin(), spec.layers.end());
  }
  std::sort(layers.begin(), layers.end());
  return layers;
}

Result<std::unique_ptr<Selection>> Selection::create(Backend& backend, const Model& model, const KvPool& pool,
                                                     const ReqToTokenPool& rows,
                                                     const std::vector<AttentionConfig>& attention,
                                                     const SelectionOptions& options) {
  auto selection = std::unique_ptr<Selection>(new Selection(pool, rows, options));
  selection->backend_ = &backend;
  selection->layer_group_.assign(pool.layer_views().size(), 0);
  selection->layer_index_.assign(pool.layer_views().size(), -1);
  std::vector<std::int32_t> layers;
  for (std::size_t a = 0; a < model.attention_groups().size(); ++a) {
    const AttentionGroupSpec& spec = model.attention_groups()[a];
    Group group;
    group.layers = spec.layers;
    group.kv_group = spec.ranges[0].kv_group;
    group.num_kv_heads = model.kv_groups()[group.kv_group].num_kv_heads;
    group.config = attention[a];
    bool any = false;
    for (const std::int32_t layer : spec.layers) {
      selection->layer_group_[static_cast<std::size_t>(layer)] = static_cast<std::int32_t>(a);
      const bool asked = std::find(options.layers.begin(), options.layers.end(), layer) != options.layers.end();
      if (!asked || !can_select(spec, model)) continue;
      selection->layer_index_[static_cast<std::size_t>(layer)] = static_cast<std::int32_t>(layers.size());
      layers.push_back(layer);
      any = true;
    }
    if (any) {
      PlannerOptions& planner = group.config.planner;
      planner.page_tokens = kEntryTokens;
      planner.limits.max_pages_per_request = rows.stride() * (pool.page_tokens() / kEntryTokens);
      planner.limits.max_covered_rows = planner.limits.max_rows * planner.num_kv_heads;
      planner.limits.max_block_rows = planner.limits.max_covered_rows + planner.limits.max_requests;
      FOVEA_ASSIGN_OR_RETURN(group.attention, backend.create_attention(group.config));
      selection->heads_a_layer_ = std::max(selection->heads_a_layer_, static_cast<std::size_t>(group.num_kv_heads));
    }
    selection->groups_.push_back(std::move(group));
  }
  if (layers.empty()) return internal_error("page selection without a layer that selects");
  FOVEA_ASSIGN_OR_RETURN(selection->stats_, PageStats::create(backend, model.kv_groups(), pool, options.stat,
                                                              selection->options_.codes, options.rotary_dim, layers));
  selection->memory_.resize(static_cast<std::size_t>(rows.num_slots()));
  for (Memory& memory : selection->memory_) memory.heads.resize(layers.size() * selection->heads_a_layer_);
  return selection;
}

void Selection::copy_page(std::size_t kv_group, std::int32_t from, std::int32_t to) {
  for (const Group& group : groups_) {
    if (group.attention != nullptr && group.kv_group == kv_group) stats_->copy_page(group.layers, from, to);
  }
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

void Selection::begin(const Step& step, std::span<const std::span<const std::int32_t>> slots) {
  slots_ = slots;
  queries_.clear();
  kv_bytes_ = 0;
  std::int32_t row = 0;
  std::int32_t most_tokens = 0;
  for (const StepItem& item : step.items) {
    const SparseSetting& sparse = item.sequence->sparse;
    for (std::int32_t i = 0; i < item.count; ++i, ++row) {
      const std::int32_t position = item.begin + i;
      if (sparse.policy == nullptr || position < sparse.first_position) continue;
      if (under_budget(rule_of(*item.sequence, position + 1), position + 1)) continue;
      queries_.push_back({item.sequence, row, position + 1, item.count == 1, i + 1 == item.count});
      most_tokens = position + 1;
    }
    if (!queries_.empty() && queries_.back().sequence == item.sequence) {
      Memory& memory = memory_[static_cast<std::size_t>(item.sequence->slot)];
      if (memory.sequence != item.sequence->id) {
        memory.sequence = item.sequence->id;
        for (SelectMemory& head : memory.heads) head.forget();
      }
    }
    for (std::int32_t unit = static_cast<std::int32_t>(all_units_.size()); unit < num_units(most_tokens, kEntryTokens);
         ++unit) {
      all_units_.push_back(unit);
    }
  }
  for (Group& group : groups_) group.layers_selected = 0;
  if (!queries_.empty()) lay_out_dense(step);
}

// The block rows and page lists of queries that read all: the same for every layer of a group.
void Selection::lay_out_dense(const Step& step) {
  row_indices_.resize(static_cast<std::size_t>(step.num_tokens));
  std::iota(row_indices_.begin(), row_indices_.end(), 0u);
  q_pos_.clear();
  for (const StepItem& item : step.items) {
    for (std::int32_t i = 0; i < item.count; ++i) q_pos_.push_back(item.begin + i);
  }
  const std::int32_t entries_a_page = pool_.page_tokens() / kEntryTokens;
  for (Group& group : groups_) {
    if (group.attention == nullptr) continue;
    group.dense_rows.clear();
    group.dense_entries.clear();
    std::int32_t row = 0;
    auto query = queries_.begin();
    for (const StepItem& item : step.items) {
      // Those of a request that select are its last.
      const auto first = query;
      while (query != queries_.end() && query->sequence == item.sequence) ++query;
      const auto count = item.count - static_cast<std::int32_t>(query - first);
      if (count > 0) {
        abi::BlockRow made = block_row(row, count, 0, group.num_kv_heads);
        made.mask = abi::MaskKind::kCausal;
        made.list_begin = static_cast<std::uint32_t>(group.dense_entries.size());
        made.num_tokens = static_cast<std::uint32_t>(item.begin + count);
        const auto pages = rows_.row(item.sequence->slot, static_cast<std::int32_t>(group.kv_group));
        for (std::int32_t e = 0; e < num_units(item.begin + count, kEntryTokens); ++e) {
          const std::int32_t page = pages[static_cast<std::size_t>(e / entries_a_page)];
          group.dense_entries.push_back(page * entries_a_page + e % entries_a_page);
        }
        group.dense_rows.push_back(made);
      }
      row += item.count;
    }
  }
}

Status Selection::appended(std::int32_t layer) {
  if (!selects(layer)) return ok_status();
  const Group& group = groups_[static_cast<std::size_t>(layer_group_[static_cast<std::size_t>(layer)])];
  const std::span<const std::int32_t> slots = slots_[group.kv_group];
  return backend_->update_page_stats(slots.data(), static_cast<std::int64_t>(slots.size()), view_of(layer),
                                     stats_->view(layer));
}

SelectMemory& Selection::memory_of(const Query& query, std::int32_t layer, std::int32_t head) {
  const auto index = static_cast<std::size_t>(layer_index_[static_cast<std::size_t>(layer)]);
  Memory& memory = memory_[static_cast<std::size_t>(query.sequence->slot)];
  return memory.heads[index * heads_a_layer_ + static_cast<std::size_t>(head)];
}

void Selection::make_jobs(std::int32_t layer, const Group& group) {
  const std::size_t count = queries_.size() * static_cast<std::size_t>(group.num_kv_heads);
  if (lists_.size() < count) lists_.resize(count);
  jobs_.clear();
  std::size_t next = 0;
  for (const Query& query : queries_) {
    const Sequence& sequence = *query.sequence;
    const auto pages = rows_.row(sequence.slot, static_cast<std::int32_t>(group.kv_group));
    for (std::int32_t head = 0; head < group.num_kv_heads; ++head) {
      List& list = lists_[next++];
      SelectMemory& memory = memory_of(query, layer, head);
      SelectJob job;
      job.policy = sequence.sparse.policy;
      job.rule = rule_of(sequence, query.tokens);
      job.row = query.row;
      job.head = head;
      job.pages = pages.data();
      job.tokens = query.tokens;
      job.seed = hash_combine(hash_combine(static_cast<std::uint64_t>(layer), static_cast<std::uint64_t>(head)),
                              static_cast<std::uint64_t>(query.tokens));
      job.chosen = &list.chosen;
      list.work = query.decodes ? select_work(options_.reuse, memory, query.tokens, sequence.id) : SelectWork::kScan;
      list.memory = nullptr;
      const std::int32_t units = num_units(query.tokens, job.rule.unit_tokens);
      if (list.work == SelectWork::kScan) {
        job.units = std::span(all_units_).first(static_cast<std::size_t>(units));
        if (options_.reuse.interval > 1 && query.newest) {
          const std::int32_t most = job.rule.budget_tokens / job.rule.unit_tokens;
          // Lists that are kept as they are leave room for what will be written.
          const std::int32_t room = num_units(options_.reuse.interval, job.rule.unit_tokens) + 1;
          job.num_candidates =
              options_.reuse.candidate_factor > 0 ? options_.reuse.candidate_factor * most : std::max(most - room, 1);
          job.candidates = &list.candidates;
          list.memory = &memory;
          memory.scanned_tokens = query.tokens;
        }
        ++counts_.refreshes;
      } else {
        units_to_rescore(memory, job.rule, query.tokens, &list.units);
        job.units = list.units;
        ++(list.work == SelectWork::kRescore ? counts_.rescorings : counts_.reuses);
      }
      if (list.work == SelectWork::kKeep) {
        list.chosen = list.units;
        continue;
      }
      counts_.records_read += job.units.size() * static_cast<std::size_t>(job.rule.unit_tokens / kEntryTokens);
      jobs_.push_back(job);
    }
  }
}

Result<bool> Selection::attend(std::int32_t layer, const TensorView& q, const TensorView& out) {
  if (queries_.empty() || !selects(layer)) return false;
  Group& group = groups_[static_cast<std::size_t>(layer_group_[static_cast<std::size_t>(layer)])];
  make_jobs(layer, group);
  FOVEA_RETURN_IF_ERROR(backend_->select_pages(q, group.config.sm_scale, view_of(layer), stats_->view(layer), jobs_));
  FOVEA_RETURN_IF_ERROR(run_plan(layer, group, static_cast<std::int32_t>(q.shape[0]), q, out));
  for (std::size_t i = 0; i < queries_.size() * static_cast<std::size_t>(group.num_kv_heads); ++i) {
    if (lists_[i].memory != nullptr) std::swap(lists_[i].memory->candidates, lists_[i].candidates);
  }
  ++group.layers_selected;
  return true;
}

Status Selection::run_plan(std::int32_t layer, Group& group, std::int32_t num_rows, const TensorView& q,
                           const TensorView& out) {
  const std::int32_t entries_a_page = pool_.page_tokens() / kEntryTokens;
  block_rows_ = group.dense_rows;
  entries_ = group.dense_entries;
  positions_.assign(entries_.size(), 0);  // parallel to the entries; runs of queries that read all need none
  std::size_t next = 0;
  for (const Query& query : queries_) {
    const auto pages = rows_.row(query.sequence->slot, static_cast<std::int32_t>(group.kv_group));
    const std::int32_t unit_entries = query.sequence->sparse.policy->unit_tokens / kEntryTokens;
    const std::int32_t last = (query.tokens - 1) / kEntryTokens;
    for (std::int32_t head = 0; head < group.num_kv_heads; ++head) {
      const List& list = lists_[next++];
      abi::BlockRow made = block_row(query.row, 1, head, head + 1);
      made.list_begin = made.positions_begin = static_cast<std::uint32_t>(entries_.size());
      for (const std::int32_t unit : list.chosen) {
        for (std::int32_t e = unit * unit_entries; e < std::min((unit + 1) * unit_entries, last + 1); ++e) {
          const std::int32_t page = pages[static_cast<std::size_t>(e / entries_a_page)];
          entries_.push_back(page * entries_a_page + e % entries_a_page);
          positions_.push_back(e * kEntryTokens);
        }
      }
      const auto count = static_cast<std::int32_t>(entries_.size() - made.list_begin);
      // The newest entry is the last, and only it may be filled in part: so every token listed is seen.
      made.num_tokens = static_cast<std::uint32_t>(count * kEntryTokens - ((last + 1) * kEntryTokens - query.tokens));
      made.mask = abi::MaskKind::kNone;
      block_rows_.push_back(made);
      counts_.pages_read += static_cast<std::uint64_t>(count);
      counts_.pages_kept += static_cast<std::uint64_t>(last) + 1;
      ++counts_.queries;
    }
  }
  BlockRowBatch batch;
  batch.num_rows = num_rows;
  batch.block_rows = block_rows_;
  batch.row_indices = row_indices_;
  batch.q_pos = q_pos_;
  batch.page_entries = entries_.data();
  batch.kv_positions = positions_.data();
  FOVEA_RETURN_IF_ERROR(group.attention->plan_block_rows(batch));
  kv_bytes_ += group.attention->stats().kv_bytes;
  abi::KvPoolView view = view_of(layer);
  view.entry_tokens = kEntryTokens;
  view.entries_per_page = entries_a_page;
  return group.attention->run(q, {&view, 1}, out, nullptr);
}

}  // namespace fovea
