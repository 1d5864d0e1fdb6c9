// config.json and generation_config.json -> ModelConfig. One table says how the families differ; everything is checked
// here, so that the rest of the engine may trust a ModelConfig. Defaults are those of transformers' configuration
// classes.
#include "engine/model/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "base/quote.h"
#include "base/status.h"
#include "engine/model/config_read.h"

namespace fovea {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 16u << 20;

// Which of a family's layers use the sliding window when config.json has no layer_types.
// kPattern: all but every sliding_window_pattern-th.
enum class Windows : std::uint8_t { kNever, kAll, kFromMaxWindowLayers, kEvenLayers, kPattern };

struct Family {
  std::string_view model_type;
  bool qkv_bias = false;        // always, whatever attention_bias says
  bool reads_bias = false;      // attention_bias covers q, k, v and o
  bool reads_mlp_bias = false;  // mlp_bias
  QkNorm qk_norm = QkNorm::kNone;
  bool fused = false;              // one matrix for q, k and v, one for gate and up
  bool pre_norms = true;           // norms before attention and MLP
  bool post_norms = false;         // norms after them
  bool gemma = false;              // (1 + w) norms, scaled embeddings, query_pre_attn_scalar
  float attention_softcap = 0.0f;  // default of attn_logit_softcapping
  float final_softcap = 0.0f;      // default of final_logit_softcapping
  bool tied = false;               // default of tie_word_embeddings
  int head_dim = 0;                // default of head_dim; 0: hidden_size / num_attention_heads
  Windows windows = Windows::kNever;
  int window = 4096;  // default of sliding_window; 0: none
  RopeFields rope{};
};

constexpr Family kFamilies[] = {
    {.model_type = "llama", .reads_bias = true, .reads_mlp_bias = true},
    {.model_type = "mistral", .windows = Windows::kAll},
    {.model_type = "qwen2", .qkv_bias = true, .windows = Windows::kFromMaxWindowLayers},
    {.model_type = "qwen3",
     .reads_bias = true,
     .qk_norm = QkNorm::kHead,
     .head_dim = 128,
     .windows = Windows::kFromMaxWindowLayers},
    {.model_type = "gemma2",
     .reads_bias = true,
     .post_norms = true,
     .gemma = true,
     .attention_softcap = 50.0f,
     .final_softcap = 30.0f,
     .tied = true,
     .head_dim = 256,
     .windows = Windows::kEvenLayers},
    {.model_type = "gemma3_text",
     .reads_bias = true,
     .qk_norm = QkNorm::kHead,
     .post_norms = true,
     .gemma = true,
     .tied = true,
     .head_dim = 256,
     .windows = Windows::kPattern,
     .rope = {.theta = 1e6, .by_layer = true}},
    {.model_type = "phi3", .fused = true, .windows = Windows::kAll, .window = 0, .rope = {.partial = true}},
    {.model_type = "olmo2", .reads_bias = true, .qk_norm = QkNorm::kProjection, .pre_norms = false, .post_norms = true},
};

Result<const Family*> find_family(const JsonReader& json) {
  FOVEA_ASSIGN_OR_RETURN(const std::string type, json.string("model_type"));
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.model_type == type) return &family;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family.model_type);
  }
  return unsupported("{} is {}, expected one of {}", json.path("model_type"), quote(type), known);
}

// A classifier or an encoder of a known family has other weights behind the last layer.
Status check_architectures(const JsonReader& json) {
  if (!json.has("architectures")) return ok_status();
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::string> names, json.strings("architectures"));
  for (const std::string& name : names) {
    if (name.ends_with("ForCausalLM")) return ok_status();
  }
  if (names.empty()) return ok_status();
  return unsupported("{} is {}, expected a language model (..ForCausalLM)", json.path("architectures"),
                     quote(names[0]));
}

