// ModelConfig: what config.json and generation_config.json say, checked and normalized. Filled by config.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"
#include "fovea/dtype.h"
#include "fovea/status.h"

namespace fovea {

// Norms of queries and keys after their projection: of each head (Qwen 3, Gemma 3), or of all heads together (OLMo 2).
enum class QkNorm : std::uint8_t { kNone, kHead, kProjection };

struct ModelConfig {
  std::string model_type;  // a name of config.cc's table
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
  QkNorm qk_norm = QkNorm::kNone;
  bool fused_projections = false;  // Phi-3: qkv_proj and gate_up_proj instead of three and two matrices
  bool norm_plus_one = false;      // Gemma: weight + 1
  bool pre_norms = true;           // norms before attention and MLP; OLMo 2 has none
  bool post_norms = false;         // norms after attention and MLP: OLMo 2, Gemma 2 and 3
  float embedding_scale = 1.0f;    // Gemma: sqrt(hidden_size)
  float attention_scale = 0.0f;    // multiplies q.k
  float attention_softcap = 0.0f;
  float final_softcap = 0.0f;
  Activation activation = Activation::kSilu;
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;  // Gemma 3: of the layers with a sliding window
  // LongRoPE: the divisors for a context of at most rope.original_max_position tokens; rope holds those for longer
  // ones.
  std::vector<double> short_context_divisors;
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
