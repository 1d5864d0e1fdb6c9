// See eval/sparse.h.
#include "eval/sparse.h"

#include <algorithm>

#include "base/status.h"

namespace fovea::app {
namespace {

constexpr std::int32_t kPage = abi::kSubPageTokens;

constexpr std::int32_t ceil_div(std::int32_t a, std::int32_t b) { return (a + b - 1) / b; }

}  // namespace

Result<std::optional<SparseCheck>> SparseCheck::create(const EngineOptions& options) {
  if (options.sparse == "off") return std::optional<SparseCheck>();
  SparseCheck check;
  FOVEA_ASSIGN_OR_RETURN(check.policy_, find_select_policy(options.sparse));
  FOVEA_ASSIGN_OR_RETURN(check.budget_, parse_kv_budget(options.kv_budget));
  check.kept_lists_ = options.sparse_interval > 1 && options.sparse_candidates == 0;
  return std::optional<SparseCheck>(check);
}

void SparseCheck::add(const GenerationEvent& last, std::int32_t sparse_prompt_tokens) {
  const std::int32_t unit = policy_->unit_tokens;
  const std::int32_t first = std::max(last.cached_tokens, last.prompt_tokens - sparse_prompt_tokens);
  // The last token was sampled, but nothing was computed from it.
  for (std::int32_t position = first; position < last.prompt_tokens + last.completion_tokens - 1; ++position) {
    const std::int32_t seen = position + 1;
    const std::int32_t units = budget_.at(seen) / unit;
    if (ceil_div(seen, unit) <= units) continue;
    // Whole units but for the newest, of which only pages with tokens are read.
    const std::int32_t missing = (ceil_div(seen, unit) * unit - seen) / kPage;
    ++queries_;
    pages_read_ += static_cast<std::uint64_t>(units * (unit / kPage) - missing);
    pages_kept_ += static_cast<std::uint64_t>(ceil_div(seen, kPage));
  }
}

Status SparseCheck::check(const EngineStats& before, const EngineStats& after) const {
  const std::uint64_t heads = after.sparse_heads;
  const std::uint64_t read = after.sparse_pages_read - before.sparse_pages_read;
  const std::uint64_t kept = after.sparse_pages_kept - before.sparse_pages_kept;
  const std::uint64_t queries = after.sparse_queries - before.sparse_queries;
  if (after.retractions != before.retractions) {
    // What was computed again was selected again.
    if (queries >= queries_ * heads) return ok_status();
  } else if (queries == queries_ * heads && kept == pages_kept_ * heads) {
    const bool fewer = policy_->mass > 0.0f || kept_lists_;
    if (read == pages_read_ * heads || (fewer && read > 0 && read < pages_read_ * heads)) return ok_status();
  }
  return internal_error(
      "selection by {}: {} queries read {} of {} pages; expected {} queries and {} of {} pages, by {} heads of layers",
      policy_->name, queries, read, kept, queries_ * heads, pages_read_ * heads, pages_kept_ * heads, heads);
}

Result<std::uint64_t> prompt_pages_expected(const EngineOptions& options, std::int32_t tokens) {
  constexpr std::int32_t kBlock = 64;
  FOVEA_ASSIGN_OR_RETURN(const SelectPolicy* policy, find_select_policy(options.sparse));
  FOVEA_ASSIGN_OR_RETURN(const KvBudget own, parse_kv_budget(options.kv_budget));
  FOVEA_ASSIGN_OR_RETURN(const KvBudget prompt, parse_kv_budget(options.sparse_prefill));
  const std::int32_t unit = policy->unit_tokens;
  const auto budget_at = [&](std::int32_t seen) {
    return std::max(own.in_units(unit).at(seen), prompt.in_units(unit).at(seen));
  };
  if (options.chunk_tokens % kBlock != 0) {
    return unsupported("pages of prompts are counted where chunk_tokens is a multiple of {}, it is {}", kBlock,
                       options.chunk_tokens);
  }
  std::uint64_t pages = 0;
  for (std::int32_t begin = 0; begin < tokens; begin += kBlock) {
    const std::int32_t end = std::min(begin + kBlock, tokens);
    if (ceil_div(begin + 1, unit) <= budget_at(begin + 1) / unit) continue;
    const std::int32_t before = begin / unit * unit;
    const std::int32_t chosen = std::min((budget_at(end) - (end - before)) / unit, before / unit);
    pages += static_cast<std::uint64_t>(chosen * (unit / kPage) + ceil_div(end - before, kPage));
  }
  return pages;
}

}  // namespace fovea::app