Status read_sizes(const JsonReader& json, const Family& family, ModelConfig& config) {
  const auto read = [&](std::string_view key, std::int64_t max, std::int32_t& to) -> Status {
    FOVEA_ASSIGN_OR_RETURN(const std::int64_t value, json.integer(key, 1, max));
    to = static_cast<std::int32_t>(value);
    return ok_status();
  };
  FOVEA_RETURN_IF_ERROR(read("hidden_size", 1 << 17, config.hidden_size));
  FOVEA_RETURN_IF_ERROR(read("intermediate_size", 1 << 20, config.intermediate_size));
  FOVEA_RETURN_IF_ERROR(read("num_hidden_layers", 1 << 10, config.num_layers));
  FOVEA_RETURN_IF_ERROR(read("num_attention_heads", 1 << 10, config.num_qo_heads));
  FOVEA_RETURN_IF_ERROR(read("vocab_size", 1 << 24, config.vocab_size));
  FOVEA_RETURN_IF_ERROR(read("max_position_embeddings", 1 << 28, config.max_position));
  config.num_kv_heads = config.num_qo_heads;
  if (json.has("num_key_value_heads")) FOVEA_RETURN_IF_ERROR(read("num_key_value_heads", 256, config.num_kv_heads));
  if (config.num_qo_heads % config.num_kv_heads != 0) {
    return invalid_argument("{} is {}, which does not divide num_attention_heads {}", json.path("num_key_value_heads"),
                            config.num_kv_heads, config.num_qo_heads);
  }
  if (json.has("head_dim")) {
    FOVEA_RETURN_IF_ERROR(read("head_dim", 1024, config.head_dim));
  } else if (family.head_dim != 0) {
    config.head_dim = family.head_dim;
  } else if (config.hidden_size % config.num_qo_heads == 0) {
    config.head_dim = config.hidden_size / config.num_qo_heads;
  } else {
    return invalid_argument("{} is {}, which num_attention_heads {} does not divide, and there is no head_dim",
                            json.path("hidden_size"), config.hidden_size, config.num_qo_heads);
  }
  return ok_status();
}

Result<Activation> read_activation(const JsonReader& json, const Family& family) {
  std::string_view key = "hidden_act";
  if (family.gemma && json.has("hidden_activation")) key = "hidden_activation";
  FOVEA_ASSIGN_OR_RETURN(const std::string name, json.string_or(key, family.gemma ? "gelu_pytorch_tanh" : "silu"));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "gelu") return Activation::kGelu;
  return unsupported("{} is {}, expected silu, gelu_pytorch_tanh or gelu", json.path(key), quote(name));
}

Status read_windows(const JsonReader& json, const Family& family, ModelConfig& config) {
  config.layer_window.assign(static_cast<std::size_t>(config.num_layers), 0);
  if (family.windows == Windows::kNever) return ok_status();
  std::int64_t window = 0;  // 0: none (a null)
  if (!json.json().contains("sliding_window")) {
    window = family.window;
  } else if (json.has("sliding_window")) {
    FOVEA_ASSIGN_OR_RETURN(window, json.integer("sliding_window", 1, 1 << 28));
  }
  FOVEA_ASSIGN_OR_RETURN(const bool use_window, json.boolean_or("use_sliding_window", false));
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t first, json.integer_or("max_window_layers", 28, 0, 1 << 20));
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t pattern, json.integer_or("sliding_window_pattern", 6, 1, 1 << 20));
  std::vector<std::string> types;
  if (json.has("layer_types")) {
    FOVEA_ASSIGN_OR_RETURN(types, json.strings("layer_types"));
    if (types.size() != config.layer_window.size()) {
      return invalid_argument("{} has {} entries, expected num_hidden_layers {}", json.path("layer_types"),
                              types.size(), config.num_layers);
    }
  }
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) {
    bool windowed = false;
    if (!types.empty()) {
      const std::string& type = types[static_cast<std::size_t>(layer)];
      windowed = type == "sliding_attention";
      if (!windowed && type != "full_attention") {
        return unsupported("{}[{}] is {}, expected full_attention or sliding_attention", json.path("layer_types"),
                           layer, quote(type));
      }
      if (windowed && window == 0) {
        return invalid_argument("{}[{}] is sliding_attention, but sliding_window is null", json.path("layer_types"),
                                layer);
      }
    } else if (family.windows == Windows::kFromMaxWindowLayers) {
      windowed = use_window && layer >= first;
    } else if (family.windows == Windows::kPattern) {
      windowed = (layer + 1) % pattern != 0;
      if (windowed && window == 0) {
        return invalid_argument("{} is null, expected a number of tokens", json.path("sliding_window"));
      }
    } else {
      windowed = family.windows == Windows::kAll || layer % 2 == 0;
    }
    if (windowed) config.layer_window[static_cast<std::size_t>(layer)] = static_cast<std::int32_t>(window);
  }
  return ok_status();
}

