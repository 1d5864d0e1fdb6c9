// Model: a decoder-only transformer loaded from a Hugging Face folder, run on a Backend. Called by engine/runner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "abi/kv_pool.h"
#include "backend/backend.h"
#include "engine/model/config.h"
#include "fovea/status.h"

namespace fovea {

enum class LoadFormat : std::uint8_t { kAuto, kDummy };  // kDummy: reproducible random weights of the given config

struct ModelLoadOptions {
  LoadFormat format = LoadFormat::kAuto;
  std::uint64_t dummy_seed = 0;
  std::int32_t max_forward_tokens = 2048;  // most tokens one forward may hold: sizes the activations once
  std::int32_t max_logit_rows = 256;
};

// Layers that keep the same tokens share a KV group: page tables, pool and plan. A plain model has one; Gemma 2 has
// two.
struct KvGroupSpec {
  std::vector<std::int32_t> layers;  // model layer indices, ascending
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t window_tokens = 0;  // 0: every token is kept; else a query sees itself and window_tokens - 1 before it
};

// One forward: tokens of all requests one after another (prefill chunks and decodes mixed).
struct ForwardBatch {
  std::span<const std::int32_t> tokens;      // [T]
  std::span<const std::int32_t> positions;   // [T]
  std::span<const std::int32_t> logit_rows;  // rows (of T) whose logits are wanted, ascending
  // By KV group: where each token's K and V go (page * page_tokens + offset), and the planned attention.
  std::vector<std::span<const std::int32_t>> slots;  // [groups][T]
  std::vector<AttentionOp*> attention;               // [groups]
  // By model layer: the layer's pool.
  std::span<const abi::KvPoolView> layer_kv;  // [num_layers]
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const std::vector<KvGroupSpec>& kv_groups() const = 0;
  // What create_attention needs for a group, heads, scale and soft-cap filled in; limits and workers are the caller's.
  // The mask of the group's batches: causal, or a window of window_tokens - 1 to the left.
  virtual AttentionConfig attention_config(std::size_t group) const = 0;
  // logits: [logit_rows.size(), vocab_size] f32, final soft-cap applied.
  virtual Status forward(const ForwardBatch& batch, const TensorView& logits) = 0;
  virtual std::size_t weight_bytes() const = 0;  // bytes a decode step reads
};

// folder: a Hugging Face folder (config.json, *.safetensors); with kDummy config.json alone, or the path of one, is
// enough.
Result<std::unique_ptr<Model>> load_model(const std::string& folder, Backend& backend, const ModelLoadOptions& options);

}  // namespace fovea
