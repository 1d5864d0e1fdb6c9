// ModelConfig: what config.json and generation_config.json say, checked and normalized. Filled by config.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"
#include "fovea/dtype.h"
#include "fovea/status.h"

namespace fovea {

struct ModelConfig {
  std::string model_type;  // "llama", "mistral", "qwen2", "qwen3", "gemma2"
  std::int32_t hidden_size = 0;
  std::int32_t intermediate_size = 0;
  std::int32_t num_layers = 0;
  std::int32_t num_qo_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_position = 0;  // context length in tokens
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // q, k, v (Qwen 2)
  bool output_bias = false;     // o, where the family has it
  bool mlp_bias = false;
  bool qk_norm = false;          // Qwen 3
  bool norm_plus_one = false;    // Gemma: weight + 1
  bool post_norms = false;       // Gemma 2: norms after attention and MLP too
  float embedding_scale = 1.0f;  // Gemma: sqrt(hidden_size)
  float attention_scale = 0.0f;  // multiplies q.k
  float attention_softcap = 0.0f;
  float final_softcap = 0.0f;
  Activation activation = Activation::kSilu;
  RopeConfig rope;
  std::vector<std::int32_t> layer_window;  // [num_layers] tokens of sliding window, 0: full attention
  DType dtype = DType::kBF16;              // of the weights, as config.json says
  std::int32_t bos_token = -1;
  std::vector<std::int32_t> eos_tokens;  // config.json and generation_config.json together
  // generation_config.json's sampling defaults; negative or 0: not given.
  float default_temperature = -1.0f;
  float default_top_p = -1.0f;
  std::int32_t default_top_k = 0;
};

Result<ModelConfig> load_model_config(const std::string& folder_or_file);
Result<ModelConfig> parse_model_config(const std::string& config_json, const std::string& generation_config_json);

}  // namespace fovea
