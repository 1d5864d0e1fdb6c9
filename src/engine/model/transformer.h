// Transformer: the decoder of every supported family. Families differ by the flags of ModelConfig alone (config.cc's
// table); what a flag changes stands in transformer.cc where it happens. Made by load_model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/kv_grouping.h"
#include "engine/model/model.h"
#include "engine/model/shard.h"
#include "engine/model/weights.h"

namespace fovea {

class Transformer : public Model {
 public:
  static Result<std::unique_ptr<Model>> create(ModelConfig config, const Shard& shard,
                                               std::unique_ptr<WeightSource> weights, Device& device,
                                               const ModelLoadOptions& options);

  const ModelConfig& config() const override { return config_; }
  const std::vector<KvGroupSpec>& kv_groups() const override { return layout_.groups; }
  const std::vector<AttentionGroupSpec>& attention_groups() const override { return layout_.attention; }
  AttentionOptions attention_options(std::size_t attention_group) const override;
  Status forward(const ForwardBatch& batch, const TensorView& logits) override;
  Result<bool> forward_part(const ForwardBatch& batch, const TensorView& logits, const Pause& pause,
                            bool goes_on) override;
  bool may_pause() const override { return device_.reads_host_memory() && device_.group() == nullptr; }
  std::size_t weight_bytes() const override { return weight_bytes_; }

 private:
  struct Layer {
    TensorView input_norm;           // before attention; pre_norms
    TensorView mlp_norm;             // before the MLP; pre_norms
    TensorView post_attention_norm;  // of the attention's result; post_norms
    TensorView post_mlp_norm;        // of the MLP's result; post_norms
    TensorView q_norm, k_norm;       // [head_dim] or [heads * head_dim]; qk_norm
    std::unique_ptr<Linear> qkv, output, gate_up, down;
  };

  Transformer(ModelConfig config, const Shard& shard, Device& device, const ModelLoadOptions& options)
      : config_(std::move(config)), shard_(shard), device_(device), options_(options) {}

  // Twice where the source is stored: a look at everything, then in earnest.
  Status load(WeightSource& weights);
  Status load_layer(WeightSource& weights, std::int32_t index);
  // Weights [out of each name, in] stacked, as one Linear.
  struct Part {
    std::string name;  // without ".weight"
    std::int64_t out_features;
    std::vector<ShardRange> rows;  // that this rank has of them, one behind the other
  };
  // columns: those of `in` that this rank has; where they are not all, ranks' results are to be added.
  Result<std::unique_ptr<Linear>> load_linear(WeightSource& weights, const std::vector<Part>& parts, std::int64_t in,
                                              const ShardRange& columns, bool bias, bool to_fp8);
  Result<TensorView> load_vector(WeightSource& weights, const std::string& name, std::int64_t size);
  Result<TensorView> load_norm(WeightSource& weights, const std::string& name, std::int64_t size);
  // Tells the device what stands around a product; norm: the name of the norm's weight, empty where there is none.
  Status fuse(WeightSource& weights, const std::unique_ptr<Linear>& linear, const std::string& norm,
              bool gated = false);
  // What a device keeps for lookups alone: an embedding that is not the output matrix too.
  std::size_t table_bytes() const;
  Status allocate();
  Status check(const ForwardBatch& batch, const TensorView& logits) const;

  bool has_own_head(WeightSource& weights);

