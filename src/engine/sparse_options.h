// What EngineOptions and requests say about page selection, checked. Used by EngineCore.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/select/policy.h"
#include "core/select/reuse.h"
#include "engine/model/key_codes.h"
#include "engine/model/model.h"
#include "engine/scheduler/sequence.h"
#include "fovea/engine.h"

namespace fovea {

struct SparseConfig {
  const SelectPolicy* policy = nullptr;  // null: selection is off
  KvBudget budget;
  std::vector<std::int32_t> layers;  // that may select: all but those named dense and those with a window
  ReuseRule reuse;
  std::optional<KvBudget> prompt_budget;  // of prompts; none: they read all
  // Where a device makes the lists in its own memory (select/page_lists.h): the room of each, in units of 16 tokens,
  // for contexts of so many; else 0.
  std::int32_t list_units = 0;
  std::int32_t max_context = 0;
};

// kInvalidArgument and kNotFound name the option; kUnsupported says why this model or page size cannot select.
// "auto" is the policy "fovea" where the model comes with key codes, else "fovea-local".
Result<SparseConfig> sparse_config(const EngineOptions& options, const Model& model, const KeyCodes& codes);

// That a device which makes lists in its own memory can do what is asked for; kUnsupported says what it cannot.
Status check_page_lists(const SparseConfig& config, const EngineOptions& options, std::string_view device);
// Room of its lists, by the longest context.
std::int32_t page_list_units(const KvBudget& budget, std::int32_t max_context);

// Of a request: the engine's where it says nothing. kUnsupported where the engine keeps no statistics for its policy.
// *parameter (may be null) becomes the name of the member that is wrong.
Result<SparseSetting> sparse_setting(const SparseConfig& config, const GenerateRequest& request,
                                     std::string* parameter = nullptr);

// What the prefix cache keeps a request's pages under: the salt asked for, and, where the prompt selects pages, how. No
// salt that is asked for is that of a request that selects otherwise.
std::string cache_salt(std::string_view asked, const SparseSetting& setting);

// What is left for KV of so many bytes for KV and statistics.
std::int64_t without_page_stats(std::int64_t bytes, const std::vector<KvGroupSpec>& groups,
                                const EngineOptions& options, const SparseConfig& config);

}  // namespace fovea
