// Cosines and sines of one forward's positions, which all layers with the same rotary embedding share. Used by the CPU
// backend's rope().
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "core/rope/rope.h"

namespace fovea::cpu {

class RopeCache {
 public:
  // [rows][rotary_dim]: rotary_dim / 2 cosines, then as many sines, for each position. Computed once as long as the
  // positions stay the same, which they do from layer to layer; models whose layers rotate in different ways (Gemma 3)
  // have one table for each. Valid until the next call.
  const float* prepare(const std::int32_t* positions, std::int64_t rows, const RopeConfig& config, ThreadPool& pool);

 private:
  struct Table {
    RopeConfig config;
    std::vector<float> frequencies;
    float attention_factor = 1.0f;
    std::vector<std::int32_t> positions;
    std::vector<float> cos_sin;
  };
  Table& table_of(const RopeConfig& config);

  std::vector<Table> tables_;
};

}  // namespace fovea::cpu
