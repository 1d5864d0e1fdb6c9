// See score.h. A record is read once for two query heads at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/select/score.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "abi/select_args.h"
#include "base/hash.h"
#include "cpu/attention/item.h"
#include "cpu/select/key_row.h"
#include "cpu/select/score.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

HWY_INLINE float sum_of(V v) { return hn::GetLane(hn::SumOfLanes(D(), v)); }

struct HalfRow {
  template <class DD>
  static HWY_INLINE hn::Vec<DD> load(DD d, const std::uint8_t* row, std::int32_t i) {
    const hn::Rebind<hwy::float16_t, DD> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(row) + i));
  }
  static float scale(const std::uint8_t*, std::int32_t) { return 1.0f; }
  static constexpr std::int32_t kBytes = 2;
};
struct E4M3Row {
  template <class DD>
  static HWY_INLINE hn::Vec<DD> load(DD d, const std::uint8_t* row, std::int32_t i) {
    // The same bits as fp16 with a larger exponent field, 2^8 times too small; scale() makes up for it.
    const hn::Rebind<std::uint8_t, DD> d8;
    const hn::Rebind<std::uint16_t, DD> d16;
    const hn::Rebind<hwy::float16_t, DD> dh;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, row + i));
    const auto sign = hn::ShiftLeft<8>(hn::And(wide, hn::Set(d16, std::uint16_t{0x80})));
    const auto size = hn::ShiftLeft<7>(hn::And(wide, hn::Set(d16, std::uint16_t{0x7f})));
    return hn::PromoteTo(d, hn::BitCast(dh, hn::Or(sign, size)));
  }
  static float scale(const std::uint8_t* row, std::int32_t head_dim) {
    float scale;
    std::memcpy(&scale, row + 2 * head_dim, sizeof(scale));
    return scale * 256.0f;
  }
  static constexpr std::int32_t kBytes = 1;
};

// Largest q.k that the record allows: positive parts of q meet the maxima, negative ones the minima.
template <class Row>
float bound_of(const ScoreArgs& args, const std::uint8_t* record) {
  const D d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  const std::uint8_t* highs = record + std::int64_t{args.head_dim} * Row::kBytes;
  float best = -std::numeric_limits<float>::infinity();
  for (std::int32_t g = 0; g < args.group; g += 2) {
    const float* first = args.q_parts + std::int64_t{2} * g * args.head_dim;
    const float* second = g + 1 < args.group ? first + 2 * args.head_dim : first;
    V a = hn::Zero(d);
    V b = hn::Zero(d);
    for (std::int32_t i = 0; i < args.head_dim; i += lanes) {
      const V low = Row::load(d, record, i);
      const V high = Row::load(d, highs, i);
      a = hn::MulAdd(hn::LoadU(d, first + i), high, a);
      b = hn::MulAdd(hn::LoadU(d, second + i), high, b);
      a = hn::MulAdd(hn::LoadU(d, first + args.head_dim + i), low, a);
      b = hn::MulAdd(hn::LoadU(d, second + args.head_dim + i), low, b);
    }
    best = std::max(best, sum_of(a));
    best = std::max(best, sum_of(b));
  }
  return best * Row::scale(record, args.head_dim);
}

// q.mean and sum q^2 dev^2 of one query head.
HWY_INLINE void moments_of(const float* q, const std::uint8_t* record, std::int32_t head_dim, float& mean,
                           float& variance) {
  const D d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  const std::uint8_t* devs = record + std::int64_t{head_dim} * HalfRow::kBytes;
  V first = hn::Zero(d);
  V second = hn::Zero(d);
  for (std::int32_t i = 0; i < head_dim; i += lanes) {
    const V x = hn::LoadU(d, q + i);
    const V spread = hn::Mul(x, HalfRow::load(d, devs, i));
    first = hn::MulAdd(x, HalfRow::load(d, record, i), first);
    second = hn::MulAdd(spread, spread, second);
  }
  mean = sum_of(first);
  variance = sum_of(second);
}

