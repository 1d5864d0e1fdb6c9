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
  static HWY_INLINE V load(const std::uint8_t* row, std::int32_t i) {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(D(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(row) + i));
  }
  static float scale(const std::uint8_t*, std::int32_t) { return 1.0f; }
  static constexpr std::int32_t kBytes = 2;
};
struct E4M3Row {
  static HWY_INLINE V load(const std::uint8_t* row, std::int32_t i) {
    // The same bits as fp16 with a larger exponent field, 2^8 times too small; scale() makes up for it.
    const hn::Rebind<std::uint8_t, D> d8;
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> dh;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, row + i));
    const auto sign = hn::ShiftLeft<8>(hn::And(wide, hn::Set(d16, std::uint16_t{0x80})));
    const auto size = hn::ShiftLeft<7>(hn::And(wide, hn::Set(d16, std::uint16_t{0x7f})));
    return hn::PromoteTo(D(), hn::BitCast(dh, hn::Or(sign, size)));
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
      const V low = Row::load(record, i);
      const V high = Row::load(highs, i);
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
    const V spread = hn::Mul(x, HalfRow::load(devs, i));
    first = hn::MulAdd(x, HalfRow::load(record, i), first);
    second = hn::MulAdd(spread, spread, second);
  }
  mean = sum_of(first);
  variance = sum_of(second);
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

// log(exp(a) + exp(b)).
float add_logs(float a, float b) {
  const float high = std::max(a, b);
  return high == -std::numeric_limits<float>::infinity() ? high : high + std::log1p(std::exp(std::min(a, b) - high));
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
          float mass = kNothing;
          for_records(args, unit, [&](const std::uint8_t* record, std::int32_t tokens) {
            float mean;
            float variance;
            moments_of(args.q + g * args.head_dim, record, args.head_dim, mean, variance);
            // The mean of exp over a normal distribution.
            mass = add_logs(mass, mean + 0.5f * variance + std::log(static_cast<float>(tokens)));
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

void score_units(const ScoreArgs& args, std::span<const std::int32_t> units, float* scores, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(score_range)(args, units.data(), static_cast<std::int64_t>(units.size()), scores, stride);
}

}  // namespace fovea::cpu
#endif
