// Statistics against the keys they stand for, scores against slow arithmetic, lists against brute force.
#include "cpu/select/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/half.h"
#include "base/random.h"
#include "cpu/select/outward.h"
#include "cpu/select/score.h"
#include "cpu/select/stats.h"
#include "cpu/simd.h"

namespace fovea::cpu {
namespace {

constexpr std::int32_t kHeads = 2;
constexpr std::int32_t kGroup = 3;
constexpr std::int32_t kDim = 32;

TEST(Outward, RoundsToTheNextNumberThatIsNotLess) {
  PhiloxRng rng(3);
  for (int i = 0; i < 200000; ++i) {
    const float size = std::exp2(static_cast<float>(rng.next_below(60)) - 40.0f);
    const float x = rng.next_normal() * size;
    const float half = f16_to_float(f16_up(x));
    const float bounded = std::clamp(x, -65504.0f, 65504.0f);
    ASSERT_GE(half, bounded);
    ASSERT_LE(half - bounded, std::max(std::fabs(bounded) * 0x1p-10f, 0x1p-24f));
    ASSERT_LE(f16_to_float(f16_down(x)), bounded);
    const float small = std::clamp(x, -448.0f, 448.0f);
    ASSERT_GE(float_of_e4m3(e4m3_up(small)), small);
    ASSERT_LE(float_of_e4m3(e4m3_up(small)) - small, std::max(std::fabs(small) * 0x1p-3f, 0x1p-9f));
    ASSERT_LE(float_of_e4m3(e4m3_down(small)), small);
  }
  for (int code = 0; code < 0x7f; ++code) {  // numbers of the type stay what they are
    EXPECT_EQ(e4m3_up(float_of_e4m3(static_cast<std::uint8_t>(code))), code);
    EXPECT_EQ(e4m3_down(float_of_e4m3(static_cast<std::uint8_t>(code))), code);
  }
}

// A pool of bf16 keys in [page][head][token][dim], with statistics of one kind beside it.
struct Pages {
  std::int32_t page_tokens, num_pages;
  std::vector<std::uint16_t> keys, values;
  std::vector<std::uint8_t> records;
  abi::KvPoolView pool{};
  abi::PageStatsView stats{};

