// Scores of units for one query token and KV head, by the statistics of their pages. Called by select.cc; SIMD.
#pragma once

#include <cstdint>
#include <span>

#include "abi/kv_pool.h"
#include "abi/page_stats.h"
#include "core/select/policy.h"

namespace fovea::cpu {

// A query head as learned codes meet it: q.k is about constant + scale * sum weights[i] * code[i].
struct CodeQuery {
  std::int16_t weights[abi::kCodeChannels];  // -127 to 127
  float scale;
  float constant;
};
CodeQuery code_query(const abi::KeyCode& code, const float* q);

struct ScoreArgs {
  const SelectPolicy* policy;
  const float* q;  // [group, head_dim], scaled by the softmax scale
  // kBound: [group][positive part, negative part][head_dim]; local codes: [group][kCodeChannels]; else null.
  const float* q_parts;
  const CodeQuery* code_queries;  // [group]; learned codes, else null
  std::int32_t group;             // query heads
  std::int32_t head;              // KV head
  std::int32_t head_dim;          // a multiple of 16
  std::int32_t tokens;            // the query sees [0, tokens)
  const std::int32_t* pages;      // of the request, in order
  const abi::KvPoolView* pool;
  const abi::PageStatsView* stats;  // kOracle and kRandom: not read
  std::uint64_t seed;               // kRandom
};

// scores[g * stride + i] of query head g for units[i]; kBound, kSpread and kOracle fill row 0 alone, with the largest
// over the heads, and kRandom too.
void score_units(const ScoreArgs& args, std::span<const std::int32_t> units, float* scores, std::int64_t stride);

}  // namespace fovea::cpu
