// The plan of a layer that selects: block rows of what reads all and of streaming heads, as HeadBatch makes them, and a
// page list for each query and head that select.
#include <algorithm>

#include "base/status.h"
#include "engine/runner/selection.h"

namespace fovea {

abi::KvPoolView Selection::pool_of(std::int32_t layer, const FullHeads& full) const {
  return abi::shift_heads(pool_.layer_views()[static_cast<std::size_t>(layer)][full.range], -full.heads.head_begin);
}

// In entries of 16 tokens. Requests all of whose queries select need no list of the groups that keep all.
void Selection::copy_tables(const Step& step) {
  const std::int32_t page_tokens = pool_.page_tokens();
  const std::int32_t entries_a_page = page_tokens / kEntryTokens;
  tables_.entries.clear();
  for (std::size_t g = 0; g < tables_.begins.size(); ++g) {
    tables_.begins[g].clear();
    for (std::size_t i = 0; i < step.items.size(); ++i) {
      const StepItem& item = step.items[i];
      tables_.begins[g].push_back(static_cast<std::uint32_t>(tables_.entries.size()));
      if (page_lists_ == nullptr && full_group_[g] && selecting_[i] == item.count) continue;
      const auto pages = rows_.row(item.sequence->slot, static_cast<std::int32_t>(g));
      for (std::int32_t p = 0; p < num_units(item.begin + item.count, page_tokens); ++p) {
        for (std::int32_t e = 0; e < entries_a_page; ++e) {
          tables_.entries.push_back(pages[static_cast<std::size_t>(p)] * entries_a_page + e);
        }
      }
    }
  }
  num_entries_ = tables_.entries.size();
  positions_.assign(num_entries_, 0);  // runs in the order of their tokens need none
}

void Selection::add_selected(const FullHeads& full, std::size_t index) {
  const Query& query = queries_[index];
  const std::int32_t entries_a_page = pool_.page_tokens() / kEntryTokens;
  const auto pages = rows_.row(query.sequence->slot, static_cast<std::int32_t>(full.heads.kv_group));
  const std::int32_t unit_entries = query.sequence->sparse.policy->unit_tokens / kEntryTokens;
  const std::int32_t last = (query.tokens - 1) / kEntryTokens;
  // A block of a prompt reads what was chosen before it, and all from `own` on.
  const std::int32_t unit = unit_entries * kEntryTokens;
  const std::int32_t own = query.prompt ? (query.tokens - query.rows) / unit * unit_entries : last + 1;
  for (std::int32_t head = full.heads.head_begin; head < full.heads.head_end; ++head) {
    abi::BlockRow made{};
    made.row_begin = static_cast<std::uint32_t>(query.row);
    made.row_count = static_cast<std::uint32_t>(query.rows);
    made.list_begin = made.positions_begin = static_cast<std::uint32_t>(tables_.entries.size());
    made.length_slot = abi::kNone;
    made.head_begin = static_cast<std::uint16_t>(head);
    made.head_end = static_cast<std::uint16_t>(head + 1);
    made.pool = static_cast<std::uint16_t>(full.range);
    made.flags = abi::kRowsContiguous;
    made.num_requests = 1;
    const auto list = [&](std::int32_t begin, std::int32_t end) {
      for (std::int32_t e = begin; e < end; ++e) {
        const std::int32_t page = pages[static_cast<std::size_t>(e / entries_a_page)];
        tables_.entries.push_back(page * entries_a_page + e % entries_a_page);
        positions_.push_back(e * kEntryTokens);
      }
    };
    for (const std::int32_t chosen : list_maker_->chosen(index, head)) {
      list(chosen * unit_entries, std::min((chosen + 1) * unit_entries, last + 1));
    }
    if (query.prompt) list(own, last + 1);
    const auto count = static_cast<std::int32_t>(tables_.entries.size() - made.list_begin);
    // The newest entry is the last, and only it may be filled in part: so every token listed is seen.
    made.num_tokens = static_cast<std::uint32_t>(count * kEntryTokens - ((last + 1) * kEntryTokens - query.tokens));
    made.mask = abi::MaskKind::kNone;
    if (query.prompt) {
      // A causal run that ends where the block does: what was chosen moves up to it, and stays before every query.
      made.mask = abi::MaskKind::kCausal;
      made.positions_begin = abi::kNone;
      made.position_base = (last + 1 - count) * kEntryTokens;
      block_rows_.push_back(made);
      counts_.prompt_pages_read += static_cast<std::uint64_t>(count);
      counts_.prompt_pages_kept += static_cast<std::uint64_t>(last) + 1;
      continue;
    }
    block_rows_.push_back(made);
    counts_.pages_read += static_cast<std::uint64_t>(count);
    counts_.pages_kept += static_cast<std::uint64_t>(last) + 1;
    ++counts_.queries;
  }
}

Status Selection::run_plan(std::int32_t layer, Group& group, const TensorView& q, const TensorView& out) {
  BlockRowBatch batch = group.unselected;
  tables_.entries.resize(num_entries_);
  positions_.resize(num_entries_);
  block_rows_.assign(batch.block_rows.begin(), batch.block_rows.end());
  for (std::size_t i = 0; i < queries_.size(); ++i) {
    for (const FullHeads& full : group.full) add_selected(full, i);
  }
  batch.block_rows = block_rows_;
  batch.page_entries = tables_.entries.data();
  batch.kv_positions = positions_.data();
  FOVEA_RETURN_IF_ERROR(group.attention->plan_block_rows(batch, device_->stream()));
  const PlanStats stats = group.attention->stats();
  kv_bytes_ += stats.kv_bytes;
  kv_bytes_unshared_ += stats.kv_bytes_unshared;
  return run_attention(layer, group, q, out);
}

Status Selection::run_attention(std::int32_t layer, Group& group, const TensorView& q, const TensorView& out) {
  pools_ = pool_.layer_views()[static_cast<std::size_t>(layer)];
  for (abi::KvPoolView& pool : pools_) {
    pool.entry_tokens = kEntryTokens;
    pool.entries_per_page = pool_.page_tokens() / kEntryTokens;
  }
  return group.attention->run(q, pools_, out, {}, device_->stream());
}

// A block row for each head, whose list the device will have written.
void Selection::add_listed(const FullHeads& full, const Query& query, std::size_t list) {
  const ChooseRule rule = rule_of(*query.sequence, query.tokens);
  const std::int32_t units = num_units(query.tokens, kEntryTokens);
  const std::int32_t count = std::min(rule.budget_tokens / kEntryTokens, units);
  abi::BlockRow made{};
  made.row_begin = static_cast<std::uint32_t>(query.row);
  made.row_count = 1;
  // The newest entry is the last, and only it may be filled in part.
  made.num_tokens = static_cast<std::uint32_t>(count * kEntryTokens - (units * kEntryTokens - query.tokens));
  made.positions_begin = made.length_slot = abi::kNone;
  made.window_left = -1;
  made.pool = static_cast<std::uint16_t>(full.range);
  made.mask = abi::MaskKind::kNone;
  made.flags = abi::kRowsContiguous;
  made.num_requests = 1;
  for (std::int32_t head = full.heads.head_begin; head < full.heads.head_end; ++head) {
    made.list_begin = static_cast<std::uint32_t>(page_lists_->list_begin(list, head));
    made.head_begin = static_cast<std::uint16_t>(head);
    made.head_end = static_cast<std::uint16_t>(head + 1);
    block_rows_.push_back(made);
  }
}

// Where all items are one token, every one has a row, so that steps of as many are the same launches.
Status Selection::plan_page_lists(const Step& step) {
  abi::SelectRow idle{};
  idle.reads = idle.writes = abi::kNone;
  select_rows_.assign(decodes_ ? step.items.size() : queries_.size(), idle);
  const auto list_of_query = [&](std::size_t i) { return decodes_ ? queries_[i].item : i; };
  const auto full_group =
      static_cast<std::size_t>(std::find(full_group_.begin(), full_group_.end(), true) - full_group_.begin());
  for (std::size_t i = 0; i < queries_.size(); ++i) {
    const Query& query = queries_[i];
    abi::SelectRow& row = select_rows_[list_of_query(i)];
    row.tokens = query.tokens;
    row.q_row = static_cast<std::uint32_t>(query.row);
    row.table = tables_.begin(full_group, query.item);
    row.budget = static_cast<std::uint32_t>(rule_of(*query.sequence, query.tokens).budget_tokens / kEntryTokens);
    row.candidates = row.budget * static_cast<std::uint32_t>(options_.reuse.candidate_factor);
    row.reads = query.reads;
    row.writes = query.writes;
  }
  FOVEA_RETURN_IF_ERROR(page_lists_->begin(tables_.entries, select_rows_));
  for (Group& group : groups_) {
    if (group.attention == nullptr) continue;
    BlockRowBatch batch = group.unselected;
    block_rows_.assign(batch.block_rows.begin(), batch.block_rows.end());
    for (const FullHeads& full : group.full) {
      for (std::size_t i = 0; i < queries_.size(); ++i) add_listed(full, queries_[i], list_of_query(i));
    }
    batch.block_rows = block_rows_;
    batch.page_entries = page_lists_->entries();
    batch.entries_on_device = true;
    FOVEA_RETURN_IF_ERROR(group.attention->plan_block_rows(batch, device_->stream()));
  }
  return ok_status();
}

// Enqueues alone: a graph may record it.
Result<bool> Selection::attend_page_lists(std::int32_t layer, Group& group, const TensorView& q,
                                          const TensorView& out) {
  const std::int32_t index = layer_index_[static_cast<std::size_t>(layer)];
  for (const FullHeads& full : group.full) {
    FOVEA_RETURN_IF_ERROR(page_lists_->select(index, full.heads.head_begin, queries_of(q, full.heads, group),
                                              stats_->view(layer, full.heads)));
  }
  FOVEA_RETURN_IF_ERROR(run_attention(layer, group, q, out));
  return true;
}

// Of forwards over lists of the device, which may have been repeated without a call.
void Selection::count_page_lists() {
  if (page_lists_ == nullptr || queries_.empty()) return;
  for (std::size_t layer = 0; layer < layer_index_.size(); ++layer) {
    if (layer_index_[layer] < 0) continue;
    Group& group = group_of(static_cast<std::int32_t>(layer));
    ++group.layers_selected;
    const PlanStats stats = group.attention->stats();
    kv_bytes_ += stats.kv_bytes;
    kv_bytes_unshared_ += stats.kv_bytes_unshared;
    std::uint64_t heads = 0;
    for (const FullHeads& full : group.full) {
      heads += static_cast<std::uint64_t>(full.heads.head_end - full.heads.head_begin);
    }
    for (const Query& query : queries_) {
      const auto units = static_cast<std::uint64_t>(num_units(query.tokens, kEntryTokens));
      const auto budget =
          static_cast<std::uint64_t>(rule_of(*query.sequence, query.tokens).budget_tokens / kEntryTokens);
      counts_.queries += heads;
      counts_.pages_read += heads * std::min(units, budget);
      counts_.pages_kept += heads * units;
      counts_.records_read += heads * query.records;
      (query.work == SelectWork::kScan ? counts_.refreshes : counts_.rescorings) += heads;
      statistics_read_ += heads * query.records * abi::kCodeRecordBytes;
    }
  }
}

}  // namespace fovea