  // hidden_ is the residual stream; delta_ what a block adds to it and, while it waits, has not added yet; normed_ the
  // next block's input, where the device does not compute it along with the block's first product.
  // y = linear(norm(hidden)), without a weight linear(hidden), of what hidden is with delta_ added where that waits.
  // gated: the activated gate of y, which then stays as it is where the device needs it no more.
  Status product_of_hidden(Linear& linear, const TensorView& weight, const TensorView& y,
                           const TensorView* gated = nullptr);
  // hidden += norm(linear(x)), without a weight linear(x); where the device does not add at once, it waits in delta_.
  Status add_product(Linear& linear, const TensorView& x, const TensorView& weight);
  Status upload(const ForwardBatch& batch);
  // What a forward enqueues behind the arrays' upload.
  Status enqueue(const ForwardBatch& batch, const TensorView& logits);
  // How far a forward is, and what its rows of the buffers hold.
  enum class Stage : std::uint8_t { kQkv, kAttention, kOutput, kGateUp, kDown };
  struct Place {
    std::size_t layer = 0;
    Stage stage = Stage::kQkv;
    std::int64_t row = 0;  // of the stage: those before it are done
    std::int64_t rows = 0;
    bool in_attention = false;  // which was left
    bool delta_waits = false;
    bool gathered = false;  // rows whose logits are wanted alone: hidden_ and normed_ have changed places
  };
  Status embed(const ForwardBatch& batch, Place& place);
  // All from `place` on; false: left there. pause may be null.
  Result<bool> go_on(const ForwardBatch& batch, const TensorView& logits, Place& place, const Pause* pause);
  // A stage's next rows; all, but where it may be left.
  Result<bool> compute_stage(const ForwardBatch& batch, Place& place, const Pause* pause);
  Status output(const ForwardBatch& batch, const TensorView& logits);
  Status project(std::size_t index, const ForwardBatch& batch, std::int64_t rows);
  Result<bool> attend(std::size_t index, const ForwardBatch& batch, const Pause* pause, bool goes_on);
  // Rows whose logits are wanted, behind the last layer's attention.
  Status gather(const ForwardBatch& batch, Place& place);
  Status norm(const TensorView& x, const TensorView& weight, const TensorView& residual, const TensorView& out);

  // Rows of a buffer, from first_row_ + stage_row_ on.
  void* first_of(const std::shared_ptr<void>& buffer, std::int64_t width) const;
  TensorView rows_of(const std::shared_ptr<void>& buffer, std::int64_t rows, std::int64_t width) const;
  TensorView gathered_rows(std::int64_t rows) const;  // of attended_, in qkv_: see gather()
  float norm_offset() const { return config_.norm_plus_one ? 1.0f : 0.0f; }
  // By KV group.
  std::span<const std::int32_t* const> slots() const { return std::span(arrays_).subspan(kSlots); }
  std::int64_t qkv_heads() const { return shard_.projected_qo(config_).count + 2 * shard_.projected_kv(config_).count; }
  std::int64_t attended_width() const { return shard_.qo_heads.count * config_.head_dim; }

  ModelConfig config_;
  Shard shard_;
  Device& device_;
  ModelLoadOptions options_;
  std::unique_ptr<WeightSource> weights_;  // where the embedding and the norms point into it
  KvGrouping layout_;
  std::vector<Layer> layers_;
  TensorView embedding_;
  std::optional<bool> own_head_;
  TensorView final_norm_;
  std::unique_ptr<Linear> lm_head_;
  float embedding_scale_ = 1.0f;
  std::size_t weight_bytes_ = 0;
  std::size_t all_bytes_ = 0;                    // of weights, once they were looked at
  bool looks_only_ = false;                      // load() of nothing
  std::vector<std::shared_ptr<void>> expanded_;  // matrices that the device reads where they lie
  // Of the forward, as operators read them.
  enum : std::size_t { kTokens, kPositions, kLogitRows, kSlots };
  std::vector<const std::int32_t*> arrays_;
  std::vector<KvTarget> targets_;  // of the layer
  bool delta_waits_ = false;
  std::int64_t first_row_ = 0;  // of the forward: one that may be left has the last rows of the buffers
  std::int64_t stage_row_ = 0;  // of these rows, the first that is computed now
  Place left_;                  // of the forward that was left
  std::shared_ptr<void> hidden_, normed_, delta_, qkv_, attended_, gate_up_, activated_;
};

}  // namespace fovea