// max over the 16 tokens of sum weights[i] * code i. Sums of 16 codes of at most 15 * 127 each fit 16 bits.
HWY_INLINE std::int32_t largest_sum(const std::uint8_t* codes, const std::int16_t* weights) {
  const hn::CappedTag<std::int16_t, abi::kSubPageTokens> d16;
  const hn::Rebind<std::uint8_t, decltype(d16)> d8;
  const hn::Rebind<std::int32_t, hn::CappedTag<std::int16_t, abi::kSubPageTokens / 2>> d32;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d16));
  alignas(64) std::int16_t even_sums[abi::kSubPageTokens];
  alignas(64) std::int16_t odd_sums[abi::kSubPageTokens];
  for (std::int32_t t = 0; t < abi::kSubPageTokens; t += lanes) {
    auto even = hn::Zero(d16);
    auto odd = hn::Zero(d16);
    for (std::int32_t j = 0; j < abi::kCodeChannels / 2; ++j) {
      const auto both = hn::PromoteTo(d16, hn::LoadU(d8, codes + j * abi::kSubPageTokens + t));
      even = hn::Add(even, hn::Mul(hn::And(both, hn::Set(d16, std::int16_t{15})), hn::Set(d16, weights[2 * j])));
      odd = hn::Add(odd, hn::Mul(hn::ShiftRight<4>(both), hn::Set(d16, weights[2 * j + 1])));
    }
    hn::Store(even, d16, even_sums + t);
    hn::Store(odd, d16, odd_sums + t);
  }
  const hn::Rebind<std::int16_t, decltype(d32)> half;
  auto best = hn::Set(d32, std::numeric_limits<std::int32_t>::min());
  for (std::int32_t t = 0; t < abi::kSubPageTokens; t += static_cast<std::int32_t>(hn::Lanes(d32))) {
    best = hn::Max(best, hn::Add(hn::PromoteTo(d32, hn::Load(half, even_sums + t)),
                                 hn::PromoteTo(d32, hn::Load(half, odd_sums + t))));
  }
  return hn::GetLane(hn::MaxOfLanes(d32, best));
}

// The weights depend on the record's steps.
float local_codes_of(const ScoreArgs& args, std::int32_t g, const std::uint8_t* record) {
  const hn::CappedTag<float, 16> d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  constexpr std::int32_t n = abi::kCodeChannels;
  const std::uint8_t* lows = record + n / 2 * abi::kSubPageTokens;
  float scale;
  std::memcpy(&scale, lows + 2 * n, sizeof(scale));
  const float* q = args.q_parts + std::int64_t{g} * n;
  alignas(64) float by_step[n];
  alignas(64) std::int16_t weights[n];
  auto base = hn::Zero(d);
  auto largest = hn::Zero(d);
  for (std::int32_t i = 0; i < n; i += lanes) {
    const auto x = hn::LoadU(d, q + i);
    const auto weight = hn::Mul(x, E4M3Row::load(d, lows + n, i));
    base = hn::MulAdd(x, E4M3Row::load(d, lows, i), base);
    largest = hn::Max(largest, hn::Abs(weight));
    hn::Store(weight, d, by_step + i);
  }
  const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
  const auto to_byte = hn::Set(d, most > 0.0f ? 127.0f / most : 0.0f);
  for (std::int32_t i = 0; i < n; i += lanes) {
    const hn::Rebind<std::int16_t, decltype(d)> d16;
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(hn::Mul(hn::Load(d, by_step + i), to_byte))), d16, weights + i);
  }
  const auto sum = static_cast<float>(largest_sum(record, weights));
  const float constant = hn::GetLane(hn::SumOfLanes(d, base));
  return (constant + sum * most / 127.0f) * scale * 256.0f;
}

// The largest q.k of a query head over the tokens of a record.
HWY_INLINE float codes_of(const ScoreArgs& args, std::int32_t g, const std::uint8_t* record) {
  if (args.code_queries == nullptr) return local_codes_of(args, g, record);
  const CodeQuery& query = args.code_queries[g];
  return query.constant + query.scale * static_cast<float>(largest_sum(record, query.weights));
}

float largest_product(const ScoreArgs& args, std::int32_t token) {
  const D d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  float key[kMaxHeadDim];
  read_key(*args.pool, args.pages[token / args.pool->page_tokens], token % args.pool->page_tokens, args.head,
           args.head_dim, key);
  float best = -std::numeric_limits<float>::infinity();
  for (std::int32_t g = 0; g < args.group; ++g) {
    V sum = hn::Zero(d);
    for (std::int32_t i = 0; i < args.head_dim; i += lanes) {
      sum = hn::MulAdd(hn::LoadU(d, args.q + g * args.head_dim + i), hn::LoadU(d, key + i), sum);
    }
    best = std::max(best, sum_of(sum));
  }
  return best;
}

