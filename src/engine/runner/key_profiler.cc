// See key_profiler.h.
#include "engine/runner/key_profiler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/half.h"
#include "base/status.h"

namespace fovea {
namespace {

// Of the 16-level uniform quantizer that loses least of a normal variable (Max, 1960), in its deviations.
constexpr double kStep = 0.335;
constexpr double kLeastStep = 1e-6;  // that load_key_codes takes

float element(const std::byte* memory, DType dtype, std::size_t at) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, memory + at * sizeof value, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, memory + at * sizeof bits, sizeof bits);
  return dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

}  // namespace

Result<std::unique_ptr<KeyProfiler>> KeyProfiler::create(Device& device, const Model& model) {
  const ModelConfig& c = model.config();
  if (c.head_dim < abi::kCodeChannels || c.head_dim > 256) {
    return unsupported("a key sketch has {} channels of heads of at most 256, the model's have {}", abi::kCodeChannels,
                       c.head_dim);
  }
  std::unique_ptr<KeyProfiler> profiler(new KeyProfiler(device, model));
  const auto channels = static_cast<std::size_t>(c.num_kv_heads) * static_cast<std::size_t>(c.head_dim);
  const std::vector<double> zeros(channels);
  profiler->layers_.assign(static_cast<std::size_t>(c.num_layers), {zeros, zeros, zeros, 0});
  profiler->attention_of_.resize(profiler->layers_.size());
  for (std::size_t g = 0; g < model.attention_groups().size(); ++g) {
    for (const std::int32_t layer : model.attention_groups()[g].layers)
      profiler->attention_of_[static_cast<std::size_t>(layer)] = g;
  }
  return profiler;
}

void KeyProfiler::begin(const ForwardBatch& batch) { batch_ = batch; }

abi::PageStatsView KeyProfiler::statistics(std::int32_t /*layer*/, std::size_t /*range*/) const { return {}; }

Status KeyProfiler::bring(std::span<const Piece> pieces, std::vector<const std::byte*>& places) {
  places.clear();
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  if (!device_.reads_host_memory() && bytes > host_bytes_) {
    FOVEA_ASSIGN_OR_RETURN(host_, device_.allocate_host(bytes));
    host_bytes_ = bytes;
  }
  auto* to = static_cast<std::byte*>(host_.get());
  for (const Piece& piece : pieces) {
    if (device_.reads_host_memory()) {
      places.push_back(static_cast<const std::byte*>(piece.memory));
      continue;
    }
    FOVEA_RETURN_IF_ERROR(device_.copy_to_host(to, piece.memory, piece.bytes));
    places.push_back(to);
    to += piece.bytes;
  }
  return device_.wait();
}

Status KeyProfiler::add_queries(const TensorView& q, Layer& layer) {
  const std::size_t size = static_cast<std::size_t>(dtype_bits(q.dtype)) / 8;
  const auto rows = static_cast<std::size_t>(q.shape[0]), heads = static_cast<std::size_t>(q.shape[1]);
  const auto dim = static_cast<std::size_t>(config_.head_dim);
  const auto row_stride = static_cast<std::size_t>(q.strides[0]), head_stride = static_cast<std::size_t>(q.strides[1]);
  const std::size_t elements = (rows - 1) * row_stride + (heads - 1) * head_stride + dim;
  const Piece piece{q.data, elements * size};
  std::vector<const std::byte*> places;
  FOVEA_RETURN_IF_ERROR(bring({&piece, 1}, places));
  const std::size_t group = heads / static_cast<std::size_t>(config_.num_kv_heads);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t head = 0; head < heads; ++head) {
      double* const square = layer.query_square.data() + head / group * dim;
      const std::size_t first = row * row_stride + head * head_stride;
      for (std::size_t c = 0; c < dim; ++c) {
        const double value = static_cast<double>(element(places[0], q.dtype, first + c));
        square[c] += value * value;
      }
    }
  }
  return ok_status();
}

