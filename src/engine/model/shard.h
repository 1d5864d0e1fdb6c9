// Shard: the part of a model that a rank of tensor parallelism computes: query and KV heads, columns of the MLP between
// its two products, and rows of the output matrix. Used by Transformer; a model that one process has whole is one
// shard.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/model/config.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea {

// [begin, begin + count) of something.
struct ShardRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

struct Shard {
  int rank = 0;
  int size = 1;
  ShardRange qo_heads, kv_heads, intermediate;
  ShardRange vocabulary;        // of the logits' columns
  std::int64_t vocab_step = 0;  // columns of a rank; the last may have fewer
  // Every rank projects all heads, and goes on with its own: norms over all heads of a token (OLMo 2) need them.
  bool projects_all = false;

  // Heads that this rank projects.
  ShardRange projected_qo(const ModelConfig& config) const {
    return projects_all ? ShardRange{0, config.num_qo_heads} : qo_heads;
  }
  ShardRange projected_kv(const ModelConfig& config) const {
    return projects_all ? ShardRange{0, config.num_kv_heads} : kv_heads;
  }
};

// kUnsupported names what cannot be divided. Where there are fewer KV heads than ranks, several have the same one.
Result<Shard> make_shard(const ModelConfig& config, int rank, int size);

// Rows or columns of a matrix, or elements of a vector (rows), where they lie.
TensorView take_rows(const TensorView& whole, const ShardRange& rows);
TensorView take_columns(const TensorView& whole, const ShardRange& columns);
// The same as a matrix of its own. kResourceExhausted.
Result<TensorView> copy_columns(const TensorView& whole, const ShardRange& columns, std::shared_ptr<void>* memory);

}  // namespace fovea