// A number, a list of numbers, or null.
Result<std::vector<std::int32_t>> read_token_ids(const JsonReader& json, std::string_view key, std::int32_t vocab) {
  std::vector<std::int64_t> ids;
  const Json* value = json.find(key);
  if (value != nullptr && value->is_array()) {
    FOVEA_ASSIGN_OR_RETURN(ids, json.integers(key));
  } else if (value != nullptr) {
    FOVEA_ASSIGN_OR_RETURN(const std::int64_t id, json.integer(key));
    ids.push_back(id);
  }
  std::vector<std::int32_t> checked;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocab) {
      return invalid_argument("{} holds {}, expected token ids from 0 to {}", json.path(key), id, vocab - 1);
    }
    checked.push_back(static_cast<std::int32_t>(id));
  }
  return checked;
}

Status add_tokens(const JsonReader& json, ModelConfig& config) {
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::int32_t> bos, read_token_ids(json, "bos_token_id", config.vocab_size));
  if (!bos.empty()) config.bos_token = bos.front();
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::int32_t> eos, read_token_ids(json, "eos_token_id", config.vocab_size));
  for (const std::int32_t id : eos) {
    if (std::find(config.eos_tokens.begin(), config.eos_tokens.end(), id) == config.eos_tokens.end()) {
      config.eos_tokens.push_back(id);
    }
  }
  return ok_status();
}

Status read_gemma(const JsonReader& json, const Family& family, ModelConfig& config) {
  config.norm_plus_one = true;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  FOVEA_ASSIGN_OR_RETURN(const double scalar, positive(json, "query_pre_attn_scalar", 256.0));
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  FOVEA_ASSIGN_OR_RETURN(const bool bidirectional, json.boolean_or("use_bidirectional_attention", false));
  if (bidirectional) {
    return unsupported("{} is true, expected a causal language model", json.path("use_bidirectional_attention"));
  }
  // An explicit null switches a cap off.
  const auto read_cap = [&](std::string_view key, float fallback, float& to) -> Status {
    const bool absent = !json.json().contains(std::string(key));
    if (absent) to = fallback;
    if (absent || !json.has(key)) return ok_status();
    FOVEA_ASSIGN_OR_RETURN(const double cap, positive(json, key, fallback));
    to = static_cast<float>(cap);
    return ok_status();
  };
  FOVEA_RETURN_IF_ERROR(read_cap("attn_logit_softcapping", family.attention_softcap, config.attention_softcap));
  return read_cap("final_logit_softcapping", family.final_softcap, config.final_softcap);
}

Status read_dtype(const JsonReader& json, ModelConfig& config) {
  const std::string_view key = json.has("dtype") ? "dtype" : "torch_dtype";
  FOVEA_ASSIGN_OR_RETURN(const std::string name, json.string_or(key, "bfloat16"));
  if (name == "bfloat16") {
    config.dtype = DType::kBF16;
  } else if (name == "float16") {
    config.dtype = DType::kF16;
  } else if (name == "float32") {
    config.dtype = DType::kF32;
  } else {
    return unsupported("{} is {}, expected bfloat16, float16 or float32", json.path(key), quote(name));
  }
  return ok_status();
}

