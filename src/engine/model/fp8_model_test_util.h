// Small random Llamas with fp8 weights as files: as checkpoints store them, and the same numbers times their scales in
// fp32, which is what they must compute. Used by the tests of the CPU's models and of the CUDA device without a GPU.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/fp8.h"
#include "base/half.h"
#include "base/json.h"
#include "base/random.h"

namespace fovea {

enum class Fp8Layout { kTensor, kChannel, kBlock };

class Fp8Checkpoint {
 public:
  struct Tensor {
    std::string name, type;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };

  explicit Fp8Checkpoint(Fp8Layout layout) : layout_(layout) {
    folder_ = std::filesystem::temp_directory_path() / ("fovea_fp8_" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    const std::int64_t hidden = 192, inner = 320, heads = 128, kv = 64, vocab = 100;
    add_wide("model.embed_tokens.weight", {vocab, hidden}, 1.0f, 0.0f);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      add_wide(prefix + "input_layernorm.weight", {hidden}, 0.1f, 1.0f);
      add_wide(prefix + "post_attention_layernorm.weight", {hidden}, 0.1f, 1.0f);
      add_matrix(prefix + "self_attn.q_proj", heads, hidden);
      add_matrix(prefix + "self_attn.k_proj", kv, hidden);
      add_matrix(prefix + "self_attn.v_proj", kv, hidden);
      add_matrix(prefix + "self_attn.o_proj", hidden, heads);
      add_matrix(prefix + "mlp.gate_proj", inner, hidden);
      add_matrix(prefix + "mlp.up_proj", inner, hidden);
      add_matrix(prefix + "mlp.down_proj", hidden, inner);
    }
    add_wide("model.norm.weight", {hidden}, 0.1f, 1.0f);
    add_wide("lm_head.weight", {vocab, hidden}, 0.07f, 0.0f);
  }
  ~Fp8Checkpoint() { std::filesystem::remove_all(folder_); }

  std::vector<Tensor>& tensors() { return stored_; }
  Tensor& tensor(const std::string& name) {
    return *std::find_if(stored_.begin(), stored_.end(), [&](const Tensor& t) { return t.name == name; });
  }
  // The folder, as `stored` or as fp32; quantization: of config.json.
  std::string write_stored(const Json& quantization) const { return write("stored", stored_, quantization); }
  std::string write_wide() const { return write("wide", wide_, nullptr); }

 private:
  static std::string bytes_of(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
  void add_wide(const std::string& name, const std::vector<std::int64_t>& shape, float deviation, float center) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = bf16_to_float(float_to_bf16(center + deviation * rng_.next_normal()));
    wide_.push_back({name, "F32", shape, bytes_of(values)});
    stored_.push_back(wide_.back());
  }
  void add_matrix(const std::string& name, std::int64_t out, std::int64_t in) {
    const std::int64_t blocks_out = (out + 127) / 128, blocks_in = (in + 127) / 128;
    std::string codes;
    // Numbers up to 30 with a deviation of about 10, subnormal ones among them.
    for (std::int64_t i = 0; i < out * in; ++i) {
      codes.push_back(static_cast<char>(rng_.next_below(0x60) | rng_.next_below(2) << 7));
    }
    std::vector<std::int64_t> shape = {out, 1};
    if (layout_ == Fp8Layout::kTensor) shape = {};
    if (layout_ == Fp8Layout::kBlock) shape = {blocks_out, blocks_in};
    const std::int64_t count = layout_ == Fp8Layout::kTensor ? 1 : shape[0] * shape[1];
    std::vector<float> scales, wide;
    for (std::int64_t i = 0; i < count; ++i) {
      scales.push_back((0.05f + 0.1f * rng_.next_float()) / std::sqrt(static_cast<float>(in)));
    }
    for (std::int64_t i = 0; i < out * in; ++i) {
      const std::int64_t row = i / in, column = i % in;
      const std::int64_t at = layout_ == Fp8Layout::kTensor    ? 0
                              : layout_ == Fp8Layout::kChannel ? row
                                                               : row / 128 * blocks_in + column / 128;
      const float value = e4m3_to_float(static_cast<std::uint8_t>(codes[static_cast<std::size_t>(i)])) *
                          scales[static_cast<std::size_t>(at)];
      wide.push_back(layout_ == Fp8Layout::kBlock ? bf16_to_float(float_to_bf16(value)) : value);
    }
    wide_.push_back({name + ".weight", "F32", {out, in}, bytes_of(wide)});
    stored_.push_back({name + ".weight", "F8_E4M3", {out, in}, codes});
    stored_.push_back({name + (layout_ == Fp8Layout::kBlock ? ".weight_scale_inv" : ".weight_scale"), "F32", shape,
                       bytes_of(scales)});
  }
  std::string write(const char* name, const std::vector<Tensor>& tensors, const Json& quantization) const {
    const std::filesystem::path folder = folder_ / name;
    std::filesystem::create_directories(folder);
    Json config = {{"model_type", "llama"},
                   {"hidden_size", 192},
                   {"intermediate_size", 320},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 4},
                   {"num_key_value_heads", 2},
                   {"vocab_size", 100},
                   {"head_dim", 32},
                   {"max_position_embeddings", 256},
                   {"torch_dtype", "float32"},
                   {"tie_word_embeddings", false}};
    if (!quantization.is_null()) config["quantization_config"] = quantization;
    std::ofstream(folder / "config.json") << config.dump();
    Json header;
    std::string data;
    for (const Tensor& tensor : tensors) {
      data.resize((data.size() + 3) / 4 * 4);
      header[tensor.name] = {{"dtype", tensor.type},
                             {"shape", tensor.shape},
                             {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    std::ofstream file(folder / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << text << data;
    return folder;
  }

  Fp8Layout layout_;
  PhiloxRng rng_{11};
  std::filesystem::path folder_;
  std::vector<Tensor> stored_, wide_;
};

// What Hugging Face writes into config.json.
inline Json fp8_config() { return {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}}; }
inline Json compressed_tensors_config(const char* strategy) {
  return {
      {"quant_method", "compressed-tensors"},
      {"format", "float-quantized"},
      {"quantization_status", "compressed"},
      {"ignore", {"lm_head"}},
      {"kv_cache_scheme", nullptr},
      {"config_groups",
       {{"group_0",
         {{"targets", {"Linear"}},
          {"output_activations", nullptr},
          {"input_activations", {{"num_bits", 8}, {"type", "float"}, {"strategy", "token"}, {"dynamic", true}}},
          {"weights",
           {{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}, {"symmetric", true}, {"dynamic", false}}}}}}}};
}

}  // namespace fovea
