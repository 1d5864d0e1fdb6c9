// Reading the files of a tokenizer: tokenizer.json with its added tokens and post-processor, and tokenizer_config.json.
#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "base/quote.h"
#include "engine/tokenizer/json_util.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_impl.h"
#include "engine/tokenizer/unicode.h"

namespace fovea {
namespace {

constexpr std::size_t kMaxTemplateBytes = 1 << 20;
constexpr JsonLimits kJsonLimits = {.max_bytes = std::uint64_t{256} << 20, .max_depth = 64};

Result<AddedToken> added_token_from_json(const nlohmann::json& spec, const nlohmann::json& id) {
  FOVEA_ASSIGN_OR_RETURN(const JsonReader json, JsonReader::create(spec, "added token"));
  AddedToken token;
  if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= BpeModel::kMaxId) {
    return invalid_argument("added token: 'id' is {}, expected an integer below {}", shorten(id.dump()),
                            BpeModel::kMaxId);
  }
  token.id = id.get<std::int32_t>();
  FOVEA_ASSIGN_OR_RETURN(token.content, json.string("content"));
  FOVEA_ASSIGN_OR_RETURN(token.single_word, json.boolean_or("single_word", false));
  FOVEA_ASSIGN_OR_RETURN(token.lstrip, json.boolean_or("lstrip", false));
  FOVEA_ASSIGN_OR_RETURN(token.rstrip, json.boolean_or("rstrip", false));
  FOVEA_ASSIGN_OR_RETURN(token.special, json.boolean_or("special", false));
  FOVEA_ASSIGN_OR_RETURN(token.normalized, json.boolean_or("normalized", !token.special));
  return token;
}

// A token name in tokenizer_config.json: a string, or an object with the string as "content".
std::optional<std::string> token_name(const nlohmann::json& config, const char* name) {
  const nlohmann::json& value = json_util::field(config, name);
  if (value.is_string()) return value.get<std::string>();
  const nlohmann::json& content = json_util::field(value, "content");
  if (content.is_string()) return content.get<std::string>();
  return std::nullopt;
}

std::optional<bool> flag(const nlohmann::json& config, const char* name) {
  const nlohmann::json& value = json_util::field(config, name);
  if (!value.is_boolean()) return std::nullopt;
  return value.get<bool>();
}

Status add_chat_template(const std::string& name, const nlohmann::json& source, TokenizerConfig& config) {
  if (!source.is_string())
    return invalid_argument("tokenizer_config.json: chat template '{}' must be a string", shorten(name));
  if (source.get_ref<const std::string&>().size() > kMaxTemplateBytes) {
    return out_of_range("tokenizer_config.json: chat template '{}' is larger than {} bytes", shorten(name),
                        kMaxTemplateBytes);
  }
  config.chat_templates.emplace_back(name, source.get<std::string>());
  return ok_status();
}

Result<TokenizerConfig> config_from_json(const nlohmann::json& spec) {
  if (!spec.is_object()) return invalid_argument("tokenizer_config.json must hold an object");
  TokenizerConfig config;
  config.bos_token = token_name(spec, "bos_token");
  config.eos_token = token_name(spec, "eos_token");
  config.pad_token = token_name(spec, "pad_token");
  config.unk_token = token_name(spec, "unk_token");
  config.add_bos_token = flag(spec, "add_bos_token");
  config.add_eos_token = flag(spec, "add_eos_token");
  const nlohmann::json& length = json_util::field(spec, "model_max_length");
  if (length.is_number() && length.get<double>() >= 1 && length.get<double>() < 1e12) {
    config.model_max_length = length.get<std::int64_t>();
  }
  const nlohmann::json& chat = json_util::field(spec, "chat_template");
  if (chat.is_array()) {
    for (const nlohmann::json& entry : chat) {
      FOVEA_ASSIGN_OR_RETURN(const JsonReader json, JsonReader::create(entry, "chat_template"));
      FOVEA_ASSIGN_OR_RETURN(const std::string name, json.string("name"));
      FOVEA_RETURN_IF_ERROR(add_chat_template(name, json_util::field(entry, "template"), config));
    }
  } else if (!chat.is_null()) {
    FOVEA_RETURN_IF_ERROR(add_chat_template("default", chat, config));
  }
  return config;
}

}  // namespace