Status read_generation(const JsonReader& json, ModelConfig& config) {
  FOVEA_RETURN_IF_ERROR(add_tokens(json, config));
  FOVEA_ASSIGN_OR_RETURN(const double temperature, json.number_or("temperature", -1.0));
  FOVEA_ASSIGN_OR_RETURN(const double top_p, json.number_or("top_p", -1.0));
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t top_k, json.integer_or("top_k", 0, 0, 1 << 24));
  FOVEA_ASSIGN_OR_RETURN(const bool sample, json.boolean_or("do_sample", true));
  if (!(temperature <= 100.0)) {
    return invalid_argument("{} is {}, expected 0 to 100", json.path("temperature"), temperature);
  }
  if (!(top_p <= 1.0)) return invalid_argument("{} is {}, expected 0 to 1", json.path("top_p"), top_p);
  config.default_temperature = sample ? static_cast<float>(temperature) : 0.0f;
  config.default_top_p = static_cast<float>(top_p);
  config.default_top_k = static_cast<std::int32_t>(top_k);
  return ok_status();
}

Result<ModelConfig> parse(const std::string& config_json, const std::string& config_name,
                          const std::string& generation_json, const std::string& generation_name) {
  FOVEA_ASSIGN_OR_RETURN(const Json document, parse_json(config_json, config_name, {.max_bytes = kMaxConfigBytes}));
  FOVEA_ASSIGN_OR_RETURN(const JsonReader json, JsonReader::create(document, shorten(config_name)));
  FOVEA_ASSIGN_OR_RETURN(const Family* family, find_family(json));
  FOVEA_RETURN_IF_ERROR(check_architectures(json));
  FOVEA_RETURN_IF_ERROR(check_quantization(json));
  ModelConfig config;
  config.model_type = family->model_type;
  FOVEA_RETURN_IF_ERROR(read_sizes(json, *family, config));
  FOVEA_ASSIGN_OR_RETURN(const double eps, positive(json, "rms_norm_eps", 1e-6));
  config.rms_norm_eps = static_cast<float>(eps);
  FOVEA_ASSIGN_OR_RETURN(config.tie_word_embeddings, json.boolean_or("tie_word_embeddings", family->tied));
  FOVEA_ASSIGN_OR_RETURN(const bool bias, json.boolean_or("attention_bias", false));
  FOVEA_ASSIGN_OR_RETURN(const bool mlp_bias, json.boolean_or("mlp_bias", false));
  config.attention_bias = family->qkv_bias || (family->reads_bias && bias);
  config.output_bias = family->reads_bias && bias;
  config.mlp_bias = family->reads_mlp_bias && mlp_bias;
  config.qk_norm = family->qk_norm;
  config.fused_projections = family->fused;
  config.pre_norms = family->pre_norms;
  config.post_norms = family->post_norms;
  FOVEA_ASSIGN_OR_RETURN(config.activation, read_activation(json, *family));
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  if (family->gemma) FOVEA_RETURN_IF_ERROR(read_gemma(json, *family, config));
  FOVEA_RETURN_IF_ERROR(read_rope(json, family->rope, config));
  FOVEA_RETURN_IF_ERROR(read_windows(json, *family, config));
  FOVEA_RETURN_IF_ERROR(read_dtype(json, config));
  FOVEA_RETURN_IF_ERROR(add_tokens(json, config));
  if (!generation_json.empty()) {
    FOVEA_ASSIGN_OR_RETURN(const Json generation,
                           parse_json(generation_json, generation_name, {.max_bytes = kMaxConfigBytes}));
    FOVEA_ASSIGN_OR_RETURN(const JsonReader reader, JsonReader::create(generation, shorten(generation_name)));
    FOVEA_RETURN_IF_ERROR(read_generation(reader, config));
  }
  return config;
}

}  // namespace

Result<ModelConfig> parse_model_config(const std::string& config_json, const std::string& generation_config_json) {
  return parse(config_json, "config.json", generation_config_json, "generation_config.json");
}

Result<ModelConfig> load_model_config(const std::string& folder_or_file) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool folder = fs::is_directory(folder_or_file, error);
  const fs::path file = folder ? fs::path(folder_or_file) / "config.json" : fs::path(folder_or_file);
  const fs::path generation = file.parent_path() / "generation_config.json";
  FOVEA_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxConfigBytes));
  std::string generation_text;
  if (fs::is_regular_file(generation, error)) {
    FOVEA_ASSIGN_OR_RETURN(generation_text, read_file(generation, kMaxConfigBytes));
  }
  return parse(text, file, generation_text, generation);
}

}  // namespace fovea
