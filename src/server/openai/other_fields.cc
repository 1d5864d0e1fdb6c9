#include "server/openai/other_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "base/quote.h"

namespace fovea::server {
namespace {

// Hints to a service, identities, and what asks for the only thing that this server does.
constexpr std::string_view kNoEffect[] = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "request_id",
    "cache_prompt",
    "id_slot",
    "stream_usage",
    "prompt_cache_retention",
    "parallel_tool_calls",
    "model_name",
    "include_obfuscation",
    "prompt_cache_options",
    "client_metadata",
};

// Known elsewhere, not done here; `neutral` is a value, as JSON, that asks for nothing. `by_presence`: even {} asks.
struct Unsupported {
  std::string_view name;
  std::string_view neutral = "";
  bool by_presence = false;
};
constexpr Unsupported kUnsupported[] = {
    {"tools"},
    {"tool_choice", "\"auto\""},
    {"functions"},
    {"function_call"},
    {"audio"},
    {"prediction"},
    {"web_search_options", "", true},
    {"verbosity"},
    {"guided_decoding_backend"},
    {"guided_whitespace_pattern"},
    {"grammar"},
    {"suffix", "\"\""},
    {"logits_processors"},
    {"beam_width"},
    {"use_beam_search"},
    {"early_stopping"},
    {"length_penalty", "1.0"},
    {"best_of", "1"},
    {"echo"},
    {"continue_final_message"},
    {"input_ids"},
    {"documents"},
    {"allowed_token_ids"},
    {"bad_words"},
    {"chat_template"},
    {"truncate_prompt_tokens"},
    {"add_special_tokens"},
    {"typical_p", "1.0"},
    {"typical", "1.0"},
    {"tfs_z", "1.0"},
    {"top_a", "0"},
    {"mirostat", "0"},
    {"mirostat_tau"},
    {"mirostat_eta"},
    {"samplers"},
    {"repeat_penalty", "1.0"},
    {"repeat_last_n"},
    {"dynatemp_range", "0"},
    {"xtc_probability", "0"},
    {"dry_multiplier", "0"},
    {"n_predict", "-1"},
    {"n_keep", "0"},
    {"lora"},
    {"lora_path"},
    {"thinking"},
    {"thinking_budget"},
    {"spaces_between_special_tokens", "true"},
    {"detokenize", "true"},
    {"no_stop_trim"},
    {"return_hidden_states"},
    {"return_tokens_as_token_ids"},
    {"session_params"},
    {"mm_processor_kwargs"},
    {"kv_transfer_params"},
    {"vllm_xargs"},
    {"continuous_usage_stats"},
};

bool asks_for_nothing(const Json& value, std::string_view neutral) {
  if ((value.is_array() || value.is_object()) && value.empty()) return true;
  if (!neutral.empty() && value == Json::parse(neutral)) return true;
  return (value == false && neutral != "true") || value == "" || value == "none";
}

}  // namespace

void refuse_other_fields(FieldReader& fields, const std::string& prefix) {
  for (const std::string& name : fields.unread()) {
    if (std::find(std::begin(kNoEffect), std::end(kNoEffect), name) != std::end(kNoEffect)) continue;
    const auto* known = std::find_if(std::begin(kUnsupported), std::end(kUnsupported),
                                     [&](const Unsupported& entry) { return entry.name == name; });
    if (known != std::end(kUnsupported)) {
      if (!known->by_presence && asks_for_nothing(*fields.find(name.c_str()), known->neutral)) continue;
      fields.refuse(prefix + name, fmt::format("{}{} is not supported by this server; leave it out", prefix, name),
                    "unsupported_parameter");
      continue;
    }
    const std::string_view nearest = nearest_name(name, fields.known());
    fields.refuse(prefix + shorten(name),
                  fmt::format("there is no field {}{}{}; leave it out, or start the server with --lenient", prefix,
                              shorten(name), nearest.empty() ? "" : fmt::format(", {} is near", nearest)),
                  "unknown_parameter");
  }
}

void refuse_other_members(FieldReader& fields, const std::string& name, const Json& object,
                          std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || std::find(known.begin(), known.end(), key) != known.end()) continue;
    fields.refuse(fmt::format("{}.{}", name, shorten(key)), fmt::format("there is no field {}.{}", name, shorten(key)),
                  "unknown_parameter");
  }
}

}  // namespace fovea::server
