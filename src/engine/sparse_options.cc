// See sparse_options.h.
#include "engine/sparse_options.h"

#include <algorithm>

#include "base/quote.h"
#include "base/status.h"
#include "engine/cache/page_stats.h"
#include "engine/runner/selection.h"

namespace fovea {

Result<SparseConfig> sparse_config(const EngineOptions& options, const Model& model, const KeyCodes& codes) {
  SparseConfig config;
  FOVEA_ASSIGN_OR_RETURN(config.budget, parse_kv_budget(options.kv_budget));
  for (const std::int32_t layer : options.dense_layers) {
    if (layer < 0 || layer >= model.config().num_layers) {
      return out_of_range("dense layer {}; the model has layers 0 to {}", layer, model.config().num_layers - 1);
    }
  }
  if (options.sparse_interval < 1 || options.sparse_interval > 1024) {
    return invalid_argument("sparse_interval is {}; expected 1 to 1024 steps", options.sparse_interval);
  }
  if (options.sparse_candidates < 0 || options.sparse_candidates > 1024) {
    return invalid_argument("sparse_candidates is {}; expected 0 to 1024 budgets", options.sparse_candidates);
  }
  config.reuse = {options.sparse_interval, options.sparse_candidates};
  if (options.sparse_prefill != "off") {
    const auto budget = parse_kv_budget(options.sparse_prefill);
    if (!budget.ok()) return invalid_argument("sparse_prefill: {}", budget.status().message());
    if (options.sparse == "off") {
      return invalid_argument("sparse_prefill is {}, but no policy selects; give sparse too",
                              quote(options.sparse_prefill));
    }
    if (options.batch_invariant) {
      return unsupported(
          "sparse_prefill lets tokens of a chunk choose together, which batch_invariant rules out; leave one out");
    }
    config.prompt_budget = *budget;
  }
  if (options.sparse == "off") return config;
  const bool automatic = options.sparse == "auto";
  FOVEA_ASSIGN_OR_RETURN(config.policy,
                         find_select_policy(automatic && codes.empty() ? "fovea-local" : options.sparse));
  if (config.policy->stat == abi::StatKind::kCodes && codes.empty()) {
    return unsupported("page selection by \"{}\" needs {} in the model's folder; use \"fovea-local\", which needs none",
                       config.policy->name, kKeyCodesFile);
  }
  const bool coded = config.policy->stat == abi::StatKind::kCodes || config.policy->stat == abi::StatKind::kLocalCodes;
  if (coded && model.config().head_dim < abi::kCodeChannels) {
    return unsupported(
        "page selection by \"{}\" needs heads of {} channels or more, the model's have {}; use \"quest\"",
        config.policy->name, abi::kCodeChannels, model.config().head_dim);
  }
  if (options.page_tokens % abi::kSubPageTokens != 0) {
    return unsupported("page selection needs page_tokens to be a multiple of {}, it is {}", abi::kSubPageTokens,
                       options.page_tokens);
  }
  for (const std::int32_t layer : layers_that_can_select(model)) {
    const auto& dense = options.dense_layers;
    if (std::find(dense.begin(), dense.end(), layer) == dense.end()) config.layers.push_back(layer);
  }
  if (config.layers.empty()) {
    return unsupported(
        "no layer is left that could select pages: all heads have a window or stream, or their layers are named in "
        "dense_layers");
  }
  return config;
}

Status check_page_lists(const SparseConfig& config, const EngineOptions& options, std::string_view device) {
  const SelectPolicy& policy = *config.policy;
  if (policy.score != SelectScore::kCodes || policy.stat != abi::StatKind::kCodes ||
      policy.unit_tokens != abi::kSubPageTokens || policy.mass != 0.0f) {
    return unsupported(
        "page selection by \"{}\" on {}, which selects by learned key codes alone: \"fovea\", with {} in the model's "
        "folder; or use the CPU",
        policy.name, device, kKeyCodesFile);
  }
  if (options.page_tokens != abi::kSubPageTokens) {
    return unsupported("page selection on {} needs page_tokens to be {}, it is {}", device, abi::kSubPageTokens,
                       options.page_tokens);
  }
  if (config.prompt_budget.has_value()) {
    return unsupported("sparse_prefill on {}, where prompts read all pages; leave it out, or use the CPU", device);
  }
  return ok_status();
}

std::int32_t page_list_units(const KvBudget& budget, std::int32_t max_context) {
  const std::int32_t unit = abi::kSubPageTokens;
  // A budget of everything selects nothing, and needs no room.
  const std::int32_t most = budget.divisor == 1 ? kLeastBudgetTokens : budget.at(max_context);
  return std::max(std::min(most, max_context + unit - 1) / unit, kLeastBudgetTokens / unit);
}

namespace {

// That the lists of a request have room, and are those that the device makes.
Status check_fits(const SparseConfig& config, const SparseSetting& setting, std::string& parameter) {
  if (config.list_units == 0 || setting.policy == nullptr) return ok_status();
  parameter = "sparse";
  if (setting.policy != config.policy) {
    return unsupported("sparse is \"{}\"; the engine's device selects by \"{}\" alone", setting.policy->name,
                       config.policy->name);
  }
  parameter = "kv_budget";
  const std::int32_t asked = page_list_units(setting.budget, config.max_context);
  if (asked <= config.list_units) return ok_status();
  return unsupported("kv_budget is up to {} tokens; lists of the engine's device have room for {}, its own --kv-budget",
                     asked * abi::kSubPageTokens, config.list_units * abi::kSubPageTokens);
}

}  // namespace

Result<SparseSetting> sparse_setting(const SparseConfig& config, const GenerateRequest& request,
                                     std::string* parameter) {
  SparseSetting setting;
  std::string unused;
  std::string& wrong = parameter != nullptr ? *parameter : unused;
  setting.policy = config.policy;
  setting.budget = config.budget;
  setting.prompt_budget = config.prompt_budget;
  if (request.sparse == "off") {
    setting.policy = nullptr;
  } else if (!request.sparse.empty() && (request.sparse != "auto" || config.policy == nullptr)) {
    wrong = "sparse";
    FOVEA_ASSIGN_OR_RETURN(setting.policy, find_select_policy(request.sparse));
    if (config.policy == nullptr) {
      return unsupported(
          "sparse is \"{}\", but the engine keeps no statistics of pages; "
          "start it with --sparse {}",
          request.sparse, request.sparse);
    }
    if (setting.policy->stat != abi::StatKind::kNone && setting.policy->stat != config.policy->stat) {
      return unsupported(
          "sparse is \"{}\", but the engine keeps the statistics of \"{}\"; "
          "start it with --sparse {}",
          request.sparse, config.policy->name, request.sparse);
    }
  }
  const char* how_to_select = config.policy != nullptr ? "give sparse too" : "start the engine with --sparse";
  wrong = "kv_budget";
  if (!request.kv_budget.empty()) {
    if (setting.policy == nullptr) {
      return invalid_argument("kv_budget is {}, but the request selects no pages; {}", quote(request.kv_budget),
                              how_to_select);
    }
    FOVEA_ASSIGN_OR_RETURN(setting.budget, parse_kv_budget(request.kv_budget));
  }
  if (setting.policy != nullptr) {
    setting.budget = setting.budget.in_units(setting.policy->unit_tokens);
    if (setting.prompt_budget.has_value()) {
      setting.prompt_budget = setting.prompt_budget->in_units(setting.policy->unit_tokens);
    }
  }
  wrong = "sparse_prompt_tokens";
  if (request.sparse_prompt_tokens < 0) {
    return invalid_argument("sparse_prompt_tokens is {}, expected 0 or more", request.sparse_prompt_tokens);
  }
  if (request.sparse_prompt_tokens > 0 && setting.policy == nullptr) {
    return invalid_argument("sparse_prompt_tokens is {}, but the request selects no pages; {}",
                            request.sparse_prompt_tokens, how_to_select);
  }
  FOVEA_RETURN_IF_ERROR(check_fits(config, setting, wrong));
  wrong.clear();
  const auto prompt = static_cast<std::int32_t>(request.prompt.size());
  setting.first_position = prompt - std::min(prompt, request.sparse_prompt_tokens);
  return setting;
}

std::string cache_salt(std::string_view asked, const SparseSetting& setting) {
  std::string how;
  if (setting.policy != nullptr && setting.prompt_budget.has_value()) {
    const KvBudget& prompt = *setting.prompt_budget;
    how = fmt::format("sparse prefill {} {}/{} {}/{}", setting.policy->name, prompt.tokens, prompt.divisor,
                      setting.budget.tokens, setting.budget.divisor);
  }
  // The engine's part stands in front of the first separator, where nothing that is asked for gets to.
  return how.empty() && asked.empty() ? "" : fmt::format("{}\x1f{}", how, asked);
}

std::int64_t without_page_stats(std::int64_t bytes, const std::vector<KvGroupSpec>& groups,
                                const EngineOptions& options, const SparseConfig& config) {
  if (config.policy == nullptr) return bytes;
  double kv = 0.0;
  double stats = 0.0;
  for (const KvGroupSpec& group : groups) {
    const KvFormat format = KvPool::format_of(group, {options.kv_dtype, options.kv_rotated});
    std::int64_t heads = 0;
    for (std::size_t i = 0; i < group.layers.size(); ++i) heads += group.heads_of(i);
    kv += static_cast<double>(options.page_tokens * heads * kv_token_bytes(format, group.head_dim));
    stats += static_cast<double>(PageStats::page_bytes(group, options.page_tokens, config.policy->stat, config.layers));
  }
  return static_cast<std::int64_t>(static_cast<double>(bytes) * kv / (kv + stats));
}

}  // namespace fovea
