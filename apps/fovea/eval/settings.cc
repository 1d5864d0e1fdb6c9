// See eval/settings.h.
#include "eval/settings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "base/quote.h"
#include "base/status.h"
#include "core/select/policy.h"
#include "engine_flags.h"

namespace fovea::app {
namespace {

constexpr std::string_view kAll =
    "dense,random,lserve,quest,quest-f8,mean-dev,mass,fovea-local,fovea,oracle,"
    "lserve:256,quest:256,mean-dev:256,fovea-local:256,fovea:256,oracle:256,"
    "fovea+every:4,fovea:256+every:4,quest+keep:4,fovea+prefill:T/8,"
    "streaming,fovea+streaming,fp8,int8,int4,int4-hadamard,"
    "int8+streaming,int4+streaming,int4-hadamard+streaming,fovea+int4+streaming";

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

Status read_steps(std::string_view part, std::string_view digits, std::int32_t* out) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *out);
  if (error == std::errc() && end == digits.data() + digits.size() && *out >= 1) return ok_status();
  return invalid_argument("settings: {} needs a number of steps, as every:4", quote(part));
}

// What a part is about: a setting says it once.
std::string_view topic_of(std::string_view part) {
  const std::string_view word = part.substr(0, part.find(':'));
  EngineOptions ignored;
  if (set_kv_type(part, &ignored)) return "the type of KV";
  if (word == "streaming") return "which heads stream";
  if (word == "prefill") return "how prompts are read";
  if (word == "every" || word == "keep") return "the steps between scans";
  return "which pages are selected";
}

Status read_part(std::string_view part, EngineOptions* options) {
  const std::size_t colon = part.find(':');
  const std::string_view word = part.substr(0, colon);
  const bool has_value = colon != std::string_view::npos;
  const std::string_view value = has_value ? part.substr(colon + 1) : std::string_view();
  if (part == "dense" || set_kv_type(part, options)) return ok_status();
  if (word == "streaming") {
    if (has_value && value.empty()) return invalid_argument("settings: \"streaming:\" names no heads");
    options->streaming = has_value ? std::string(value) : options->streaming == "off" ? "auto" : options->streaming;
    return ok_status();
  }
  if (word == "prefill") {
    options->sparse_prefill = value;
    return parse_kv_budget(value).status();
  }
  if (word == "every" || word == "keep") {
    if (word == "keep") options->sparse_candidates = 0;
    return read_steps(part, value, &options->sparse_interval);
  }
  const auto policy = find_select_policy(word);
  if (!policy.ok()) {
    return invalid_argument(
        "settings: no part is named \"{}\"; there are dense, streaming, every:N, keep:N, prefill:BUDGET, types of KV "
        "(bf16, f16, f32, fp8, int8, int4, int4-hadamard) and policies (auto, {})",
        shorten(part), select_policy_names());
  }
  options->sparse = (*policy)->name;
  if (has_value) options->kv_budget = value;
  return parse_kv_budget(options->kv_budget).status();
}

const SelectPolicy* policy_of(const EngineOptions& options) {
  return options.sparse == "off" ? nullptr : *find_select_policy(options.sparse);
}

abi::StatKind stat_of(const EngineOptions& options) {
  const SelectPolicy* policy = policy_of(options);
  return policy == nullptr ? abi::StatKind::kNone : policy->stat;
}

// What requests of one engine cannot differ in, beside statistics.
auto fixed_of(const EngineOptions& o) {
  // A prompt that selects is read by the policy and budget of the request.
  const bool prompts = o.sparse_prefill != "off";
  return std::tuple(o.kv_dtype, o.kv_rotated, o.streaming, o.sparse_interval, o.sparse_candidates, o.sparse_prefill,
                    prompts ? o.sparse + " " + o.kv_budget : std::string());
}

}  // namespace

std::string_view all_eval_settings() { return kAll; }

Result<std::vector<EvalSetting>> parse_eval_settings(std::string_view list, const EngineOptions& base) {
  if (list == "all") list = kAll;
  std::vector<EvalSetting> settings;
  for (const std::string_view name : split(list, ',')) {
    EvalSetting setting{std::string(name), base};
    const bool streams = name.find("streaming") != std::string_view::npos;
    setting.engine.sparse = "off";
    std::vector<std::string_view> said;
    for (const std::string_view part : split(name, '+')) {
      FOVEA_RETURN_IF_ERROR(read_part(part, &setting.engine));
      said.push_back(topic_of(part));
      if (std::find(said.begin(), said.end() - 1, said.back()) != said.end() - 1) {
        return invalid_argument("settings: {} says twice {}", quote(name), said.back());
      }
    }
    if (!streams) setting.engine.streaming = "off";
    if (setting.engine.sparse == "off" && (setting.engine.sparse_interval != base.sparse_interval ||
                                           setting.engine.sparse_prefill != base.sparse_prefill)) {
      return invalid_argument("settings: {} says when pages are selected, but no policy selects any", quote(name));
    }
    if (setting.engine.sparse == "off") setting.engine.sparse_prefill = "off";  // base's is of settings that select
    if (std::any_of(settings.begin(), settings.end(), [&](const EvalSetting& other) { return other.name == name; })) {
      return invalid_argument("settings: {} is there twice", quote(name));
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

std::vector<EvalGroup> group_eval_settings(const std::vector<EvalSetting>& settings) {
  std::vector<EvalGroup> groups;
  // Those that need statistics first, so that those that need none find an engine that has some.
  for (const bool needs : {true, false}) {
    for (std::size_t i = 0; i < settings.size(); ++i) {
      const EngineOptions& options = settings[i].engine;
      if ((stat_of(options) != abi::StatKind::kNone) != needs) continue;
      const auto serves = [&](const EvalGroup& group) {
        if (fixed_of(group.engine) != fixed_of(options)) return false;
        return needs ? stat_of(group.engine) == stat_of(options)
                     : policy_of(options) == nullptr || group.engine.sparse != "off";
      };
      const auto found = std::find_if(groups.begin(), groups.end(), serves);
      if (found != groups.end()) {
        found->settings.push_back(i);
      } else {
        groups.push_back({options, {i}});
      }
    }
  }
  return groups;
}

}  // namespace fovea::app