  Pages(abi::StatKind kind, std::int32_t tokens_a_page, std::int32_t pages)
      : page_tokens(tokens_a_page), num_pages(pages), keys(size(), 0x7fc0), values(size()) {
    pool.k = keys.data();
    pool.v = values.data();
    pool.page_stride = std::int64_t{page_tokens} * kHeads * kDim;
    pool.head_stride = std::int64_t{page_tokens} * kDim;
    pool.token_stride = kDim;
    pool.num_pages = num_pages;
    pool.page_tokens = pool.entry_tokens = page_tokens;
    pool.entries_per_page = 1;
    pool.dtype = abi::KvDType::kBF16;
    stats.kind = kind;
    stats.subs_per_page = page_tokens / abi::kSubPageTokens;
    stats.head_stride = std::int64_t{stats.subs_per_page} * abi::stat_bytes(kind, kDim);
    stats.page_stride = kHeads * stats.head_stride;
    stats.num_pages = num_pages;
    stats.num_heads = kHeads;
    stats.head_dim = kDim;
    records.assign(static_cast<std::size_t>(stats.page_stride * num_pages) + 4, 0xff);  // NaN everywhere
    stats.data = records.data();
  }
  std::size_t size() const { return static_cast<std::size_t>(num_pages) * page_tokens * kHeads * kDim; }
  std::uint16_t* key(std::int32_t page, std::int32_t head, std::int32_t offset) {
    return keys.data() + page * pool.page_stride + head * pool.head_stride + offset * pool.token_stride;
  }
  const std::uint8_t* record(std::int32_t page, std::int32_t head, std::int32_t sub) const {
    return records.data() + page * stats.page_stride + head * stats.head_stride +
           sub * abi::stat_bytes(stats.kind, kDim);
  }
  void append(PhiloxRng& rng, const std::vector<std::int32_t>& list, std::int32_t begin, std::int32_t end, float size,
              ThreadPool& threads) {
    std::vector<std::int32_t> slots;
    for (std::int32_t t = begin; t < end; ++t) {
      const std::int32_t page = list[static_cast<std::size_t>(t / page_tokens)];
      slots.push_back(page * page_tokens + t % page_tokens);
      for (std::int32_t h = 0; h < kHeads; ++h) {
        for (std::int32_t d = 0; d < kDim; ++d) {
          key(page, h, t % page_tokens)[d] = float_to_bf16(rng.next_normal() * size);
        }
      }
    }
    ASSERT_TRUE(update_page_stats(slots.data(), static_cast<std::int64_t>(slots.size()), pool, stats, threads).ok());
  }
};

float low_of(const Pages& pages, const std::uint8_t* record, std::int32_t d, bool high) {
  if (pages.stats.kind == abi::StatKind::kMinMaxF8) {
    float scale;
    std::memcpy(&scale, record + 2 * kDim, sizeof(scale));
    return float_of_e4m3(record[d + (high ? kDim : 0)]) * scale;
  }
  std::uint16_t half;
  std::memcpy(&half, record + 2 * (d + (high ? kDim : 0)), sizeof(half));
  return f16_to_float(half);
}

TEST(PageStats, BoundEveryKeyWhateverStoodThereBefore) {
  ThreadPool threads(2);
  PhiloxRng rng(5);
  for (const abi::StatKind kind : {abi::StatKind::kMinMaxF16, abi::StatKind::kMinMaxF8}) {
    for (const std::int32_t page_tokens : {16, 64}) {
      Pages pages(kind, page_tokens, 9);
      for (const float size : {1.0f, 300.0f, 1e-4f, 5000.0f}) {  // the same pages again: large keys are forgotten
        const std::vector<std::int32_t> list = {7, 2, 5, 1};
        std::int32_t length = 0;
        while (length < 4 * page_tokens - 3) {
          const std::int32_t next =
              std::min(length + 1 + static_cast<std::int32_t>(rng.next_below(40)), 4 * page_tokens - 3);
          pages.append(rng, list, length, next, size, threads);
          length = next;
          for (std::int32_t sub = 0; sub * 16 < length; ++sub) {
            const std::int32_t page = list[static_cast<std::size_t>(sub * 16 / page_tokens)];
            for (std::int32_t h = 0; h < kHeads; ++h) {
              const std::uint8_t* record = pages.record(page, h, sub % (page_tokens / 16));
              for (std::int32_t d = 0; d < kDim; ++d) {
                float least = std::numeric_limits<float>::infinity();
                float most = -least;
                for (std::int32_t t = sub * 16; t < std::min(length, sub * 16 + 16); ++t) {
                  const float x = bf16_to_float(pages.key(page, h, t % page_tokens)[d]);
                  least = std::min(least, x);
                  most = std::max(most, x);
                }
                const float low = low_of(pages, record, d, false);
                const float high = low_of(pages, record, d, true);
                ASSERT_LE(low, least);
                ASSERT_GE(high, most);
                const float unit = kind == abi::StatKind::kMinMaxF8 ? 0.13f : 0.001f;
                ASSERT_LE(least - low, unit * std::fabs(least) + 0.07f * size);
                ASSERT_LE(high - most, unit * std::fabs(most) + 0.07f * size);
              }
            }
          }
        }
      }
    }
  }
}

TEST(PageStats, NaNAndInfinityInKeysLeaveTheOthersBounded) {
  std::vector<float> keys(16 * kDim, 1.0f);
  keys[0] = std::numeric_limits<float>::quiet_NaN();
  keys[kDim + 1] = std::numeric_limits<float>::infinity();
  for (std::int32_t t = 0; t < 16; ++t) keys[t * kDim + 2] = std::numeric_limits<float>::quiet_NaN();
  for (const abi::StatKind kind : {abi::StatKind::kMinMaxF16, abi::StatKind::kMinMaxF8, abi::StatKind::kMeanDevF16}) {
    Pages pages(kind, 16, 1);
    write_record(pages.stats, 0, keys.data(), 16, pages.records.data());
    for (std::int32_t d = 0; d < kDim; ++d) {
      ASSERT_TRUE(std::isfinite(low_of(pages, pages.records.data(), d, false))) << d;
      ASSERT_TRUE(std::isfinite(low_of(pages, pages.records.data(), d, true))) << d;
    }
    if (kind == abi::StatKind::kMeanDevF16) continue;
    EXPECT_GE(low_of(pages, pages.records.data(), 1, true), 65504.0f);
  }
}

TEST(PageStats, RefusesWhatDoesNotFit) {
  ThreadPool threads(1);
  Pages pages(abi::StatKind::kMinMaxF16, 64, 2);
  const std::int32_t slot = 3;
  pages.pool.page_tokens = 32;
  EXPECT_EQ(update_page_stats(&slot, 1, pages.pool, pages.stats, threads).code(), StatusCode::kInvalidArgument);
}

// Scores of all units by fp64 from the records.
double slow_score(const Pages& pages, const SelectPolicy& policy, const std::vector<std::int32_t>& list,
                  const std::vector<float>& q, std::int32_t head, std::int32_t tokens, std::int32_t unit) {
  double best = -1e300;
  const std::int32_t end = std::min(tokens, (unit + 1) * policy.unit_tokens);
  for (std::int32_t g = 0; g < kGroup; ++g) {
    const float* query = q.data() + (head * kGroup + g) * kDim;
    for (std::int32_t t = unit * policy.unit_tokens; t < end; ++t) {
      const std::int32_t page = list[static_cast<std::size_t>(t / pages.page_tokens)];
      double score = 0.0;
      double spread = 0.0;
      for (std::int32_t d = 0; d < kDim; ++d) {
        if (policy.score == SelectScore::kOracle) {
          const std::uint16_t* key = pages.keys.data() + page * pages.pool.page_stride + head * pages.pool.head_stride +
                                     t % pages.page_tokens * pages.pool.token_stride;
          score += double{query[d]} * bf16_to_float(key[d]);
          continue;
        }
        const std::uint8_t* record = pages.record(page, head, t % pages.page_tokens / 16);
        const double a = low_of(pages, record, d, false);
        const double b = low_of(pages, record, d, true);
        if (policy.score == SelectScore::kBound) {
          score += std::max(query[d] * a, query[d] * b);
        } else {
          score += query[d] * a;
          spread += query[d] * b * query[d] * b;
        }
      }
      best = std::max(best, score + 3.0 * std::sqrt(spread));
    }
  }
  return best;
}

TEST(Select, ChoosesWhatSlowArithmeticChooses) {
  ThreadPool threads(2);
  PhiloxRng rng(11);
  for (const std::string_view simd : simd_targets()) {
    ASSERT_TRUE(set_simd_cap(simd).ok());
    for (const SelectPolicy& policy : select_policies()) {
      if (policy.score == SelectScore::kMass || policy.score == SelectScore::kRandom ||
          policy.score == SelectScore::kCodes) {
        continue;
      }
      Pages pages(policy.stat == abi::StatKind::kNone ? abi::StatKind::kMinMaxF16 : policy.stat, 64, 40);
      std::vector<std::int32_t> list(38);
      std::iota(list.rbegin(), list.rend(), 1);
      const std::int32_t tokens = 38 * 64 - 21;
      pages.append(rng, list, 0, tokens, 1.0f, threads);
      std::vector<float> q(kHeads * kGroup * kDim);
      for (float& x : q) x = rng.next_normal();
      const TensorView view = cpu_tensor(q.data(), DType::kF32, 1, kHeads * kGroup, kDim);
      std::vector<std::int32_t> units(static_cast<std::size_t>(num_units(tokens, policy.unit_tokens)));
      std::iota(units.begin(), units.end(), 0);
      std::vector<SelectJob> jobs(kHeads);
      std::vector<std::vector<std::int32_t>> chosen(kHeads);
      for (std::int32_t h = 0; h < kHeads; ++h) {
        SelectJob& job = jobs[static_cast<std::size_t>(h)];
        job.policy = &policy;
        job.rule.unit_tokens = policy.unit_tokens;
        job.rule.budget_tokens = 512;
        job.head = h;
        job.pages = list.data();
        job.tokens = tokens;
        job.units = units;
        job.chosen = &chosen[static_cast<std::size_t>(h)];
      }
      SelectWorkspace workspace;
      const Status status = workspace.select(view, 0.25f, pages.pool, pages.stats, jobs, threads);
      ASSERT_TRUE(status.ok()) << status.message();
      for (std::int32_t h = 0; h < kHeads; ++h) {
        std::vector<float> slow;
        for (const std::int32_t unit : units) {
          slow.push_back(static_cast<float>(slow_score(pages, policy, list, q, h, tokens, unit)));
        }
        // The chosen are the best but for rounding: no unit left out beats a chosen one by more than that.
        const auto& lists = chosen[static_cast<std::size_t>(h)];
        ASSERT_EQ(lists.size(), static_cast<std::size_t>(512 / policy.unit_tokens));
        float worst_in = 1e30f;
        float best_out = -1e30f;
        for (const std::int32_t unit : units) {
          if (unit == 0 || unit >= (tokens - 16) / policy.unit_tokens) continue;
          const float score = slow[static_cast<std::size_t>(unit)];
          if (std::binary_search(lists.begin(), lists.end(), unit)) {
            worst_in = std::min(worst_in, score);
          } else {
            best_out = std::max(best_out, score);
          }
        }
        EXPECT_LE(best_out, worst_in + 1e-4f) << policy.name << " " << simd;
      }
    }
  }
  ASSERT_TRUE(set_simd_cap("").ok());
}

// A record's score is the largest q.k over its channels, but for half a step a channel, what lies beyond the last
// level, and the rounding of the query to a byte.
TEST(Select, CodesComeCloseToTheProductsOfTheirChannels) {
  ThreadPool threads(1);
  PhiloxRng rng(13);
  constexpr std::int32_t kWide = 64;
  constexpr std::int32_t n = abi::kCodeChannels;
  for (const std::string_view simd : simd_targets()) {
    ASSERT_TRUE(set_simd_cap(simd).ok());
    for (const std::string_view name : {"fovea", "fovea-local"}) {
      const SelectPolicy& policy = **find_select_policy(name);
      const bool local = policy.stat == abi::StatKind::kLocalCodes;
      for (const float size : {1.0f, 1e-3f, 3000.0f}) {
        for (std::int32_t tokens = 1; tokens <= 16; ++tokens) {
          abi::KeyCode code{};
          for (std::int32_t i = 0; i < n; ++i) {
            code.channel[i] =
                static_cast<std::uint8_t>(local ? abi::local_channel(i, kWide, kWide) : (i * 37 + 5) % kWide);
            code.mean[i] = code.channel[i] % 7 == 0 ? 4.0f * size : 0.0f;
            code.step[i] = 0.4f * size;  // levels to 3 deviations
          }
          abi::PageStatsView stats{};
          stats.num_pages = stats.subs_per_page = stats.num_heads = 1;
          stats.head_dim = stats.rotary_dim = kWide;
          stats.kind = policy.stat;
          stats.codes = &code;
          std::vector<std::uint8_t> record(static_cast<std::size_t>(abi::stat_bytes(stats.kind, kWide)), 0xff);
          stats.data = record.data();
          std::vector<float> keys(static_cast<std::size_t>(tokens * kWide));
          for (std::size_t i = 0; i < keys.size(); ++i) {
            keys[i] = size * (std::clamp(rng.next_normal(), -3.2f, 3.2f) + (i % kWide % 7 == 0 ? 4.0f : 0.0f));
          }
          write_record(stats, 0, keys.data(), tokens, record.data());
          std::vector<float> q(kGroup * kWide);
          for (float& x : q) x = rng.next_normal();
          std::vector<float> parts;
          std::vector<CodeQuery> queries;
          double best = -1e300;
          double slack = 0.0;
          for (std::int32_t g = 0; g < kGroup; ++g) {
            const float* query = q.data() + g * kWide;
            queries.push_back(code_query(code, query));
            double steps = 0.0;
            double most = 0.0;
            for (std::int32_t i = 0; i < n; ++i) {
              parts.push_back(query[code.channel[i]]);
              float scale;
              std::memcpy(&scale, record.data() + record.size() - 4, sizeof(scale));
              const double step =
                  local ? double{float_of_e4m3(record[static_cast<std::size_t>(16 * n / 2 + n + i)])} * scale
                        : double{code.step[i]};
              steps += std::fabs(query[code.channel[i]]) * step / 2;
              most = std::max(most, std::fabs(query[code.channel[i]]) * step);
            }
            slack = std::max(slack, steps + n * 7.5 * most / 127);
            for (std::int32_t t = 0; t < tokens; ++t) {
              double product = 0.0;
              for (const std::uint8_t channel : code.channel)
                product += double{query[channel]} * keys[t * kWide + channel];
              best = std::max(best, product);
            }
          }
          const std::int32_t page = 0;
          const std::int32_t unit = 0;
          const ScoreArgs args{&policy, q.data(), parts.data(), local ? nullptr : queries.data(),
                               kGroup,  0,        kWide,        tokens,
                               &page,   nullptr,  &stats,       0};
          float score = 0.0f;
          score_units(args, {&unit, 1}, &score, 1);
          ASSERT_NEAR(score, best, slack * 1.001 + 1e-3 * size) << name << " " << simd << " " << tokens;
        }
      }
    }
  }
  ASSERT_TRUE(set_simd_cap("").ok());
}

TEST(PageStats, LocalCodesKeepTheSlowestChannels) {
  EXPECT_EQ(abi::local_channel(0, 128, 128), 48);
  EXPECT_EQ(abi::local_channel(15, 128, 128), 63);
  EXPECT_EQ(abi::local_channel(16, 128, 128), 112);
  EXPECT_EQ(abi::local_channel(31, 128, 128), 127);
  EXPECT_EQ(abi::local_channel(0, 128, 64), 16);  // half of the channels turn
  EXPECT_EQ(abi::local_channel(31, 128, 64), 127);
  EXPECT_EQ(abi::local_channel(0, 128, 0), 96);  // none do
  for (const std::int32_t rotary : {0, 2, 16, 32, 64}) {
    std::vector<int> seen(64);
    for (std::int32_t i = 0; i < 32; ++i) ++seen[static_cast<std::size_t>(abi::local_channel(i, 64, rotary))];
    EXPECT_LE(*std::max_element(seen.begin(), seen.end()), 1) << rotary;
  }
}

// 100 pages of 16 tokens with small keys, and lists of 32 units at most for queries of ones.
class ListsByMass : public ::testing::Test {
 protected:
  void SetUp() override {
    std::iota(list_.begin(), list_.end(), 1);
    PhiloxRng rng(17);
    pages_.append(rng, list_, 0, 1600, 0.01f, threads_);
  }
  // Keys of tokens [begin, end) then lie along the queries.
  void stand_out(std::int32_t begin, std::int32_t end) {
    const std::int32_t page = list_[static_cast<std::size_t>(begin / 16)];
    for (std::int32_t h = 0; h < kHeads; ++h) {
      for (std::int32_t t = begin; t < end; ++t) {
        for (std::int32_t d = 0; d < kDim; ++d) pages_.key(page, h, t % 16)[d] = float_to_bf16(2.0f);
      }
    }
    const std::int32_t slot = page * 16 + 15;
    ASSERT_TRUE(update_page_stats(&slot, 1, pages_.pool, pages_.stats, threads_).ok());
  }
  std::vector<std::int32_t> select(std::string_view policy, std::int32_t tokens, std::uint64_t seed = 0) {
    std::vector<std::int32_t> units(100);
    std::iota(units.begin(), units.end(), 0);
    SelectJob job;
    job.policy = *find_select_policy(policy);
    job.rule.budget_tokens = 512;
    job.rule.mass = job.policy->mass;
    job.pages = list_.data();
    job.tokens = tokens;
    job.units = units;
    job.seed = seed;
    std::vector<std::int32_t> chosen;
    job.chosen = &chosen;
    const std::vector<float> q(kHeads * kGroup * kDim, 1.0f);
    SelectWorkspace workspace;
    const TensorView view = cpu_tensor(q.data(), DType::kF32, 1, kHeads * kGroup, kDim);
    EXPECT_TRUE(workspace.select(view, 1.0f, pages_.pool, pages_.stats, {&job, 1}, threads_).ok());
    return chosen;
  }

