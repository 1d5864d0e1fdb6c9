// The forward pass of all families, over the operators of a Device.
#include "engine/model/transformer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/half.h"
#include "base/log.h"
#include "base/quote.h"
#include "base/status.h"
#include "device/group/process_group.h"
#include "engine/model/fp8_weights.h"

namespace fovea {
namespace {

// Rows that a forward which may be left computes between two times that it asks. oneDNN takes as many at a time, so
// that their bits are those of all rows at once.
constexpr std::int64_t kRowsAsked = 128;

std::int64_t matrix_elements(const ModelConfig& c, const Shard& shard) {
  const std::int64_t heads = shard.projected_qo(c).count + shard.qo_heads.count + 2 * shard.projected_kv(c).count;
  const std::int64_t layer = c.hidden_size * (heads * c.head_dim + 3 * shard.intermediate.count);
  // One rank alone has the embedding once where it is the output matrix too.
  const std::int64_t vocab = c.vocab_size + (shard.size > 1 ? shard.vocabulary.count : 0);
  return c.num_layers * layer + vocab * c.hidden_size;
}

// Files stay mapped, and the kernel may drop their pages: what counts is what the device keeps.
Status check_memory(std::uint64_t weight_bytes, const Device& device) {
  const std::uint64_t available = device.memory_available();
  if (weight_bytes <= available) return ok_status();
  return resource_exhausted(
      "the weights take {} MB on {}, where {} MB of memory are left; take a smaller model, more memory, or "
      "weight_dtype \"fp8\"",
      weight_bytes >> 20, device.name(), available >> 20);
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(const std::string& folder, Device& device, const ModelLoadOptions& options) {
  FOVEA_ASSIGN_OR_RETURN(ModelConfig config, load_model_config(folder));
  if (options.max_context > 0 && options.max_context <= config.rope.original_max_position &&
      config.rope.kind == RopeKind::kLongRope) {
    config.rope.frequency_divisors = config.short_context_divisors;
  }
  if (options.max_forward_tokens < 1 || options.max_logit_rows < 1) {
    return invalid_argument("max_forward_tokens is {} and max_logit_rows {}, expected at least 1",
                            options.max_forward_tokens, options.max_logit_rows);
  }
  const ProcessGroup* const group = device.group();
  FOVEA_ASSIGN_OR_RETURN(const Shard shard, group == nullptr ? make_shard(config, 0, 1)
                                                             : make_shard(config, group->rank(), group->size()));
  std::unique_ptr<WeightSource> weights;
  if (options.format == LoadFormat::kDummy) {
    // Every matrix is kept in the layout that the device's kernels want, and there is no file to be read again from.
    const std::uint64_t each = static_cast<std::uint64_t>(dtype_bits(config.dtype)) / 8;
    const std::uint64_t kept = options.fp8_weights ? 1 : each;
    FOVEA_RETURN_IF_ERROR(check_memory(
        static_cast<std::uint64_t>(matrix_elements(config, shard)) * (kept + (device.reads_host_memory() ? each : 0)),
        device));
    log_warning("{}: the weights are random numbers (load_format \"dummy\"), and so are its answers", shorten(folder));
    weights = dummy_weights(options.dummy_seed, config.dtype, config.norm_plus_one ? 0.0f : 1.0f);
  } else {
    FOVEA_ASSIGN_OR_RETURN(weights, open_weights(folder));
  }
  return Transformer::create(std::move(config), shard, std::move(weights), device, options);
}

Result<std::unique_ptr<Model>> Transformer::create(ModelConfig config, const Shard& shard,
                                                   std::unique_ptr<WeightSource> weights, Device& device,
                                                   const ModelLoadOptions& options) {
  std::unique_ptr<Transformer> transformer(new Transformer(std::move(config), shard, device, options));
  if (weights->is_stored()) {
    transformer->looks_only_ = true;
    FOVEA_RETURN_IF_ERROR(transformer->load(*weights));
    FOVEA_RETURN_IF_ERROR(check_memory(transformer->weight_bytes_ + transformer->table_bytes(), device));
    transformer->looks_only_ = false;
    transformer->all_bytes_ = transformer->weight_bytes_;
    weights->read_ahead();
  }
  const auto start = std::chrono::steady_clock::now();
  FOVEA_RETURN_IF_ERROR(transformer->load(*weights));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_info("{} MB of weights on {} in {:.2f} s; {} MB of memory are left", transformer->weight_bytes_ >> 20,
           device.name(), seconds, device.memory_available() >> 20);
  if (device.reads_host_memory()) transformer->weights_ = std::move(weights);
  if (options.streaming) FOVEA_RETURN_IF_ERROR(check_head_profile(*options.streaming, transformer->config_));
  transformer->layout_ =
      make_kv_grouping(transformer->config_, shard.kv_heads, options.streaming ? &*options.streaming : nullptr);
  FOVEA_RETURN_IF_ERROR(transformer->allocate());
  return std::unique_ptr<Model>(std::move(transformer));
}

Result<TensorView> Transformer::load_vector(WeightSource& weights, const std::string& name, std::int64_t size) {
  FOVEA_ASSIGN_OR_RETURN(const TensorView view, weights.get(name, {size}));
  weight_bytes_ += static_cast<std::size_t>(size * dtype_bits(view.dtype) / 8);
  return view;
}

Result<TensorView> Transformer::load_norm(WeightSource& weights, const std::string& name, std::int64_t size) {
  FOVEA_ASSIGN_OR_RETURN(const TensorView view, load_vector(weights, name, size));
  return looks_only_ ? view : device_.hold(view);
}

Status Transformer::fuse(WeightSource& weights, const std::unique_ptr<Linear>& linear, const std::string& norm,
                         bool gated) {
  if (looks_only_) return ok_status();
  LinearFusion fusion;
  if (!norm.empty()) {
    FOVEA_ASSIGN_OR_RETURN(fusion.norm, weights.get(norm, {linear->in_features()}));
  }
  fusion.norm_offset = norm_offset();
  fusion.norm_eps = config_.rms_norm_eps;
  if (gated) fusion.gate = config_.activation;
  return device_.fuse(*linear, fusion);
}

Result<std::unique_ptr<Linear>> Transformer::load_linear(WeightSource& weights, const std::vector<Part>& parts,
                                                         std::int64_t in, const ShardRange& columns, bool bias,
                                                         bool to_fp8) {
  std::vector<WeightMatrix> matrices;
  std::vector<TensorView> biases;
  std::size_t fp8 = 0;  // of them, that stay as they are stored
  // What all ranks' results are added to is added once.
  if (columns.count < in && shard_.rank > 0) bias = false;
  for (const Part& part : parts) {
    FOVEA_ASSIGN_OR_RETURN(const WeightMatrix matrix, weights.matrix(part.name, part.out_features, in));
    matrices.push_back(matrix);
    if (bias) {
      FOVEA_ASSIGN_OR_RETURN(const TensorView vector, weights.get(part.name + ".bias", {part.out_features}));
      for (const ShardRange& rows : part.rows) {
        biases.push_back(take_rows(vector, rows));
        weight_bytes_ += static_cast<std::size_t>(rows.count * dtype_bits(vector.dtype) / 8);
      }
    }
    if (matrix.weight.dtype != DType::kF8E4M3) continue;
    FOVEA_ASSIGN_OR_RETURN(const Fp8Scales scales, fp8_scales_of(part.name, matrix));
    if (scales != Fp8Scales::kBlock) ++fp8;
  }
  // Scales by block, and one part of several that is not fp8: all as bf16.
  const bool stays_fp8 = fp8 == matrices.size();
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const DType stored = matrices[i].weight.dtype;
    const DType dtype = stays_fp8 || to_fp8 ? DType::kF8E4M3 : stored == DType::kF8E4M3 ? DType::kBF16 : stored;
    for (const ShardRange& rows : parts[i].rows) {
      weight_bytes_ += static_cast<std::size_t>(rows.count * columns.count * dtype_bits(dtype) / 8);
    }
  }
  if (looks_only_) return std::unique_ptr<Linear>();
  std::vector<TensorView> views, scales;
  std::vector<std::vector<float>> scale_values(matrices.size());
  std::vector<std::shared_ptr<void>> made;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    TensorView whole = matrices[i].weight;
    if (stays_fp8) {
      scale_values[i] = row_scales(matrices[i]);
    } else if (whole.dtype == DType::kF8E4M3) {
      FOVEA_ASSIGN_OR_RETURN(whole, expand_fp8(matrices[i], &made.emplace_back()));
    }
    for (const ShardRange& rows : parts[i].rows) {
      views.push_back(take_rows(whole, rows));
      if (columns.count < in) {
        FOVEA_ASSIGN_OR_RETURN(views.back(), copy_columns(views.back(), columns, &made.emplace_back()));
      }
      if (stays_fp8) scales.push_back(cpu_tensor(scale_values[i].data() + rows.begin, DType::kF32, rows.count));
    }
  }
  auto linear = device_.create_linear({views, scales, biases, to_fp8});
  if (options_.on_load && all_bytes_ > 0) {
    options_.on_load(static_cast<std::int64_t>(weight_bytes_), static_cast<std::int64_t>(all_bytes_));
  }
  if (device_.reads_host_memory()) expanded_.insert(expanded_.end(), made.begin(), made.end());
  if (!linear.ok()) return make_status(linear.status().code(), "{}: {}", parts[0].name, linear.status().message());
  return linear;
}

Status Transformer::load_layer(WeightSource& weights, std::int32_t index) {
  const ModelConfig& c = config_;
  const std::string prefix = fmt::format("model.layers.{}.", index);
  const std::int64_t hidden = c.hidden_size;
  const std::int64_t q_size = std::int64_t{c.num_qo_heads} * c.head_dim;
  const std::int64_t kv_size = std::int64_t{c.num_kv_heads} * c.head_dim;
  Layer& layer = layers_.emplace_back();
  // With post norms, post_attention_layernorm is one; without, it is the norm before the MLP.
  const std::string after = prefix + "post_attention_layernorm.weight";
  std::string before_attention, before_mlp;
  if (c.pre_norms) {
    before_attention = prefix + "input_layernorm.weight";
    before_mlp = c.post_norms ? prefix + "pre_feedforward_layernorm.weight" : after;
    FOVEA_ASSIGN_OR_RETURN(layer.input_norm, load_norm(weights, before_attention, hidden));
    FOVEA_ASSIGN_OR_RETURN(layer.mlp_norm, load_norm(weights, before_mlp, hidden));
  }
  if (c.post_norms) {
    FOVEA_ASSIGN_OR_RETURN(layer.post_attention_norm, load_norm(weights, after, hidden));
    FOVEA_ASSIGN_OR_RETURN(layer.post_mlp_norm,
                           load_norm(weights, prefix + "post_feedforward_layernorm.weight", hidden));
  }
  if (c.qk_norm != QkNorm::kNone) {
    const bool whole = c.qk_norm == QkNorm::kProjection;
    FOVEA_ASSIGN_OR_RETURN(layer.q_norm,
                           load_norm(weights, prefix + "self_attn.q_norm.weight", whole ? q_size : c.head_dim));
    FOVEA_ASSIGN_OR_RETURN(layer.k_norm,
                           load_norm(weights, prefix + "self_attn.k_norm.weight", whole ? kv_size : c.head_dim));
  }
  const ShardRange qo = shard_.projected_qo(c), kv = shard_.projected_kv(c), width = shard_.intermediate;
  const auto features = [&](const ShardRange& heads, std::int64_t first) {
    return ShardRange{(first + heads.begin) * c.head_dim, heads.count * c.head_dim};
  };
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  std::vector<Part> qkv = {{attention + "q_proj", q_size, {features(qo, 0)}},
                           {attention + "k_proj", kv_size, {features(kv, 0)}},
                           {attention + "v_proj", kv_size, {features(kv, 0)}}};
  std::vector<Part> gate_up = {{mlp + "gate_proj", c.intermediate_size, {width}},
                               {mlp + "up_proj", c.intermediate_size, {width}}};
  if (c.fused_projections) {
    const std::int64_t keys = c.num_qo_heads, values = keys + c.num_kv_heads;
    qkv = {{attention + "qkv_proj", q_size + 2 * kv_size, {features(qo, 0), features(kv, keys), features(kv, values)}}};
    gate_up = {{mlp + "gate_up_proj",
                2 * std::int64_t{c.intermediate_size},
                {width, {c.intermediate_size + width.begin, width.count}}}};
  }
  const ShardRange all = {0, hidden};
  FOVEA_ASSIGN_OR_RETURN(layer.qkv, load_linear(weights, qkv, hidden, all, c.attention_bias, options_.fp8_weights));
  FOVEA_RETURN_IF_ERROR(fuse(weights, layer.qkv, before_attention));
  FOVEA_ASSIGN_OR_RETURN(layer.output, load_linear(weights, {{attention + "o_proj", hidden, {all}}}, q_size,
                                                   features(shard_.qo_heads, 0), c.output_bias, options_.fp8_weights));
  FOVEA_ASSIGN_OR_RETURN(layer.gate_up, load_linear(weights, gate_up, hidden, all, c.mlp_bias, options_.fp8_weights));
  FOVEA_RETURN_IF_ERROR(fuse(weights, layer.gate_up, before_mlp, true));
  FOVEA_ASSIGN_OR_RETURN(layer.down, load_linear(weights, {{mlp + "down_proj", hidden, {all}}}, c.intermediate_size,
                                                 width, c.mlp_bias, options_.fp8_weights));
  return ok_status();
}

Status Transformer::load(WeightSource& weights) {
  const std::int64_t hidden = config_.hidden_size;
  weight_bytes_ = 0;
  layers_.clear();
  FOVEA_ASSIGN_OR_RETURN(embedding_, weights.get("model.embed_tokens.weight", {config_.vocab_size, hidden}));
  layers_.reserve(static_cast<std::size_t>(config_.num_layers));
  for (std::int32_t i = 0; i < config_.num_layers; ++i) FOVEA_RETURN_IF_ERROR(load_layer(weights, i));
  FOVEA_ASSIGN_OR_RETURN(final_norm_, load_norm(weights, "model.norm.weight", hidden));
  const bool tied = config_.tie_word_embeddings && !has_own_head(weights);
  if (tied) {
    const TensorView head = take_rows(embedding_, shard_.vocabulary);
    weight_bytes_ += static_cast<std::size_t>(head.num_elements() * dtype_bits(head.dtype) / 8);
    if (!looks_only_) {
      FOVEA_ASSIGN_OR_RETURN(lm_head_, device_.create_linear({.parts = {&head, 1}}));
    }
  } else {
    FOVEA_ASSIGN_OR_RETURN(lm_head_, load_linear(weights, {{"lm_head", config_.vocab_size, {shard_.vocabulary}}},
                                                 hidden, {0, hidden}, false, false));
  }
  if (looks_only_) return ok_status();
  if (weights.contains(fmt::format("model.layers.{}.self_attn.o_proj.weight", config_.num_layers))) {
    log_warning("the weights hold more layers than num_hidden_layers, {}: those above are not used",
                config_.num_layers);
  }
  FOVEA_RETURN_IF_ERROR(fuse(weights, lm_head_, "model.norm.weight"));
  FOVEA_ASSIGN_OR_RETURN(embedding_, device_.hold(embedding_));
  // Gemma's scale has the precision of the activations, in transformers as here.
  embedding_scale_ = config_.embedding_scale;
  if (device_.activation_dtype() == DType::kBF16) {
    embedding_scale_ = bf16_to_float(float_to_bf16(embedding_scale_));
  } else if (device_.activation_dtype() == DType::kF16) {
    embedding_scale_ = f16_to_float(float_to_f16(embedding_scale_));
  }
  return ok_status();
}

// Some checkpoints say that embedding and output matrix are one and store two that differ; then the stored one counts,
// as in transformers.
bool Transformer::has_own_head(WeightSource& weights) {
  if (!weights.contains("lm_head.weight")) return false;
  if (own_head_) return *own_head_;
  const auto head = weights.get("lm_head.weight", {config_.vocab_size, config_.hidden_size});
  if (!head.ok()) return true;  // loading it says what is wrong
  const auto bytes = static_cast<std::size_t>(embedding_.num_elements() * dtype_bits(embedding_.dtype) / 8);
  own_head_ = head->dtype != embedding_.dtype || std::memcmp(head->data, embedding_.data, bytes) != 0;
  if (!*own_head_) return false;
  log_warning("tie_word_embeddings is true, but lm_head.weight differs from the embedding: taking lm_head.weight");
  return true;
}

std::size_t Transformer::table_bytes() const {
  if (device_.reads_host_memory() || (config_.tie_word_embeddings && !own_head_.value_or(false))) return 0;
  return static_cast<std::size_t>(embedding_.num_elements() * dtype_bits(device_.activation_dtype()) / 8);
}

Status Transformer::allocate() {
  const std::size_t element = static_cast<std::size_t>(dtype_bits(device_.activation_dtype()) / 8);
  const std::int64_t rows = std::max(options_.max_forward_tokens, options_.max_logit_rows);
  const auto make = [&](std::shared_ptr<void>& buffer, std::int64_t width) -> Status {
    FOVEA_ASSIGN_OR_RETURN(buffer, device_.allocate(static_cast<std::size_t>(rows * width) * element));
    return ok_status();
  };
  const std::size_t arrays = kSlots + layout_.groups.size() + sizeof(abi::DrawRow) / sizeof(std::int32_t);
  constexpr std::size_t kApart = 64;  // of arrays, at most
  FOVEA_RETURN_IF_ERROR(
      device_.reserve_upload(arrays * (static_cast<std::size_t>(rows) * sizeof(std::int32_t) + kApart)));
  FOVEA_RETURN_IF_ERROR(make(hidden_, config_.hidden_size));
  FOVEA_RETURN_IF_ERROR(make(normed_, config_.hidden_size));
  FOVEA_RETURN_IF_ERROR(make(delta_, config_.hidden_size));
  FOVEA_RETURN_IF_ERROR(make(qkv_, qkv_heads() * config_.head_dim));
  FOVEA_RETURN_IF_ERROR(make(attended_, attended_width()));
  FOVEA_RETURN_IF_ERROR(make(gate_up_, 2 * shard_.intermediate.count));
  return make(activated_, shard_.intermediate.count);
}

AttentionOptions Transformer::attention_options(std::size_t /*attention_group*/) const {
  AttentionOptions attention;
  attention.num_qo_heads = static_cast<std::int32_t>(shard_.qo_heads.count);
  attention.num_kv_heads = static_cast<std::int32_t>(shard_.kv_heads.count);
  attention.head_dim = config_.head_dim;
  attention.sm_scale = config_.attention_scale;
  attention.softcap = config_.attention_softcap;
  return attention;
}

void* Transformer::first_of(const std::shared_ptr<void>& buffer, std::int64_t width) const {
  return static_cast<std::byte*>(buffer.get()) +
         (first_row_ + stage_row_) * width * dtype_bits(device_.activation_dtype()) / 8;
}

TensorView Transformer::rows_of(const std::shared_ptr<void>& buffer, std::int64_t rows, std::int64_t width) const {
  return device_.tensor(first_of(buffer, width), device_.activation_dtype(), rows, width);
}

// They begin where these rows of qkv_ do, which are longer: the rows before belong to what runs while this is left.
TensorView Transformer::gathered_rows(std::int64_t rows) const {
  const std::int64_t first = first_row_ * qkv_heads() * config_.head_dim + stage_row_ * attended_width();
  return device_.tensor(static_cast<std::byte*>(qkv_.get()) + first * dtype_bits(device_.activation_dtype()) / 8,
                        device_.activation_dtype(), rows, attended_width());
}

Status Transformer::norm(const TensorView& x, const TensorView& weight, const TensorView& residual,
                         const TensorView& out) {
  return device_.rms_norm(x, weight, norm_offset(), config_.rms_norm_eps, residual, out);
}

Status Transformer::product_of_hidden(Linear& linear, const TensorView& weight, const TensorView& y,
                                      const TensorView* gated) {
  const std::int64_t rows = y.shape[0];
  const TensorView hidden = rows_of(hidden_, rows, config_.hidden_size);
  const TensorView delta = rows_of(delta_, rows, config_.hidden_size);
  const bool waits = std::exchange(delta_waits_, false);
  TensorView x = hidden;
  if (waits && weight.data == nullptr) FOVEA_RETURN_IF_ERROR(device_.add(hidden, delta));
  if ((!waits || weight.data == nullptr) && linear.fuses(rows)) {
    return linear.forward_fused(hidden, gated != nullptr ? *gated : y);
  }
  if (weight.data != nullptr) {
    x = rows_of(normed_, rows, config_.hidden_size);
    FOVEA_RETURN_IF_ERROR(norm(waits ? delta : hidden, weight, waits ? hidden : TensorView{}, x));
  }
  FOVEA_RETURN_IF_ERROR(linear.forward(x, y));
  return gated == nullptr ? ok_status() : device_.gated_activation(config_.activation, y, *gated);
}

Status Transformer::add_product(Linear& linear, const TensorView& x, const TensorView& weight) {
  const std::int64_t rows = x.shape[0];
  if (weight.data == nullptr && shard_.size == 1 && linear.adds(rows)) {
    return linear.forward_add(x, rows_of(hidden_, rows, config_.hidden_size));
  }
  const TensorView delta = rows_of(delta_, rows, config_.hidden_size);
  FOVEA_RETURN_IF_ERROR(linear.forward(x, delta));
  FOVEA_RETURN_IF_ERROR(device_.all_reduce(delta));
  delta_waits_ = true;
  return weight.data == nullptr ? ok_status() : norm(delta, weight, {}, delta);
}

Status Transformer::check(const ForwardBatch& batch, const TensorView& logits) const {
  const std::size_t rows = batch.tokens.size();
  if (rows == 0 || rows > static_cast<std::size_t>(options_.max_forward_tokens)) {
    return out_of_range("a forward of {} tokens, expected 1 to {}", rows, options_.max_forward_tokens);
  }
  if (!batch.token_rows.empty() && (batch.token_rows.size() != rows || batch.latest == nullptr)) {
    return invalid_argument("rows of the latest tokens of {} of {} tokens", batch.token_rows.size(), rows);
  }
  if (batch.positions.size() != rows) {
    return invalid_argument("{} positions for {} tokens", batch.positions.size(), rows);
  }
  if (batch.slots.size() != layout_.groups.size() || batch.attention.size() != layout_.attention.size()) {
    return invalid_argument("slots of {} KV groups and {} attention groups, expected {} and {}", batch.slots.size(),
                            batch.attention.size(), layout_.groups.size(), layout_.attention.size());
  }
  for (std::size_t g = 0; g < batch.slots.size(); ++g) {
    if (batch.slots[g].size() != rows) {
      return invalid_argument("{} slots of KV group {} for {} tokens", batch.slots[g].size(), g, rows);
    }
  }
  for (std::size_t g = 0; g < batch.attention.size(); ++g) {
    if (batch.attention[g] == nullptr) return invalid_argument("no attention for attention group {}", g);
  }
  if (batch.layer_kv.size() != layers_.size()) {
    return invalid_argument("KV pools of {} layers, expected {}", batch.layer_kv.size(), layers_.size());
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::size_t ranges = layout_.attention[layout_.attention_of[i]].ranges.size();
    if (batch.layer_kv[i].size() != ranges) {
      return invalid_argument("{} KV pools of layer {}, expected {}", batch.layer_kv[i].size(), i, ranges);
    }
  }
  for (const std::int32_t token : batch.tokens) {
    if (token < 0 || token >= config_.vocab_size) {
      return invalid_argument("token {} is outside the vocabulary of {}", token, config_.vocab_size);
    }
  }
  const std::size_t wanted = batch.logit_rows.size();
  if (wanted > static_cast<std::size_t>(options_.max_logit_rows)) {
    return out_of_range("logits of {} rows, expected at most {}", wanted, options_.max_logit_rows);
  }
  std::int32_t previous = -1;
  for (const std::int32_t row : batch.logit_rows) {
    if (row <= previous || static_cast<std::size_t>(row) >= rows) {
      return invalid_argument("logits of row {} after row {}, expected ascending rows below {}", row, previous, rows);
    }
    previous = row;
  }
  if (wanted > 0 && (logits.rank != 2 || logits.dtype != DType::kF32 || logits.data == nullptr ||
                     logits.shape[0] != static_cast<std::int64_t>(wanted) || logits.shape[1] != config_.vocab_size)) {
    return invalid_argument("logits must be f32 [{}, {}]", wanted, config_.vocab_size);
  }
  return ok_status();
}

Status Transformer::project(std::size_t index, const ForwardBatch& batch, std::int64_t rows) {
  const Layer& layer = layers_[index];
  const ModelConfig& c = config_;
  const std::int64_t width = qkv_heads() * c.head_dim;
  FOVEA_RETURN_IF_ERROR(product_of_hidden(*layer.qkv, layer.input_norm, rows_of(qkv_, rows, width)));
  const std::size_t group = layout_.attention_of[index];
  const std::vector<abi::KvPoolView>& pools = batch.layer_kv[index];
  const ShardRange qo = shard_.projected_qo(c), kv = shard_.projected_kv(c);
  // Of the heads that were projected, those of this rank begin here.
  const auto own_kv = static_cast<std::int32_t>(shard_.kv_heads.begin - kv.begin);
  targets_.clear();
  for (std::size_t r = 0; r < pools.size(); ++r) {
    const HeadRange& range = layout_.attention[group].ranges[r];
    targets_.push_back({own_kv + range.head_begin, own_kv + range.head_end, slots()[range.kv_group] + stage_row_,
                        abi::shift_heads(pools[r], own_kv)});
    if (batch.selection != nullptr) {
      targets_.back().stats = batch.selection->statistics(static_cast<std::int32_t>(index), r);
    }
  }
  const bool windowed = c.layer_window[index] > 0;
  QkvHeads heads;
  heads.qkv = device_.tensor(first_of(qkv_, width), device_.activation_dtype(), rows, qkv_heads(), c.head_dim);
  heads.num_qo_heads = static_cast<std::int32_t>(qo.count);
  heads.num_kv_heads = static_cast<std::int32_t>(kv.count);
  heads.q_norm = layer.q_norm;
  heads.k_norm = layer.k_norm;
  heads.norm_offset = norm_offset();
  heads.norm_eps = c.rms_norm_eps;
  heads.positions = arrays_[kPositions] + stage_row_;
  heads.rope = windowed && c.window_rope ? &*c.window_rope : &c.rope;
  return device_.rope_append(heads, targets_);
}

Result<bool> Transformer::attend(std::size_t index, const ForwardBatch& batch, const Pause* pause, bool goes_on) {
  const ModelConfig& c = config_;
  const auto rows = static_cast<std::int64_t>(batch.tokens.size());
  const std::size_t group = layout_.attention_of[index];
  const std::vector<abi::KvPoolView>& pools = batch.layer_kv[index];
  const TensorView qkv = device_.tensor(first_of(qkv_, qkv_heads() * c.head_dim), device_.activation_dtype(), rows,
                                        qkv_heads(), c.head_dim);
  const std::int64_t own_qo = shard_.qo_heads.begin - shard_.projected_qo(c).begin;
  TensorView q = take_columns(qkv, {own_qo * qkv.strides[1], qkv.shape[1]});
  q.shape[1] = shard_.qo_heads.count;
  const TensorView out = device_.tensor(first_of(attended_, attended_width()), device_.activation_dtype(), rows,
                                        shard_.qo_heads.count, c.head_dim);
  if (batch.selection != nullptr) {
    FOVEA_ASSIGN_OR_RETURN(const bool attended, batch.selection->attend(static_cast<std::int32_t>(index), q, out));
    if (attended) return true;
  }
  PagedAttention& attention = *batch.attention[group];
  if (pause != nullptr) return attention.run_part(q, pools, out, device_.stream(), *pause, goes_on);
  FOVEA_RETURN_IF_ERROR(attention.run(q, pools, out, {}, device_.stream()));
  return true;
}

Status Transformer::upload(const ForwardBatch& batch) {
  std::vector<std::span<const std::int32_t>> arrays = {batch.tokens, batch.positions, batch.logit_rows};
  arrays.insert(arrays.end(), batch.slots.begin(), batch.slots.end());
  constexpr std::size_t kDrawWords = sizeof(abi::DrawRow) / sizeof(std::int32_t);
  arrays.emplace_back(reinterpret_cast<const std::int32_t*>(batch.draws.data()), batch.draws.size() * kDrawWords);
  return device_.upload(arrays, arrays_);
}

Status Transformer::forward(const ForwardBatch& batch, const TensorView& logits) {
  FOVEA_RETURN_IF_ERROR(check(batch, logits));
  FOVEA_RETURN_IF_ERROR(upload(batch));
  // Rows that follow one another are copied at once: all of them, but where sequences have ended in between.
  for (std::size_t begin = 0, end = 0; begin < batch.token_rows.size(); begin = end) {
    const std::span<const std::int32_t> rows = batch.token_rows;
    for (end = begin + 1; end < rows.size() && rows[begin] >= 0 && rows[end] == rows[end - 1] + 1;) ++end;
    if (rows[begin] < 0) continue;
    auto* const tokens = const_cast<std::int32_t*>(arrays_[kTokens]);  // of our own upload
    FOVEA_RETURN_IF_ERROR(
        device_.copy(tokens + begin, batch.latest + rows[begin], (end - begin) * sizeof(std::int32_t)));
  }
  if (batch.key.launches == 0) return enqueue(batch, logits);
  return device_.replay(batch.key, [&] { return enqueue(batch, logits); });
}

Status Transformer::enqueue(const ForwardBatch& batch, const TensorView& logits) {
  Place place;
  FOVEA_RETURN_IF_ERROR(embed(batch, place));
  return go_on(batch, logits, place, nullptr).status();
}

Result<bool> Transformer::forward_part(const ForwardBatch& batch, const TensorView& logits, const Pause& pause,
                                       bool goes_on) {
  FOVEA_RETURN_IF_ERROR(check(batch, logits));
  FOVEA_RETURN_IF_ERROR(upload(batch));
  first_row_ = options_.max_forward_tokens - static_cast<std::int64_t>(batch.tokens.size());
  const Status begun = goes_on ? ok_status() : embed(batch, left_);
  Result<bool> done = begun.ok() ? go_on(batch, logits, left_, &pause) : Result<bool>(begun);
  first_row_ = 0;
  return done;
}

Status Transformer::embed(const ForwardBatch& batch, Place& place) {
  const auto rows = static_cast<std::int64_t>(batch.tokens.size());
  place = {.rows = rows};
  return device_.embed(embedding_, arrays_[kTokens], embedding_scale_, rows_of(hidden_, rows, config_.hidden_size));
}

Result<bool> Transformer::go_on(const ForwardBatch& batch, const TensorView& logits, Place& place, const Pause* pause) {
  // The one that was left finds its rows where they were, whatever runs in between.
  const std::shared_ptr<void> hidden = hidden_, normed = normed_;
  if (place.gathered) std::swap(hidden_, normed_);
  delta_waits_ = place.delta_waits;
  const auto compute = [&]() -> Result<bool> {
    while (place.layer < layers_.size() && place.rows > 0) {
      FOVEA_ASSIGN_OR_RETURN(const bool done, compute_stage(batch, place, pause));
      if (!done || (pause != nullptr && place.layer < layers_.size() && pause->due())) return false;
    }
    FOVEA_RETURN_IF_ERROR(output(batch, logits));
    return true;
  };
  Result<bool> done = compute();
  place.delta_waits = delta_waits_;
  hidden_ = hidden;
  normed_ = normed;
  return done;
}

Result<bool> Transformer::compute_stage(const ForwardBatch& batch, Place& place, const Pause* pause) {
  const Layer& layer = layers_[place.layer];
  if (place.stage == Stage::kAttention) {
    FOVEA_ASSIGN_OR_RETURN(const bool done, attend(place.layer, batch, pause, place.in_attention));
    place.in_attention = !done;
    if (!done) return false;
    if (place.layer + 1 == layers_.size()) FOVEA_RETURN_IF_ERROR(gather(batch, place));
    place.stage = Stage::kOutput;
    return true;
  }
  const std::int64_t rows = pause == nullptr ? place.rows : std::min(kRowsAsked, place.rows - place.row);
  const std::int64_t width = shard_.intermediate.count;
  const bool delta_waits = delta_waits_;
  stage_row_ = place.row;
  const auto compute = [&]() -> Status {
    const TensorView activated = rows_of(activated_, rows, width);
    switch (place.stage) {
      case Stage::kQkv: return project(place.layer, batch, rows);
      case Stage::kOutput:
        return add_product(*layer.output,
                           place.gathered ? gathered_rows(rows) : rows_of(attended_, rows, attended_width()),
                           layer.post_attention_norm);
      case Stage::kGateUp:
        return product_of_hidden(*layer.gate_up, layer.mlp_norm, rows_of(gate_up_, rows, 2 * width), &activated);
      default: return add_product(*layer.down, activated, layer.post_mlp_norm);
    }
  };
  const Status status = compute();
  stage_row_ = 0;
  FOVEA_RETURN_IF_ERROR(status);
  place.row += rows;
  if (place.row < place.rows) {
    delta_waits_ = delta_waits;  // of the stage's other rows
    return true;
  }
  place.row = 0;
  if (place.stage == Stage::kDown) ++place.layer;
  place.stage = place.stage == Stage::kDown ? Stage::kQkv : static_cast<Stage>(static_cast<int>(place.stage) + 1);
  return true;
}

Status Transformer::gather(const ForwardBatch& batch, Place& place) {
  const auto wanted = static_cast<std::int64_t>(batch.logit_rows.size());
  if (wanted == place.rows) return ok_status();
  // K and V of all rows are stored; from here on only rows whose logits are wanted matter. qkv_ and normed_ are free at
  // this point and take the gathered rows.
  const std::int64_t all = std::exchange(place.rows, wanted);
  if (wanted == 0) return ok_status();
  const auto take = [&](const std::shared_ptr<void>& from, std::int64_t width, const TensorView& to) {
    return device_.embed(rows_of(from, all, width), arrays_[kLogitRows], 1.0f, to);
  };
  FOVEA_RETURN_IF_ERROR(take(attended_, attended_width(), gathered_rows(wanted)));
  FOVEA_RETURN_IF_ERROR(take(hidden_, config_.hidden_size, rows_of(normed_, wanted, config_.hidden_size)));
  std::swap(hidden_, normed_);
  place.gathered = true;
  return ok_status();
}

Status Transformer::output(const ForwardBatch& batch, const TensorView& logits) {
  if (batch.logit_rows.empty()) return ok_status();
  FOVEA_RETURN_IF_ERROR(product_of_hidden(*lm_head_, final_norm_, take_columns(logits, shard_.vocabulary)));
  FOVEA_RETURN_IF_ERROR(device_.all_gather(logits, shard_.vocab_step));
  if (config_.final_softcap > 0.0f) FOVEA_RETURN_IF_ERROR(device_.softcap(logits, config_.final_softcap));
  if (batch.best.data == nullptr) return ok_status();
  FOVEA_RETURN_IF_ERROR(device_.argmax(logits, batch.best));
  if (batch.draws.empty()) return ok_status();
  return device_.draw(logits, reinterpret_cast<const abi::DrawRow*>(arrays_.back()), batch.best);
}

}  // namespace fovea
