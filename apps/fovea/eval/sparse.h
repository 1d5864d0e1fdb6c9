// What page selection must have read, counted from lengths alone, against what the engine says it read: an evaluation
// of a sparse setting must not measure dense attention by mistake. Used by `fovea eval needle` and `fovea eval
// compare`.
#pragma once

#include <cstdint>
#include <optional>

#include "core/select/policy.h"
#include "fovea/engine.h"

namespace fovea::app {

class SparseCheck {
 public:
  // Nothing where the options select no pages.
  static Result<std::optional<SparseCheck>> create(const EngineOptions& options);

  // A request that ended: its last event, and how many tokens of its prompt select.
  void add(const GenerationEvent& last, std::int32_t sparse_prompt_tokens);
  // Of the engine, before the first and after the last of these requests. kInternal where the pages read are not those
  // expected.
  Status check(const EngineStats& before, const EngineStats& after) const;
  const SelectPolicy& policy() const { return *policy_; }
  // By one layer and KV head, of what was added; a policy or lists that may end early read less.
  std::uint64_t pages_expected() const { return pages_read_; }

 private:
  const SelectPolicy* policy_ = nullptr;
  KvBudget budget_;
  bool kept_lists_ = false;       // lists that are kept hold somewhat less than the budget
  std::uint64_t queries_ = 0;     // of one layer and KV head
  std::uint64_t pages_read_ = 0;  // by them, at most
  std::uint64_t pages_kept_ = 0;
};

// Pages that the blocks of a prompt of so many tokens read, of one layer and KV head, where nothing of it was cached
// and nothing else ran (EngineOptions::sparse_prefill); policies that end lists early read less. kUnsupported for
// chunks that divide blocks.
Result<std::uint64_t> prompt_pages_expected(const EngineOptions& options, std::int32_t tokens);

}  // namespace fovea::app