  ThreadPool threads_{1};
  Pages pages_{abi::StatKind::kLocalCodes, 16, 101};
  std::vector<std::int32_t> list_ = std::vector<std::int32_t>(100);
};

TEST_F(ListsByMass, FollowWhereTheMassIsAndRandomOnesDoNot) {
  stand_out(640, 656);
  const std::vector<std::int32_t> mass = select("mass", 1600);
  EXPECT_EQ(mass.size(), 4u);  // an eighth of the budget, the least
  EXPECT_TRUE(std::binary_search(mass.begin(), mass.end(), 40));
  EXPECT_EQ(select("random", 1600, 1).size(), 32u);
  EXPECT_EQ(select("random", 1600, 1), select("random", 1600, 1));
  EXPECT_NE(select("random", 1600, 1), select("random", 1600, 2));
}

// The newest sub-page may hold tokens that its chunk brought behind the query: their mass is not the query's to count.
TEST_F(ListsByMass, DoNotLookBehindTheQuery) {
  const std::vector<std::int32_t> before = select("mass", 1590);
  EXPECT_EQ(before.size(), 32u);
  stand_out(1599, 1600);
  EXPECT_EQ(select("mass", 1590), before);
  EXPECT_EQ(select("mass", 1600).size(), 4u);  // who sees it counts it
}

// Queries that choose together are as many query heads more, each the mean of its neighbours.
TEST(Select, NeighboursChooseByTheirMeans) {
  ThreadPool threads(2);
  PhiloxRng rng(17);
  constexpr std::int32_t kRows = 41, kMean = 16, kMeans = 3, kFirst = 5, kTokens = 60 * 16;
  std::vector<float> q((kFirst + kRows + 2) * kHeads * kGroup * kDim);
  for (float& x : q) x = rng.next_normal();
  std::vector<float> wide(kHeads * kMeans * kGroup * kDim, 0.0f);
  for (std::int32_t h = 0; h < kHeads; ++h) {
    for (std::int32_t row = 0; row < kRows; ++row) {
      const float count = static_cast<float>(std::min(kMean, kRows - row / kMean * kMean));
      for (std::int32_t i = 0; i < kGroup * kDim; ++i) {
        wide[static_cast<std::size_t>((h * kMeans + row / kMean) * kGroup * kDim + i)] +=
            q[static_cast<std::size_t>(((kFirst + row) * kHeads + h) * kGroup * kDim + i)] * (0.25f / count);
      }
    }
  }
  std::vector<std::int32_t> list(15);
  std::iota(list.rbegin(), list.rend(), 0);
  for (const SelectPolicy& policy : select_policies()) {
    if (policy.score == SelectScore::kCodes) continue;  // made for wider heads
    Pages pages(policy.stat == abi::StatKind::kNone ? abi::StatKind::kMinMaxF16 : policy.stat, 64, 15);
    pages.append(rng, list, 0, kTokens, 1.0f, threads);
    std::vector<std::int32_t> units(static_cast<std::size_t>(num_units(kTokens, policy.unit_tokens)));
    std::iota(units.begin(), units.end(), 0);
    for (std::int32_t h = 0; h < kHeads; ++h) {
      std::vector<std::int32_t> together, apart;
      SelectJob job;
      job.policy = &policy;
      job.rule.unit_tokens = policy.unit_tokens;
      job.rule.budget_tokens = 256;
      job.head = h;
      job.pages = list.data();
      job.tokens = kTokens;
      job.units = units;
      job.row = kFirst;
      job.rows = kRows;
      job.mean_rows = kMean;
      job.chosen = &together;
      SelectWorkspace workspace;
      const TensorView narrow_q = cpu_tensor(q.data(), DType::kF32, kFirst + kRows + 2, kHeads * kGroup, kDim);
      ASSERT_TRUE(workspace.select(narrow_q, 0.25f, pages.pool, pages.stats, {&job, 1}, threads).ok());
      job.row = 0;
      job.rows = 1;
      job.chosen = &apart;
      const TensorView wide_q = cpu_tensor(wide.data(), DType::kF32, 1, kHeads * kMeans * kGroup, kDim);
      ASSERT_TRUE(workspace.select(wide_q, 1.0f, pages.pool, pages.stats, {&job, 1}, threads).ok());
      EXPECT_EQ(together, apart) << policy.name;
      EXPECT_GE(together.size(), 4u);
      job.rows = 2;  // beyond the only row
      EXPECT_EQ(workspace.select(wide_q, 1.0f, pages.pool, pages.stats, {&job, 1}, threads).code(),
                StatusCode::kOutOfRange);
    }
  }
}

TEST(Select, SaysWhyAJobIsRefused) {
  ThreadPool threads(1);
  Pages pages(abi::StatKind::kMeanDevF16, 16, 4);
  std::vector<float> q(kHeads * kGroup * kDim, 1.0f);
  const TensorView view = cpu_tensor(q.data(), DType::kF32, 1, kHeads * kGroup, kDim);
  const std::vector<std::int32_t> list = {1, 9};
  std::vector<std::int32_t> chosen;
  SelectJob job;
  job.policy = *find_select_policy("quest");
  job.pages = list.data();
  job.tokens = 16;
  job.chosen = &chosen;
  SelectWorkspace workspace;
  const auto status = [&] { return workspace.select(view, 1.0f, pages.pool, pages.stats, {&job, 1}, threads); };
  EXPECT_NE(status().message().find("quest"), std::string::npos);
  job.policy = *find_select_policy("mean-dev");
  EXPECT_TRUE(status().ok());
  job.tokens = 17;
  EXPECT_EQ(status().code(), StatusCode::kOutOfRange);
  job.tokens = 16;
  job.head = kHeads;
  EXPECT_EQ(status().code(), StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace fovea::cpu
