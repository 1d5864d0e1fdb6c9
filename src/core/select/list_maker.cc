// See list_maker.h.
#include "core/select/list_maker.h"

#include <algorithm>
#include <utility>

#include "abi/page_stats.h"
#include "base/hash.h"
#include "base/status.h"

namespace fovea {

ListMaker::ListMaker(std::int32_t num_layers, std::int32_t num_heads, std::int32_t memories, std::int32_t head_dim)
    : num_heads_(static_cast<std::size_t>(num_heads)),
      memories_(static_cast<std::size_t>(memories)),
      head_dim_(head_dim),
      memory_(static_cast<std::size_t>(num_layers) * memories_ * num_heads_) {}

void ListMaker::add_job(std::int32_t layer, std::uint64_t seed, std::int32_t head_begin, std::int32_t head,
                        const ListQuery& query, std::size_t number) {
  List& list = lists_[number * num_heads_ + static_cast<std::size_t>(head)];
  SelectJob job = query.job;
  job.head = head - head_begin;
  job.seed = hash_combine(hash_combine(seed, static_cast<std::uint64_t>(head)), static_cast<std::uint64_t>(query.seen));
  job.chosen = &list.chosen;
  if (query.work == SelectWork::kScan) {
    const std::int32_t units = num_units(job.tokens, job.rule.unit_tokens);
    job.units = std::span(all_units_).first(static_cast<std::size_t>(units));
    if (query.num_candidates > 0) {
      job.num_candidates = query.num_candidates;
      job.candidates = &list.scan.candidates;
      list.scan.scanned_tokens = query.seen;
    }
    ++counts_.scans;
  } else {
    const SelectMemory& scan =
        query.scan < 0
            ? memory(layer, query.memory, head)
            : lists_[static_cast<std::size_t>(query.scan) * num_heads_ + static_cast<std::size_t>(head)].scan;
    units_to_rescore(scan, job.rule, query.seen, &list.units);
    job.units = list.units;
    ++(query.work == SelectWork::kRescore ? counts_.rescorings : counts_.reuses);
  }
  if (query.work == SelectWork::kKeep) {
    list.chosen = list.units;
    return;
  }
  const std::size_t records = job.units.size() * static_cast<std::size_t>(job.rule.unit_tokens / abi::kSubPageTokens);
  counts_.records += records;
  counts_.record_bytes += records * static_cast<std::size_t>(abi::stat_bytes(job.policy->stat, head_dim_));
  jobs_.push_back(job);
}

Status ListMaker::make(std::int32_t layer, std::uint64_t seed, std::int32_t head_begin, std::int32_t head_end,
                       std::span<const ListQuery> queries, const Score& score) {
  if (lists_.size() < queries.size() * num_heads_) lists_.resize(queries.size() * num_heads_);
  std::int32_t most = 0;  // before spans of it are handed out
  for (const ListQuery& query : queries) {
    most = std::max(most, num_units(query.job.tokens, query.job.rule.unit_tokens));
  }
  for (auto unit = static_cast<std::int32_t>(all_units_.size()); unit < most; ++unit) all_units_.push_back(unit);
  // What goes by a scan of this call comes after it.
  for (const bool after : {false, true}) {
    jobs_.clear();
    for (std::size_t i = 0; i < queries.size(); ++i) {
      if ((queries[i].scan >= 0) != after) continue;
      for (std::int32_t head = head_begin; head < head_end; ++head) {
        add_job(layer, seed, head_begin, head, queries[i], i);
      }
    }
    if (!jobs_.empty()) FOVEA_RETURN_IF_ERROR(score(jobs_));
  }
  for (std::size_t i = 0; i < queries.size(); ++i) {
    if (!queries[i].remembered) continue;
    for (std::int32_t head = head_begin; head < head_end; ++head) {
      std::swap(memory_[index(layer, queries[i].memory, head)],
                lists_[i * num_heads_ + static_cast<std::size_t>(head)].scan);
    }
  }
  return ok_status();
}

void ListMaker::forget(std::int32_t begin, std::int32_t end) {
  const std::size_t layers = memories_ == 0 ? 0 : memory_.size() / (memories_ * num_heads_);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (std::int32_t number = begin; number < end; ++number) {
      for (std::size_t head = 0; head < num_heads_; ++head) {
        memory_[index(static_cast<std::int32_t>(layer), number, static_cast<std::int32_t>(head))].forget();
      }
    }
  }
}

std::size_t ListMaker::memory_bytes() const {
  std::size_t entries = all_units_.size();
  for (const SelectMemory& memory : memory_) entries += memory.candidates.capacity();
  return entries * sizeof(std::int32_t);
}

}  // namespace fovea