Status Tokenizer::Impl::read_added_tokens(const nlohmann::json& list) {
  const auto take = [&](AddedToken token) {
    // The model's own id wins: the entry then only says how the token is found.
    const std::int32_t known = model.token_to_id(token.content);
    if (known >= 0) token.id = known;
    if (token.content.empty() || added_ids.contains(token.content)) return;
    const auto taken = added.find(token.id);
    if (taken != added.end()) added_ids.erase(taken->second.content);
    added_ids[token.content] = token.id;
    added[token.id] = std::move(token);
  };
  if (list.is_array()) {
    for (const nlohmann::json& entry : list) {
      FOVEA_ASSIGN_OR_RETURN(AddedToken token, added_token_from_json(entry, json_util::field(entry, "id")));
      take(std::move(token));
    }
  } else if (list.is_object()) {  // added_tokens_decoder of tokenizer_config.json: by id
    for (const auto& [id, entry] : list.items()) {
      const bool digits = !id.empty() && id.size() <= 9 && id.find_first_not_of("0123456789") == std::string::npos;
      if (!digits) return invalid_argument("added_tokens_decoder: key '{}' is no token id", shorten(id));
      FOVEA_ASSIGN_OR_RETURN(AddedToken token, added_token_from_json(entry, nlohmann::json(std::stoi(id))));
      take(std::move(token));
    }
  } else if (!list.is_null()) {
    return invalid_argument("tokenizer.json: 'added_tokens' must be an array");
  }
  return ok_status();
}

Status Tokenizer::Impl::read_template(const nlohmann::json& spec) {
  const nlohmann::json& single = json_util::field(spec, "single");
  const nlohmann::json& special = json_util::field(spec, "special_tokens");
  if (!single.is_array()) return invalid_argument("post_processor TemplateProcessing: 'single' must be an array");
  int sequences = 0;
  for (const nlohmann::json& part : single) {
    const nlohmann::json& sequence = json_util::field(part, "Sequence");
    const nlohmann::json& token = json_util::field(part, "SpecialToken");
    if (!sequence.is_null()) {
      ++sequences;
      continue;
    }
    FOVEA_ASSIGN_OR_RETURN(const JsonReader json, JsonReader::create(token, "post_processor TemplateProcessing"));
    FOVEA_ASSIGN_OR_RETURN(const std::string name, json.string("id"));
    const nlohmann::json& ids = json_util::field(json_util::field(special, name.c_str()), "ids");
    if (!ids.is_array()) {
      return invalid_argument("post_processor TemplateProcessing: 'special_tokens' has no ids for '{}'", shorten(name));
    }
    for (const nlohmann::json& id : ids) {
      if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= BpeModel::kMaxId) {
        return invalid_argument("post_processor TemplateProcessing: id {} of '{}' is no token id", shorten(id.dump()),
                                shorten(name));
      }
      (sequences == 0 ? prefix : suffix).push_back(id.get<std::int32_t>());
    }
  }
  if (sequences != 1) {
    return unsupported("post_processor TemplateProcessing: 'single' names the sequence {} times, expected once",
                       sequences);
  }
  return ok_status();
}

Status Tokenizer::Impl::read_post_processor(const nlohmann::json& spec, int depth) {
  if (spec.is_null()) return ok_status();
  FOVEA_ASSIGN_OR_RETURN(const JsonReader json, json_util::typed_part(spec, "post_processor"));
  FOVEA_ASSIGN_OR_RETURN(const std::string type, json.string("type"));
  if (type == "ByteLevel") return ok_status();  // changes offsets only
  if (type == "TemplateProcessing") return read_template(spec);
  if (type == "Sequence") {
    FOVEA_ASSIGN_OR_RETURN(const auto* parts, json_util::sequence_parts(json, "processors", depth));
    for (const nlohmann::json& part : *parts) FOVEA_RETURN_IF_ERROR(read_post_processor(part, depth + 1));
    return ok_status();
  }
  return unsupported("post_processor type '{}', expected TemplateProcessing, ByteLevel or Sequence", shorten(type));
}

Status Tokenizer::Impl::read(const nlohmann::json& spec) {
  if (!spec.is_object()) return invalid_argument("tokenizer.json must hold an object");
  FOVEA_ASSIGN_OR_RETURN(model, BpeModel::from_json(json_util::field(spec, "model")));
  FOVEA_ASSIGN_OR_RETURN(normalizer, Normalizer::from_json(json_util::field(spec, "normalizer")));
  FOVEA_ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::from_json(json_util::field(spec, "pre_tokenizer")));
  FOVEA_ASSIGN_OR_RETURN(decoder, Decoder::from_json(json_util::field(spec, "decoder")));
  FOVEA_RETURN_IF_ERROR(read_added_tokens(json_util::field(spec, "added_tokens")));
  return read_post_processor(json_util::field(spec, "post_processor"), 0);
}

