#include "engine/model/shard.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/status.h"
#include "base/tensor_rows.h"

namespace fovea {
namespace {

// Columns of logits that a rank computes are whole panels of kernels where the vocabulary allows.
constexpr std::int64_t kVocabUnit = 64;

}  // namespace

Result<Shard> make_shard(const ModelConfig& config, int rank, int size) {
  Shard shard;
  shard.rank = rank;
  shard.size = size;
  const auto refuse = [&](const char* what, std::int32_t count) {
    return unsupported(
        "{} {} of a model of type {} cannot be divided among {} ranks (--tp); take a number that "
        "divides them",
        count, what, config.model_type, size);
  };
  const std::int32_t kv = config.num_kv_heads;
  if (config.num_qo_heads % size != 0) return refuse("query heads", config.num_qo_heads);
  if (kv % size != 0 && size % kv != 0) return refuse("KV heads", kv);
  if (config.intermediate_size % size != 0) return refuse("columns of the MLP", config.intermediate_size);
  const std::int64_t qo_count = config.num_qo_heads / size;
  const std::int64_t kv_count = std::max(1, kv / size);
  shard.qo_heads = {rank * qo_count, qo_count};
  shard.kv_heads = {kv >= size ? rank * kv_count : rank / (size / kv), kv_count};
  const std::int64_t intermediate = config.intermediate_size / size;
  shard.intermediate = {rank * intermediate, intermediate};
  const std::int64_t vocab = config.vocab_size;
  shard.vocab_step = (vocab + size - 1) / size;
  const std::int64_t units = (shard.vocab_step + kVocabUnit - 1) / kVocabUnit * kVocabUnit;
  if (units * (size - 1) < vocab) shard.vocab_step = units;
  if (shard.vocab_step * (size - 1) >= vocab) return refuse("tokens of the vocabulary", config.vocab_size);
  const std::int64_t first = rank * shard.vocab_step;
  shard.vocabulary = {first, std::min(shard.vocab_step, vocab - first)};
  shard.projects_all = size > 1 && config.qk_norm == QkNorm::kProjection;
  return shard;
}

TensorView take_rows(const TensorView& whole, const ShardRange& rows) {
  return take_rows(whole, rows.begin, rows.count);
}

TensorView take_columns(const TensorView& whole, const ShardRange& columns) {
  TensorView view = moved(whole, columns.begin);
  view.shape[1] = columns.count;
  return view;
}

Result<TensorView> copy_columns(const TensorView& whole, const ShardRange& columns, std::shared_ptr<void>* memory) {
  const std::int64_t rows = whole.shape[0];
  const std::int64_t bits = dtype_bits(whole.dtype);
  const auto row_bytes = static_cast<std::size_t>(columns.count * bits / 8);
  auto bytes = std::shared_ptr<std::byte[]>(new (std::nothrow) std::byte[row_bytes * static_cast<std::size_t>(rows)]);
  if (bytes == nullptr) return resource_exhausted("no memory for a part of {} MB", row_bytes * rows >> 20);
  const auto* from = static_cast<const std::byte*>(take_columns(whole, columns).data);
  for (std::int64_t row = 0; row < rows; ++row, from += whole.strides[0] * bits / 8) {
    std::memcpy(bytes.get() + static_cast<std::size_t>(row) * row_bytes, from, row_bytes);
  }
  TensorView part = cpu_tensor(bytes.get(), whole.dtype, rows, columns.count);
  *memory = std::move(bytes);
  return part;
}

}  // namespace fovea
