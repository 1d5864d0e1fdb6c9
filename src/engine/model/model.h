// Model: a decoder-only transformer loaded from a Hugging Face folder, run on a Device. Called by engine/runner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "abi/kv_pool.h"
#include "abi/op_args.h"
#include "base/pause.h"
#include "device/device.h"
#include "engine/model/config.h"
#include "engine/model/head_profile.h"
#include "fovea/status.h"

namespace fovea {

enum class LoadFormat : std::uint8_t { kAuto, kDummy };  // kDummy: reproducible random weights of the given config

struct ModelLoadOptions {
  LoadFormat format = LoadFormat::kAuto;
  std::uint64_t dummy_seed = 0;
  std::function<void(std::int64_t done, std::int64_t total)> on_load;  // bytes of stored weights; or none
  bool fp8_weights = false;  // matrices of layers become fp8_e4m3 with a scale a row, where they are not yet
  std::int32_t max_forward_tokens = 2048;  // most tokens one forward may hold: sizes the activations once
  std::int32_t max_logit_rows = 256;
  std::int32_t max_context = 0;          // tokens a sequence may have; 0: what the model can take (LongRoPE asks)
  std::optional<HeadProfile> streaming;  // KV heads that keep sinks and a window only
};

// Heads that keep the same tokens share a KV group: page tables and memory. A plain model has one group, Gemma 2 two
// (by layers), a model with streaming heads one for them beside the others (by layers and KV heads).
struct KvGroupSpec {
  std::vector<std::int32_t> layers;  // model layer indices, ascending
  std::int32_t num_kv_heads = 0;     // of a layer
  std::int32_t head_dim = 0;
  std::int32_t window_tokens = 0;  // 0: every token is kept; else a query sees itself and window_tokens - 1 before it
  std::int32_t sink_tokens = 0;    // with a window: leading tokens that every query sees too
  // With a window: that of prompt tokens, if it is larger; else 0. Generated tokens see window_tokens.
  std::int32_t prompt_window_tokens = 0;
  std::vector<std::vector<std::int32_t>> heads;  // [layers] KV heads of the group, ascending; empty: all of the layers

  bool streaming = false;  // by a head profile, not by the model's own layers
  // The largest window of any query; 0: all is kept.
  std::int32_t most_window() const { return std::max(window_tokens, prompt_window_tokens); }
  std::int32_t heads_of(std::size_t i) const {
    return heads.empty() ? num_kv_heads : static_cast<std::int32_t>(heads[i].size());
  }
};

// KV heads [head_begin, head_end) of a layer, which are in one KV group.
struct HeadRange {
  std::int32_t head_begin = 0;
  std::int32_t head_end = 0;
  std::size_t kv_group = 0;
};

// Layers whose heads are in the same KV groups: their attention is planned once.
struct AttentionGroupSpec {
  std::vector<std::int32_t> layers;
  std::vector<HeadRange> ranges;  // ascending, all heads; BlockRow::pool of the plan is an index into it
};

// What stands between append and attention in layers whose heads may read selected pages (engine/runner/selection.h).
class LayerSelection {
 public:
  virtual ~LayerSelection() = default;
  // What is kept of the keys of a layer's heads, by range of its attention group; data null: nothing.
  virtual abi::PageStatsView statistics(std::int32_t layer, std::size_t range) const = 0;
  // Runs the layer's attention over selected pages; false where nothing is selected and the group's plan serves.
  virtual Result<bool> attend(std::int32_t layer, const TensorView& q, const TensorView& out) = 0;
};

// One forward: tokens of all requests one after another (prefill chunks and decodes mixed).
struct ForwardBatch {
  std::span<const std::int32_t> tokens;  // [T]
  // [T], or empty: token i is latest[token_rows[i]] instead, which lies in the device's memory; -1: it is tokens[i].
  std::span<const std::int32_t> token_rows;
  const std::int32_t* latest = nullptr;
  std::span<const std::int32_t> positions;   // [T]
  std::span<const std::int32_t> logit_rows;  // rows (of T) whose logits are wanted, ascending
  // By KV group: where each token's K and V go (page * page_tokens + offset).
  std::vector<std::span<const std::int32_t>> slots;  // [KV groups][T]
  std::vector<PagedAttention*> attention;            // [attention groups], planned
  // By model layer and range of its attention group: the pool, counted in the layer's heads (abi::shift_heads).
  std::span<const std::vector<abi::KvPoolView>> layer_kv;  // [num_layers][ranges]
  LayerSelection* selection = nullptr;                     // or null: every layer runs its group's plan
  std::span<const abi::DrawRow> draws;                     // [logit_rows], or empty; Device::draw behind that
  TensorView best;                                         // i32 [logit_rows], or empty: Device::argmax of the logits
  ReplayKey key;  // of Device::replay: sizes, plans' kinds and logits are those of other forwards with it
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const std::vector<KvGroupSpec>& kv_groups() const = 0;
  virtual const std::vector<AttentionGroupSpec>& attention_groups() const = 0;
  // What create_attention needs for an attention group: heads, scale and soft-cap filled in; types and limits are the
  // caller's. What queries see is up to the KV group: all before them, or a window behind the sinks.
  virtual AttentionOptions attention_options(std::size_t attention_group) const = 0;
  // logits: [logit_rows.size(), vocab_size] f32, final soft-cap applied.
  virtual Status forward(const ForwardBatch& batch, const TensorView& logits) = 0;
  // forward() that is left when `pause` is due: false, until a call with the same tokens and goes_on has come to the
  // end. One at a time; others of at most max_forward_tokens less its tokens may run in between. The attention of the
  // batch must be its own. Where may_pause().
  virtual Result<bool> forward_part(const ForwardBatch& batch, const TensorView& logits, const Pause& /*pause*/,
                                    bool /*goes_on*/) {
    if (Status status = forward(batch, logits); !status.ok()) return status;
    return true;
  }
  virtual bool may_pause() const { return false; }
  virtual std::size_t weight_bytes() const = 0;  // bytes a decode step reads
};

// folder: a Hugging Face folder (config.json, *.safetensors); with kDummy config.json alone, or the path of one, is
// enough.
Result<std::unique_ptr<Model>> load_model(const std::string& folder, Device& device, const ModelLoadOptions& options);

}  // namespace fovea