// What needs both files: named tokens, the searches, and what the config says about the first and last token.
Status Tokenizer::Impl::finish_loading() {
  const auto resolve = [&](const std::optional<std::string>& name) {
    const std::int32_t id = name ? token_to_id(*name) : -1;
    const auto found = added.find(id);
    if (found != added.end()) found->second.special = true;
    return id;
  };
  bos_id = resolve(config.bos_token);
  eos_id = resolve(config.eos_token);
  pad_id = resolve(config.pad_token);
  vocab_size = model.id_limit();
  std::vector<AddedToken*> ordered;
  for (auto& [id, token] : added) {
    vocab_size = std::max(vocab_size, id + 1);
    ordered.push_back(&token);
  }
  for (const std::vector<std::int32_t>* ids : {&prefix, &suffix}) {
    for (const std::int32_t id : *ids) {
      if (id >= vocab_size) {
        return invalid_argument("post_processor adds id {}, but the {} tokens end before it", id, vocab_size);
      }
    }
  }
  std::sort(ordered.begin(), ordered.end(), [](const AddedToken* a, const AddedToken* b) { return a->id < b->id; });
  for (AddedToken* token : ordered) {
    token->text = token->content;
    if (token->normalized) {
      bool at_origin = true;
      FOVEA_RETURN_IF_ERROR(normalizer.apply(token->text, at_origin));
    }
    FOVEA_RETURN_IF_ERROR((token->normalized ? normalized_finder : raw_finder).add(*token, token->text));
  }
  if (config.add_bos_token && bos_id >= 0) {
    const bool has = !prefix.empty() && prefix.front() == bos_id;
    if (*config.add_bos_token && !has) prefix.insert(prefix.begin(), bos_id);
    if (!*config.add_bos_token && has) prefix.erase(prefix.begin());
  }
  if (config.add_eos_token && eos_id >= 0) {
    const bool has = !suffix.empty() && suffix.back() == eos_id;
    if (*config.add_eos_token && !has) suffix.push_back(eos_id);
    if (!*config.add_eos_token && has) suffix.pop_back();
  }
  return ok_status();
}

Result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  FOVEA_ASSIGN_OR_RETURN(const nlohmann::json spec, parse_json(tokenizer_json, "tokenizer.json", kJsonLimits));
  auto impl = std::make_shared<Impl>();
  FOVEA_RETURN_IF_ERROR(impl->read(spec));
  if (!tokenizer_config_json.empty()) {
    FOVEA_ASSIGN_OR_RETURN(const nlohmann::json config,
                           parse_json(tokenizer_config_json, "tokenizer_config.json", kJsonLimits));
    FOVEA_ASSIGN_OR_RETURN(impl->config, config_from_json(config));
    FOVEA_RETURN_IF_ERROR(impl->read_added_tokens(json_util::field(config, "added_tokens_decoder")));
  }
  FOVEA_RETURN_IF_ERROR(impl->finish_loading());
  Tokenizer tokenizer;
  tokenizer.impl_ = std::move(impl);
  return tokenizer;
}

Result<Tokenizer> Tokenizer::load(const std::string& folder) {
  FOVEA_ASSIGN_OR_RETURN(const std::string text, read_file(folder + "/tokenizer.json", kJsonLimits.max_bytes));
  // The small files around it are merged into one config, as the loaders of the reference do.
  nlohmann::json config = nlohmann::json::object();
  const auto read = [&](const char* name) -> Result<std::string> {
    auto found = read_file(folder + "/" + name, kJsonLimits.max_bytes);
    if (!found.ok() && found.status().code() == StatusCode::kNotFound) return std::string();
    return found;
  };
  FOVEA_ASSIGN_OR_RETURN(const std::string map_text, read("special_tokens_map.json"));
  FOVEA_ASSIGN_OR_RETURN(const std::string config_text, read("tokenizer_config.json"));
  FOVEA_ASSIGN_OR_RETURN(std::string chat_text, read("chat_template.jinja"));
  for (const auto& [name, content] : {std::pair<const char*, const std::string*>{"special_tokens_map.json", &map_text},
                                      {"tokenizer_config.json", &config_text}}) {
    if (content->empty()) continue;
    FOVEA_ASSIGN_OR_RETURN(const nlohmann::json part, parse_json(*content, folder + "/" + name, kJsonLimits));
    if (!part.is_object()) return invalid_argument("{}/{} must hold an object", shorten(folder), name);
    config.update(part);
  }
  if (!chat_text.empty()) config["chat_template"] = std::move(chat_text);
  const std::string merged = config.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  auto made = from_json(text, merged);
  if (!made.ok()) return Status(made.status().code(), shorten(folder) + ": " + made.status().message());
  return made;
}

}  // namespace fovea
