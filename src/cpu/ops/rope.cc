// Tables of rotary position embedding.
#include "cpu/ops/rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fovea::cpu {
namespace {

// A model has one or two; a backend that served several models in turn forgets the oldest.
constexpr std::size_t kMaxTables = 4;

}  // namespace

RopeCache::Table& RopeCache::table_of(const RopeConfig& config) {
  for (Table& table : tables_) {
    if (table.config == config) return table;
  }
  if (tables_.size() == kMaxTables) tables_.erase(tables_.begin());
  return tables_.emplace_back(Table{config, rope_frequencies(config), rope_attention_factor(config), {}, {}});
}

const float* RopeCache::prepare(const std::int32_t* positions, std::int64_t rows, const RopeConfig& config,
                                ThreadPool& pool) {
  const auto count = static_cast<std::size_t>(rows);
  Table& table = table_of(config);
  if (table.positions.size() == count && !table.cos_sin.empty() &&
      (count == 0 || std::memcmp(table.positions.data(), positions, count * sizeof(*positions)) == 0)) {
    return table.cos_sin.data();
  }
  table.positions.assign(positions, positions + rows);
  const auto half = static_cast<std::int64_t>(table.frequencies.size());
  // Never empty, so that the table of no rows is found again too.
  const std::size_t needed = std::max<std::size_t>(1, count * static_cast<std::size_t>(2 * half));
  if (table.cos_sin.size() < needed) table.cos_sin.resize(needed);
  const std::int64_t grain = std::max<std::int64_t>(8, rows / (pool.size() * std::int64_t{4}));
  pool.parallel_for(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* cosines = table.cos_sin.data() + row * 2 * half;
      const auto position = static_cast<float>(table.positions[static_cast<std::size_t>(row)]);
      for (std::int64_t i = 0; i < half; ++i) {
        // The product is rounded to fp32 as in training; its cosine then is taken precisely.
        const float angle = position * table.frequencies[static_cast<std::size_t>(i)];
        cosines[i] = std::cos(angle) * table.attention_factor;
        cosines[half + i] = std::sin(angle) * table.attention_factor;
      }
    }
  });
  return table.cos_sin.data();
}

}  // namespace fovea::cpu