// Calls f(record, tokens in it) for each sub-page of a unit.
template <class F>
HWY_INLINE void for_records(const ScoreArgs& args, std::int32_t unit, F&& f) {
  const abi::PageStatsView& stats = *args.stats;
  const std::int64_t bytes = abi::stat_bytes(stats.kind, stats.head_dim);
  const std::int32_t begin = unit * args.policy->unit_tokens;
  const std::int32_t end = std::min(args.tokens, begin + args.policy->unit_tokens);
  for (std::int32_t token = begin; token < end; token += abi::kSubPageTokens) {
    const std::int32_t sub = token / abi::kSubPageTokens;
    const std::int64_t page = args.pages[sub / stats.subs_per_page];
    f(static_cast<const std::uint8_t*>(stats.data) + page * stats.page_stride + args.head * stats.head_stride +
          sub % stats.subs_per_page * bytes,
      std::min(abi::kSubPageTokens, end - token));
  }
}

void score_range(const ScoreArgs& args, const std::int32_t* units, std::int64_t count, float* scores,
                 std::int64_t stride) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t unit = units[i];
    float best = kNothing;
    switch (args.policy->score) {
      case SelectScore::kBound:
        for_records(args, unit, [&](const std::uint8_t* record, std::int32_t) {
          best = std::max(best, args.stats->kind == abi::StatKind::kMinMaxF8 ? bound_of<E4M3Row>(args, record)
                                                                             : bound_of<HalfRow>(args, record));
        });
        break;
      case SelectScore::kCodes:
        for_records(args, unit, [&](const std::uint8_t* record, std::int32_t) {
          for (std::int32_t g = 0; g < args.group; ++g) best = std::max(best, codes_of(args, g, record));
        });
        break;
      case SelectScore::kSpread:
        for_records(args, unit, [&](const std::uint8_t* record, std::int32_t) {
          for (std::int32_t g = 0; g < args.group; ++g) {
            float mean;
            float variance;
            moments_of(args.q + g * args.head_dim, record, args.head_dim, mean, variance);
            best = std::max(best, mean + 3.0f * std::sqrt(variance));
          }
        });
        break;
      case SelectScore::kMass:
        for (std::int32_t g = 0; g < args.group; ++g) {
          // A unit's largest q.k stands for its mass: where one token takes most, that is it, and where none does, all
          // units are underrated alike. Mean and deviation, which ask for no codes, miss the tokens that stand out. A
          // sub-page of which the query sees a part only counts for nothing: its codes may know what lies behind the
          // query, by how the prompt was cut into chunks, and it is in the list anyway.
          float mass = kNothing;
          for_records(args, unit, [&](const std::uint8_t* record, std::int32_t tokens) {
            if (tokens == abi::kSubPageTokens) mass = std::max(mass, codes_of(args, g, record));
          });
          scores[g * stride + i] = mass;
        }
        continue;
      case SelectScore::kOracle: {
        const std::int32_t begin = unit * args.policy->unit_tokens;
        for (std::int32_t t = begin; t < std::min(args.tokens, begin + args.policy->unit_tokens); ++t) {
          best = std::max(best, largest_product(args, t));
        }
        break;
      }
      case SelectScore::kRandom:
        best = static_cast<float>(hash_combine(args.seed, static_cast<std::uint64_t>(unit)) >> 40);
        break;
    }
    scores[i] = best;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {
namespace {
HWY_EXPORT(score_range);
}  // namespace

CodeQuery code_query(const abi::KeyCode& code, const float* q) {
  CodeQuery query{};
  float by_step[abi::kCodeChannels];
  float most = 0.0f;
  for (std::int32_t i = 0; i < abi::kCodeChannels; ++i) {
    by_step[i] = q[code.channel[i]] * code.step[i];
    most = std::max(most, std::fabs(by_step[i]));
    query.constant += q[code.channel[i]] * code.mean[i];
  }
  query.scale = most / 127.0f;
  std::int32_t sum = 0;
  for (std::int32_t i = 0; i < abi::kCodeChannels && most > 0.0f; ++i) {
    query.weights[i] = static_cast<std::int16_t>(abi::nearest_weight(by_step[i] / query.scale));
    sum += query.weights[i];
  }
  query.constant -= 7.5f * query.scale * static_cast<float>(sum);
  return query;
}

void score_units(const ScoreArgs& args, std::span<const std::int32_t> units, float* scores, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(score_range)(args, units.data(), static_cast<std::int64_t>(units.size()), scores, stride);
}

}  // namespace fovea::cpu
#endif
