// Text in and out of the engine: tokenizer, chat template, sampling defaults.
#include "base/json.h"
#include "base/status.h"
#include "engine/engine_core.h"

namespace fovea {

std::vector<std::string> EngineCore::grammar_vocabulary() const {
  std::vector<std::string> tokens(static_cast<std::size_t>(vocab_size()));
  for (std::int32_t id = 0; id < vocab_size(); ++id) {
    if (!parts_.tokenizer->is_special(id)) tokens[static_cast<std::size_t>(id)] = parts_.tokenizer->token_bytes(id);
  }
  return tokens;
}

Result<std::shared_ptr<const Grammar>> EngineCore::compile_grammar(const GrammarSpec& spec) {
  if (grammars_ == nullptr) return unsupported("a grammar needs a tokenizer, and {} has none", parts_.name);
  return grammars_->compile(spec);
}

Result<std::vector<std::int32_t>> EngineCore::encode(std::string_view text, bool add_special_tokens) const {
  if (!parts_.tokenizer.has_value()) return unsupported("{} has no tokenizer; give token ids", parts_.name);
  FOVEA_ASSIGN_OR_RETURN(
      std::vector<std::int32_t> ids,
      parts_.tokenizer->encode(text, {.add_special_tokens = add_special_tokens, .parse_special = true}));
  // A text that brings its first token gets no second one.
  const std::int32_t bos = parts_.tokenizer->bos_id();
  if (add_special_tokens && bos >= 0 && ids.size() >= 2 && ids[0] == bos && ids[1] == bos) ids.erase(ids.begin());
  return ids;
}

std::string EngineCore::decode(const std::vector<std::int32_t>& tokens, bool skip_special_tokens) const {
  return parts_.tokenizer.has_value() ? parts_.tokenizer->decode(tokens, skip_special_tokens) : std::string();
}

std::string EngineCore::token_bytes(std::int32_t token) const {
  return parts_.tokenizer.has_value() ? parts_.tokenizer->token_bytes(token) : std::string();
}

std::string EngineCore::chat_template() const {
  const std::string* source = parts_.chat_template.has_value() ? parts_.tokenizer->chat_template() : nullptr;
  return source == nullptr ? std::string() : *source;
}

namespace {

// Drops what a template wrote behind the last message. Many of them trim messages.
Status cut_behind(std::string_view content, std::string* text) {
  std::size_t at = content.empty() ? std::string::npos : text->rfind(content);
  if (at == std::string::npos) {
    constexpr std::string_view kSpace = " \n\t\r";
    const std::size_t begin = content.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) return invalid_argument("the message to go on with has no text");
    content = content.substr(begin, content.find_last_not_of(kSpace) + 1 - begin);
    at = text->rfind(content);
  }
  if (at == std::string::npos) {
    return unsupported("the chat template changes the last message, so that it cannot be gone on with");
  }
  text->resize(at + content.size());
  return ok_status();
}

}  // namespace

Result<std::vector<std::int32_t>> EngineCore::encode_chat(const std::vector<ChatMessage>& messages,
                                                          bool add_generation_prompt,
                                                          const std::string& extra_json) const {
  if (!parts_.chat_template.has_value()) {
    return unsupported("{} has no chat template; use a plain prompt", parts_.name);
  }
  nlohmann::ordered_json context;
  context["messages"] = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    nlohmann::ordered_json& entry = context["messages"].emplace_back();
    entry = {{"role", message.role}, {"content", message.content}};
    if (!message.extra_json.empty()) {
      FOVEA_ASSIGN_OR_RETURN(const Json checked, parse_json(message.extra_json, "a message"));
      if (!checked.is_object()) return invalid_argument("what a message holds besides is not a JSON object");
      entry.update(nlohmann::ordered_json::parse(message.extra_json));
    }
  }
  const bool unfinished = !messages.empty() && messages.back().unfinished;
  context["add_generation_prompt"] = add_generation_prompt && !unfinished;
  const TokenizerConfig& config = parts_.tokenizer->config();
  // As the reference does: absent tokens are not defined, tools and documents are none.
  if (config.bos_token.has_value()) context["bos_token"] = *config.bos_token;
  if (config.eos_token.has_value()) context["eos_token"] = *config.eos_token;
  if (config.pad_token.has_value()) context["pad_token"] = *config.pad_token;
  if (config.unk_token.has_value()) context["unk_token"] = *config.unk_token;
  context["tools"] = nullptr;
  context["documents"] = nullptr;
  if (!extra_json.empty()) {
    // Checked with its limits first; parsed again so that the order of keys stays.
    FOVEA_ASSIGN_OR_RETURN(const Json checked, parse_json(extra_json, "template variables"));
    if (!checked.is_object()) return invalid_argument("template variables are not a JSON object");
    context.update(nlohmann::ordered_json::parse(extra_json));
  }
  FOVEA_ASSIGN_OR_RETURN(std::string text, parts_.chat_template->render(context));
  if (unfinished) FOVEA_RETURN_IF_ERROR(cut_behind(messages.back().content, &text));
  return parts_.tokenizer->encode(text, {.add_special_tokens = false, .parse_special = true});
}

SamplingParams EngineCore::default_sampling() const {
  SamplingParams params;
  const ModelConfig& config = parts_.model->config();
  if (config.default_temperature >= 0.0f) params.temperature = config.default_temperature;
  if (config.default_top_p > 0.0f) params.top_p = config.default_top_p;
  if (config.default_top_k > 0) params.top_k = config.default_top_k;
  return params;
}

}  // namespace fovea