Status KeyProfiler::add_keys(std::size_t layer_index, Layer& layer) {
  const std::vector<HeadRange>& ranges = model_.attention_groups()[attention_of_[layer_index]].ranges;
  const auto dim = static_cast<std::size_t>(config_.head_dim);
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    const abi::KvPoolView& pool = batch_.layer_kv[layer_index][r];
    const auto dtype = static_cast<DType>(pool.dtype);
    const auto size = static_cast<long long>(abi::kv_bits(pool.dtype)) / 8;
    const std::span<const std::int32_t> slots = batch_.slots[ranges[r].kv_group];
    // Tokens of one page that follow one another are a piece: of each page all heads, tokens in between included.
    std::vector<Piece> pieces;
    std::vector<std::size_t> begins;
    for (std::size_t begin = 0; begin < slots.size(); begin = begins.back()) {
      const std::int32_t page = slots[begin] / pool.page_tokens;
      std::size_t end = begin + 1;
      while (end < slots.size() && slots[end] == slots[end - 1] + 1 && slots[end] / pool.page_tokens == page) ++end;
      const long long token = slots[begin] % pool.page_tokens;
      const long long first =
          page * pool.page_stride + ranges[r].head_begin * pool.head_stride + token * pool.token_stride;
      const long long last = (ranges[r].head_end - ranges[r].head_begin - 1) * pool.head_stride +
                             static_cast<long long>(end - begin - 1) * pool.token_stride + config_.head_dim;
      pieces.push_back({static_cast<const std::byte*>(pool.k) + first * size, static_cast<std::size_t>(last * size)});
      begins.push_back(end);
    }
    std::vector<const std::byte*> places;
    FOVEA_RETURN_IF_ERROR(bring(pieces, places));
    for (std::size_t p = 0, begin = 0; p < places.size(); begin = begins[p++]) {
      for (std::int32_t head = ranges[r].head_begin; head < ranges[r].head_end; ++head) {
        double* const sum = layer.key_sum.data() + static_cast<std::size_t>(head) * dim;
        double* const square = layer.key_square.data() + static_cast<std::size_t>(head) * dim;
        for (std::size_t token = 0; token < begins[p] - begin; ++token) {
          const auto first = static_cast<std::size_t>((head - ranges[r].head_begin) * pool.head_stride +
                                                      static_cast<long long>(token) * pool.token_stride);
          for (std::size_t c = 0; c < dim; ++c) {
            const double value = static_cast<double>(element(places[p], dtype, first + c));
            sum[c] += value;
            square[c] += value * value;
          }
        }
      }
    }
  }
  layer.tokens += static_cast<std::int64_t>(batch_.tokens.size());
  return ok_status();
}

Result<bool> KeyProfiler::attend(std::int32_t layer, const TensorView& q, const TensorView& /*out*/) {
  if (q.shape[0] == 0) return false;
  const auto index = static_cast<std::size_t>(layer);
  FOVEA_RETURN_IF_ERROR(add_queries(q, layers_[index]));
  FOVEA_RETURN_IF_ERROR(add_keys(index, layers_[index]));
  return false;
}

Result<KeyCodes> KeyProfiler::codes() const {
  KeyCodes codes;
  codes.num_kv_heads = config_.num_kv_heads;
  const auto dim = static_cast<std::size_t>(config_.head_dim);
  for (const Layer& layer : layers_) {
    if (layer.tokens == 0) {
      return make_status(StatusCode::kUnavailable, "no text was read yet, whose keys could be learned");
    }
    const auto tokens = static_cast<double>(layer.tokens);
    for (std::size_t head = 0; head < static_cast<std::size_t>(config_.num_kv_heads); ++head) {
      std::vector<double> mean(dim), deviation(dim), weight(dim);
      for (std::size_t c = 0; c < dim; ++c) {
        mean[c] = layer.key_sum[head * dim + c] / tokens;
        deviation[c] = std::sqrt(std::max(layer.key_square[head * dim + c] / tokens - mean[c] * mean[c], 0.0));
        weight[c] = std::sqrt(layer.query_square[head * dim + c]) * deviation[c];
        if (!std::isfinite(weight[c])) {
          return data_loss("keys or queries of layer {}, KV head {} are no finite numbers",
                           codes.codes.size() / static_cast<std::size_t>(config_.num_kv_heads), head);
        }
      }
      std::vector<std::size_t> order(dim);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return weight[a] > weight[b]; });
      abi::KeyCode code{};
      for (std::size_t i = 0; i < static_cast<std::size_t>(abi::kCodeChannels); ++i) {
        code.channel[i] = static_cast<std::uint8_t>(order[i]);
        code.mean[i] = static_cast<float>(mean[order[i]]);
        code.step[i] = static_cast<float>(std::max(kStep * deviation[order[i]], kLeastStep));
      }
      codes.codes.push_back(code);
    }
  }
  return codes;
}

}  // namespace fovea
