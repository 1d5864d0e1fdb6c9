// PageSelector on the CPU: lists against core/select over scores computed here one by one, attention over them against
// the definition and against dense attention, what is remembered, and what callers get wrong.
#include "fovea/page_selector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>

#include "base/half.h"
#include "core/select/choose.h"
#include "core/select/reuse.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;

constexpr int kPage = kSelectPageTokens;

struct Shape {
  std::int32_t requests = 3, heads = 2, group = 2, dim = 32, pages_each = 60, layers = 1;
  std::int32_t budget = 256, divisor = 0, sinks = 16, recent = 16, interval = 1;
  const char* policy = "fovea";
};

// Requests whose keys, values and queries are random, of bf16 numbers; pages lie in random order.
class Step {
 public:
  explicit Step(const Shape& shape, std::uint64_t seed = 1) : shape_(shape), random_(seed) {
    const std::int32_t pages = shape.requests * shape.pages_each;
    const std::size_t pool = static_cast<std::size_t>(pages) * kPage * shape.heads * shape.dim;
    k_.assign(pool, float_to_bf16(std::nanf("")));
    v_.assign(pool, float_to_bf16(std::nanf("")));
    entries_.resize(static_cast<std::size_t>(pages));
    std::iota(entries_.begin(), entries_.end(), 0);
    std::shuffle(entries_.begin(), entries_.end(), random_);
    entries_.resize(entries_.size() + static_cast<std::size_t>(shape.requests * shape.heads * budget_pages()), -1);
    lens_.assign(static_cast<std::size_t>(shape.requests), 0);
    list_tokens_.assign(lens_.size(), -1);
    for (std::size_t r = 0; r < lens_.size(); ++r) phases_.push_back(static_cast<std::int32_t>(random_() % 1000));
    q_.resize(lens_.size() * static_cast<std::size_t>(shape.heads * shape.group * shape.dim));
    ask();
  }

  PageSelectorOptions options() {
    PageSelectorOptions o;
    o.num_kv_heads = shape_.heads;
    o.num_qo_heads = shape_.heads * shape_.group;
    o.head_dim = shape_.dim;
    o.policy = shape_.policy;
    o.budget_tokens = shape_.budget;
    o.budget_divisor = shape_.divisor;
    o.sink_tokens = shape_.sinks;
    o.recent_tokens = shape_.recent;
    o.interval = shape_.interval;
    o.candidate_factor = 2;
    o.num_layers = shape_.layers;
    o.num_pages = shape_.requests * shape_.pages_each;
    o.max_requests = shape_.requests;
    o.max_pages_per_request = shape_.pages_each;
    std::normal_distribution<float> normal;
    for (std::int32_t i = 0; i < shape_.layers * shape_.heads; ++i) {
      KeyCode code{};
      for (std::int32_t c = 0; c < kKeyCodeChannels; ++c) {
        code.channel[c] = static_cast<std::uint8_t>((7 * c + 3) % shape_.dim);
        code.mean[c] = 0.1f * normal(random_);
        code.step[c] = 0.1f + 0.1f * std::fabs(normal(random_));
      }
      o.key_codes.push_back(code);
    }
    codes_ = o.key_codes;
    return o;
  }

  // Tokens more of a request, in the pool and in the statistics of the layer.
  Status append(PageSelector& selector, std::int32_t request, std::int32_t tokens, std::int32_t layer = 0) {
    const std::size_t row = static_cast<std::size_t>(shape_.heads * shape_.dim);
    std::vector<std::uint16_t> k(row * static_cast<std::size_t>(tokens)), v(k.size());
    std::vector<std::int32_t> slots;
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < k.size(); ++i) {
      k[i] = float_to_bf16(normal(random_));
      v[i] = float_to_bf16(normal(random_));
    }
    for (std::int32_t t = 0; t < tokens; ++t) slots.push_back(slot(request, lens_[request]++));
    const auto rows = [&](const auto& x) {
      return cpu_tensor(x.data(), DType::kBF16, tokens, shape_.heads, shape_.dim);
    };
    AppendPlaces places;
    places.slots = cpu_tensor(slots.data(), DType::kI32, tokens);
    expect_ok(append_paged_kv(rows(k), rows(v), places, kv()));
    return selector.append(layer, rows(k), places, kv());
  }
  static void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.to_string(); }

  // New queries.
  void ask() {
    std::normal_distribution<float> normal;
    for (std::uint16_t& x : q_) x = float_to_bf16(2.0f * normal(random_));
  }

  SelectStep step() {
    SelectStep s;
    s.kv_lens = cpu_tensor(lens_.data(), DType::kI32, shape_.requests);
    s.page_table = cpu_tensor(entries_.data(), DType::kI32, shape_.requests, shape_.pages_each);
    s.lists = cpu_tensor(lists(), DType::kI32, shape_.requests, shape_.heads, budget_pages());
    s.list_tokens = cpu_tensor(list_tokens_.data(), DType::kI32, shape_.requests);
    s.phases = cpu_tensor(phases_.data(), DType::kI32, shape_.requests);
    return s;
  }
  TensorView q() const {
    return cpu_tensor(q_.data(), DType::kBF16, shape_.requests, shape_.heads * shape_.group, shape_.dim);
  }
  PagedKv kv() const {
    PagedKv kv;
    const std::int32_t pages = shape_.requests * shape_.pages_each;
    kv.k = cpu_tensor(k_.data(), DType::kBF16, pages, kPage, shape_.heads, shape_.dim);
    kv.v = cpu_tensor(v_.data(), DType::kBF16, pages, kPage, shape_.heads, shape_.dim);
    return kv;
  }

  // The units of a list, by the order of the request's tokens.
  std::vector<std::int32_t> units(std::int32_t request, std::int32_t head) const {
    const std::int32_t count = (list_tokens_[request] + kPage - 1) / kPage;
    std::vector<std::int32_t> found;
    const std::int32_t* const list = lists() + (request * shape_.heads + head) * budget_pages();
    const std::int32_t* const table = entries_.data() + request * shape_.pages_each;
    for (std::int32_t i = 0; i < count; ++i) {
      found.push_back(static_cast<std::int32_t>(std::find(table, table + shape_.pages_each, list[i]) - table));
    }
    return found;
  }

  std::int32_t budget_pages() const { return shape_.budget / kPage; }
  std::int32_t slot(std::int32_t request, std::int32_t token) const {
    return entries_[request * shape_.pages_each + token / kPage] * kPage + token % kPage;
  }
  float element(const std::vector<std::uint16_t>& pool, std::int32_t request, std::int32_t token, std::int32_t head,
                std::int32_t d) const {
    return bf16_to_float(pool[(std::size_t(slot(request, token)) * shape_.heads + head) * shape_.dim + d]);
  }
  float query(std::int32_t request, std::int32_t head, std::int32_t d) const {
    return bf16_to_float(q_[(std::size_t(request) * shape_.heads * shape_.group + head) * shape_.dim + d]);
  }

  // What the key codes of a unit say, from the definition.
  float score(std::int32_t request, std::int32_t head, std::int32_t unit, std::int32_t layer) const {
    const KeyCode& code = codes_[static_cast<std::size_t>(layer * shape_.heads + head)];
    const float sm_scale = 1.0f / std::sqrt(static_cast<float>(shape_.dim));
    float best = -std::numeric_limits<float>::infinity();
    for (std::int32_t g = 0; g < shape_.group; ++g) {
      float by_step[kKeyCodeChannels], most = 0.0f, constant = 0.0f;
      for (std::int32_t i = 0; i < kKeyCodeChannels; ++i) {
        const float x = query(request, head * shape_.group + g, code.channel[i]) * sm_scale;
        by_step[i] = x * code.step[i];
        most = std::max(most, std::fabs(by_step[i]));
        constant += x * code.mean[i];
      }
      const float scale = most / 127.0f;
      std::int32_t all = 0, largest = std::numeric_limits<std::int32_t>::min();
      for (const float w : by_step) all += static_cast<std::int32_t>(std::lround(w / scale));
      constant -= 7.5f * scale * static_cast<float>(all);
      for (std::int32_t t = unit * kPage; t < std::min(lens_[request], (unit + 1) * kPage); ++t) {
        std::int32_t sum = 0;
        for (std::int32_t i = 0; i < kKeyCodeChannels; ++i) {
          const float level = (element(k_, request, t, head, code.channel[i]) - code.mean[i]) * (1.0f / code.step[i]);
          sum += static_cast<std::int32_t>(std::lround(by_step[i] / scale)) *
                 static_cast<std::int32_t>(std::clamp(level + 8.0f, 0.0f, 15.0f));
        }
        largest = std::max(largest, sum);
      }
      best = std::max(best, constant + scale * static_cast<float>(largest));
    }
    return best;
  }

  // Attention of a query head over the tokens of these units.
  double expected(std::int32_t request, std::int32_t head, std::int32_t d,
                  const std::vector<std::int32_t>& units) const {
    double sum = 0.0, total = 0.0;
    for (const std::int32_t unit : units) {
      for (std::int32_t t = unit * kPage; t < std::min(lens_[request], (unit + 1) * kPage); ++t) {
        double product = 0.0;
        for (std::int32_t e = 0; e < shape_.dim; ++e) {
          product += double{query(request, head, e)} * element(k_, request, t, head / shape_.group, e);
        }
        const double weight = std::exp(product / std::sqrt(shape_.dim));
        sum += weight * element(v_, request, t, head / shape_.group, d);
        total += weight;
      }
    }
    return sum / total;
  }

  std::int32_t* lists() { return entries_.data() + std::size_t(shape_.requests) * shape_.pages_each; }
  const std::int32_t* lists() const { return entries_.data() + std::size_t(shape_.requests) * shape_.pages_each; }

  Shape shape_;
  std::mt19937_64 random_;
  std::vector<std::uint16_t> k_, v_, q_;
  std::vector<std::int32_t> entries_;  // the table, then the lists
  std::vector<std::int32_t> lens_, list_tokens_, phases_;
  std::vector<KeyCode> codes_;
};

PageSelector make(const PageSelectorOptions& options) {
  Result<PageSelector> made = PageSelector::create(options);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(*made);
}

ChooseRule rule_of(const Shape& shape, std::int32_t tokens) {
  ChooseRule rule;
  rule.budget_tokens =
      shape.divisor == 0 ? shape.budget : std::min(shape.budget, std::max(tokens / shape.divisor, 256));
  rule.sink_tokens = shape.sinks;
  rule.recent_tokens = shape.recent;
  return rule;
}

TEST(PageSelector, ListsAreThoseOfCoreSelect) {
  int scans = 0, rescorings = 0, whole = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](std::initializer_list<std::int32_t> choices) {
      return choices.begin()[random() % choices.size()];
    };
    Shape shape;
    shape.requests = pick({1, 2, 3});
    shape.heads = pick({1, 2, 3});
    shape.group = pick({1, 2, 4});
    shape.dim = pick({32, 64});
    shape.budget = pick({256, 512});
    shape.divisor = pick({0, 0, 3});
    shape.sinks = pick({16, 0, 20});
    shape.recent = pick({1, 16, 64});
    shape.interval = pick({1, 3, 4});
    shape.layers = 2;
    Step s(shape, seed);
    PageSelector selector = make(s.options());
    for (std::int32_t r = 0; r < shape.requests; ++r) {
      ASSERT_TRUE(s.append(selector, r, pick({1, 250, 256, 257, 300, 600, 900}), 1).ok());
    }
    std::vector<SelectMemory> memories(static_cast<std::size_t>(shape.requests * shape.heads));
    for (int n = 0; n < 7; ++n) {
      s.ask();
      const Status status = selector.select(1, s.q(), s.step());
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (std::int32_t r = 0; r < shape.requests; ++r) {
        const std::int32_t tokens = s.lens_[r], last = (tokens - 1) % kPage + 1;
        const ChooseRule rule = rule_of(shape, tokens);
        for (std::int32_t h = 0; h < shape.heads; ++h) {
          std::vector<std::int32_t> expected(static_cast<std::size_t>(num_units(tokens, kPage)));
          std::iota(expected.begin(), expected.end(), 0);
          if (under_budget(rule, tokens)) {
            ++whole;
          } else {
            SelectMemory& memory = memories[static_cast<std::size_t>(r * shape.heads + h)];
            std::vector<std::int32_t> scored = expected;
            const bool scan = select_work({shape.interval, 2}, memory, tokens,
                                          static_cast<std::uint64_t>(s.phases_[r])) == SelectWork::kScan;
            if (!scan) units_to_rescore(memory, rule, tokens, &scored);
            ++(scan ? scans : rescorings);
            std::vector<float> scores;
            for (const std::int32_t unit : scored) scores.push_back(s.score(r, h, unit, 1));
            ChooseScratch scratch;
            const bool keeps = scan && shape.interval > 1;
            choose_units(scored, scores, rule, tokens, scratch, &expected, 2 * s.budget_pages(),
                         keeps ? &memory.candidates : nullptr);
            if (keeps) memory.scanned_tokens = tokens;
          }
          ASSERT_EQ(s.units(r, h), expected) << "step " << n << " request " << r << " head " << h;
          ASSERT_EQ(s.list_tokens_[r], (static_cast<std::int32_t>(expected.size()) - 1) * kPage + last);
          // What is forced is there.
          for (std::int32_t t = 0; t < std::min(shape.sinks, tokens); ++t) {
            ASSERT_TRUE(std::binary_search(expected.begin(), expected.end(), t / kPage));
          }
          for (std::int32_t t = std::max(0, tokens - shape.recent); t < tokens; ++t) {
            ASSERT_TRUE(std::binary_search(expected.begin(), expected.end(), t / kPage));
          }
        }
      }
      for (std::int32_t r = 0; r < shape.requests; ++r) {
        ASSERT_TRUE(s.append(selector, r, random() % 8 == 0 ? 3 : 1, 1).ok());
      }
    }
  }
  EXPECT_GT(scans, 100);
  EXPECT_GT(rescorings, 50);
  EXPECT_GT(whole, 50);
}

AttentionOptions attention_for(const Shape& shape) {
  AttentionOptions o;
  o.num_qo_heads = shape.heads * shape.group;
  o.num_kv_heads = shape.heads;
  o.head_dim = shape.dim;
  o.page_tokens = kPage;
  o.max_requests = o.max_rows = o.max_selected = shape.requests;
  o.max_pages_per_request = shape.pages_each;
  return o;
}

std::vector<std::uint16_t> run(Attention& attention, const Step& s) {
  std::vector<std::uint16_t> out(s.q_.size(), 0x7fc0);
  TensorView to = s.q();
  to.data = out.data();
  const Status status = attention.run(s.q(), s.kv(), to);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return out;
}

TEST(PageSelector, AttentionOverTheLists) {
  for (const std::int32_t divisor : {0, 2}) {
    Shape shape;
    shape.budget = 512;
    shape.divisor = divisor;
    Step s(shape);
    PageSelector selector = make(s.options());
    for (std::int32_t r = 0; r < 3; ++r) ASSERT_TRUE(s.append(selector, r, r == 0 ? 600 : r == 1 ? 777 : 100).ok());
    ASSERT_TRUE(selector.select(0, s.q(), s.step()).ok());
    Attention attention = std::move(*Attention::create(attention_for(shape)));
    const Status planned = selector.plan(attention, s.lens_, s.step());
    ASSERT_TRUE(planned.ok()) << planned.to_string();
    const std::vector<std::uint16_t> out = run(attention, s);
    for (std::int32_t r = 0; r < 3; ++r) {
      EXPECT_EQ(s.units(r, 0).size(), r == 2 ? 7u : divisor == 0 ? 32u : r == 0 ? 18u : 24u);
      for (std::int32_t h = 0; h < 4; ++h) {
        for (std::int32_t d = 0; d < shape.dim; ++d) {
          ASSERT_NEAR(bf16_to_float(out[(std::size_t(r) * 4 + h) * shape.dim + d]),
                      s.expected(r, h, d, s.units(r, h / 2)), 0.02)
              << r << " " << h << " " << d;
        }
      }
    }
  }
}

TEST(PageSelector, UpToTheBudgetBitsAreThoseOfDenseAttention) {
  Shape shape;
  Step s(shape);
  PageSelector selector = make(s.options());
  for (std::int32_t r = 0; r < 3; ++r) ASSERT_TRUE(s.append(selector, r, r == 0 ? 256 : r == 1 ? 241 : 1).ok());
  ASSERT_TRUE(selector.select(0, s.q(), s.step()).ok());
  Attention attention = std::move(*Attention::create(attention_for(shape)));
  ASSERT_TRUE(selector.plan(attention, s.lens_, s.step()).ok());
  const std::vector<std::uint16_t> out = run(attention, s);
  const std::vector<std::int32_t> q_lens(3, 1);
  RequestBatch dense;
  dense.num_requests = 3;
  dense.q_lens = q_lens.data();
  dense.kv_lens = s.lens_.data();
  dense.page_indices = s.entries_.data();
  dense.page_stride = shape.pages_each;
  ASSERT_TRUE(attention.plan(dense).ok());
  EXPECT_EQ(run(attention, s), out);
}

// Between scans candidates are chosen from alone; a row that was forgotten scans.
TEST(PageSelector, RemembersRowsUntilTheyAreForgotten) {
  Shape shape;
  shape.requests = 2;
  shape.interval = 1000;
  Step s(shape);
  const PageSelectorOptions options = s.options();
  PageSelectorOptions always = options;
  always.interval = 1;
  PageSelector selector = make(options), fresh = make(always);
  EXPECT_GT(selector.workspace_bytes(), fresh.statistics_bytes_per_page() * 120 - 1);
  s.phases_ = {1, 1};
  const auto grow = [&](std::int32_t tokens) {
    for (std::int32_t r = 0; r < 2; ++r) {
      std::mt19937_64 random = s.random_;
      ASSERT_TRUE(s.append(selector, r, tokens).ok());
      s.random_ = random;
      s.lens_[r] -= tokens;
      ASSERT_TRUE(s.append(fresh, r, tokens).ok());  // the same
    }
  };
  const auto lists = [&](PageSelector& of) {
    EXPECT_TRUE(of.select(0, s.q(), s.step()).ok());
    std::vector<std::vector<std::int32_t>> found;
    for (std::int32_t r = 0; r < 2; ++r) {
      for (std::int32_t h = 0; h < 2; ++h) found.push_back(s.units(r, h));
    }
    return found;
  };
  grow(900);
  EXPECT_EQ(lists(selector), lists(fresh));
  grow(1);
  s.ask();  // another query: most of its pages are no candidates
  const auto all = lists(fresh), reused = lists(selector);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_NE(reused[i], all[i]);
  ASSERT_TRUE(selector.forget(1, 2).ok());
  const auto half = lists(selector);
  EXPECT_EQ(half[0], reused[0]);
  EXPECT_EQ(half[1], reused[1]);
  EXPECT_EQ(half[2], all[2]);
  EXPECT_EQ(half[3], all[3]);
}

// A page whose keys are the query is found by every policy, also where it was copied from another.
TEST(PageSelector, EveryPolicyFindsAKeyThatStandsOut) {
  for (const char* policy : {"fovea", "fovea-local", "quest", "quest-f8", "mean-dev"}) {
    SCOPED_TRACE(policy);
    Shape shape;
    shape.requests = 1;
    shape.policy = policy;
    Step s(shape);
    PageSelector selector = make(s.options());
    ASSERT_TRUE(s.append(selector, 0, 900).ok());
    const auto plant = [&](std::int32_t token) {
      std::vector<std::uint16_t> k;
      for (std::int32_t h = 0; h < 2; ++h) {
        for (std::int32_t d = 0; d < shape.dim; ++d) k.push_back(float_to_bf16(2.0f * s.query(0, 2 * h, d)));
      }
      const std::int32_t slot = s.slot(0, token);
      AppendPlaces places;
      places.slots = cpu_tensor(&slot, DType::kI32, 1);
      const TensorView row = cpu_tensor(k.data(), DType::kBF16, 1, 2, shape.dim);
      ASSERT_TRUE(append_paged_kv(row, row, places, s.kv()).ok());
      ASSERT_TRUE(selector.append(0, row, places, s.kv()).ok());
    };
    const auto found = [&](std::int32_t unit) {
      EXPECT_TRUE(selector.select(0, s.q(), s.step()).ok());
      const std::vector<std::int32_t> a = s.units(0, 0), b = s.units(0, 1);
      return std::binary_search(a.begin(), a.end(), unit) && std::binary_search(b.begin(), b.end(), unit);
    };
    plant(20 * kPage + 15);
    EXPECT_TRUE(found(20));
    std::int32_t least = 21;  // a page that is in no list
    while (found(least)) ++least;
    ASSERT_TRUE(selector.copy_page(s.slot(0, 20 * kPage) / kPage, s.slot(0, least * kPage) / kPage).ok());
    EXPECT_TRUE(found(least));
    const Result<TensorView> statistics = selector.statistics(0);
    ASSERT_TRUE(statistics.ok());
    EXPECT_EQ(statistics->num_elements(), 60 * static_cast<std::int64_t>(selector.statistics_bytes_per_page()));
  }
}

// Rows of one call in any order: all keys of a page count.
TEST(PageSelector, StatisticsDoNotDependOnTheOrderOfRows) {
  for (const char* policy : {"fovea", "fovea-local", "quest", "quest-f8", "mean-dev"}) {
    SCOPED_TRACE(policy);
    constexpr std::int32_t kTokens = 300;
    Shape shape;
    shape.requests = 1;
    shape.policy = policy;
    Step s(shape);
    const PageSelectorOptions options = s.options();
    PageSelector in_order = make(options), shuffled = make(options);
    ASSERT_TRUE(s.append(in_order, 0, kTokens).ok());
    std::vector<std::int32_t> slots;
    for (std::int32_t t = 0; t < kTokens; ++t) slots.push_back(s.slot(0, t));
    std::shuffle(slots.begin(), slots.end(), s.random_);
    const std::ptrdiff_t row = shape.heads * shape.dim;
    std::vector<std::uint16_t> k;
    for (const std::int32_t slot : slots) k.insert(k.end(), s.k_.begin() + slot * row, s.k_.begin() + (slot + 1) * row);
    AppendPlaces places;
    places.slots = cpu_tensor(slots.data(), DType::kI32, kTokens);
    const auto keys = cpu_tensor(k.data(), DType::kBF16, kTokens, shape.heads, shape.dim);
    ASSERT_TRUE(shuffled.append(0, keys, places, s.kv()).ok());
    const TensorView a = *in_order.statistics(0), b = *shuffled.statistics(0);
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(a.num_elements())), 0);
  }
}

TEST(PageSelector, IdleRowsAndF32Queries) {
  Shape shape;
  Step s(shape);
  PageSelectorOptions o = s.options();
  o.q_dtype = DType::kF32;
  PageSelector selector = make(o);
  ASSERT_TRUE(s.append(selector, 1, 700).ok());
  std::vector<float> q;
  for (const std::uint16_t x : s.q_) q.push_back(bf16_to_float(x));
  ASSERT_TRUE(selector.select(0, cpu_tensor(q.data(), DType::kF32, 3, 4, shape.dim), s.step()).ok());
  EXPECT_EQ(s.list_tokens_, (std::vector<std::int32_t>{0, 15 * 16 + 12, 0}));
  EXPECT_EQ(s.lists()[0], -1);
}

TEST(LearnKeyCodes, TakesTheChannelsThatQueriesLookAt) {
  constexpr int kTokens = 500, kDim = 64;
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> k(kTokens * 2 * kDim), q(kTokens * 4 * kDim);
  for (std::size_t i = 0; i < k.size(); ++i) {
    const std::size_t d = i % kDim, head = i / kDim % 2;
    k[i] = 3.0f + normal(random) * (d % 2 == head ? 4.0f : 1.0f);
  }
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = normal(random) * (i % kDim == 5 ? 100.0f : 1.0f);
  q[7] = std::nanf("");
  const auto keys = cpu_tensor(k.data(), DType::kF32, kTokens, 2, kDim);
  const auto codes = learn_key_codes(keys, cpu_tensor(q.data(), DType::kF32, kTokens, 4, kDim));
  ASSERT_TRUE(codes.ok()) << codes.status().to_string();
  ASSERT_EQ(codes->size(), 2u);
  for (int head = 0; head < 2; ++head) {
    const KeyCode& code = (*codes)[static_cast<std::size_t>(head)];
    EXPECT_EQ(code.channel[0], 5);
    for (int i = 0; i < kKeyCodeChannels; ++i) {
      EXPECT_TRUE(code.channel[i] == 5 || code.channel[i] % 2 == head);
      EXPECT_NEAR(code.mean[i], 3.0f, 0.7f);
      EXPECT_NEAR(code.step[i], 0.335f * (code.channel[i] % 2 == head ? 4.0f : 1.0f), 0.15f);
    }
  }
  const auto by_keys = learn_key_codes(keys, {});
  ASSERT_TRUE(by_keys.ok());
  EXPECT_NE((*by_keys)[0].channel[0], 5);
  const std::vector<float> nothing(4 * kDim, std::nanf(""));
  for (const std::int64_t rows : {0, 1}) {  // queries that say nothing
    const auto same = learn_key_codes(keys, cpu_tensor(nothing.data(), DType::kF32, rows, 4, kDim));
    ASSERT_TRUE(same.ok());
    for (std::size_t head = 0; head < 2; ++head) {
      EXPECT_THAT((*same)[head].channel, ::testing::ElementsAreArray((*by_keys)[head].channel));
    }
  }
  EXPECT_THAT(learn_key_codes(keys, cpu_tensor(q.data(), DType::kF32, 3, 3, kDim)).status().message(),
              HasSubstr("multiple of 2 heads"));
  EXPECT_FALSE(learn_key_codes({}, {}).ok());
  EXPECT_FALSE(learn_key_codes(cpu_tensor(k.data(), DType::kF32, 9, 2, 16), {}).ok());
}

TEST(PageSelector, OptionsThatMakeNoSense) {
  const PageSelectorOptions good = Step({}).options();
  struct Wrong {
    StatusCode code;
    const char* text;
    std::function<void(PageSelectorOptions&)> change;
  };
  for (const Wrong& wrong : {
           Wrong{StatusCode::kInvalidArgument, "device", [](auto& o) { o.device = "tpu"; }},
           Wrong{StatusCode::kInvalidArgument, "policy is \"best\", expected one of fovea, fovea-local",
                 [](auto& o) { o.policy = "best"; }},
           Wrong{StatusCode::kInvalidArgument, "policy is \"auto\"", [](auto& o) { o.policy = "auto"; }},
           Wrong{StatusCode::kUnsupported, "there are fovea, fovea-local", [](auto& o) { o.policy = "lserve"; }},
           Wrong{StatusCode::kUnsupported, "policy \"mass\"", [](auto& o) { o.policy = "mass"; }},
           Wrong{StatusCode::kInvalidArgument, "num_kv_heads is 0", [](auto& o) { o.num_kv_heads = 0; }},
           Wrong{StatusCode::kInvalidArgument, "expected a multiple", [](auto& o) { o.num_qo_heads = 3; }},
           Wrong{StatusCode::kUnsupported, "head_dim is 16", [](auto& o) { o.head_dim = 16; }},
           Wrong{StatusCode::kUnsupported, "q_dtype is int8", [](auto& o) { o.q_dtype = DType::kI8; }},
           Wrong{StatusCode::kInvalidArgument, "sm_scale is nan", [](auto& o) { o.sm_scale = std::nanf(""); }},
           Wrong{StatusCode::kInvalidArgument, "rotary_dim is 31", [](auto& o) { o.rotary_dim = 31; }},
           Wrong{StatusCode::kInvalidArgument, "budget_tokens is 250", [](auto& o) { o.budget_tokens = 250; }},
           Wrong{StatusCode::kInvalidArgument, "budget_tokens is 264", [](auto& o) { o.budget_tokens = 264; }},
           Wrong{StatusCode::kInvalidArgument, "are up to 272", [](auto& o) { o.recent_tokens = 224; }},
           Wrong{StatusCode::kInvalidArgument, "a budget of 256 tokens",
                 [](auto& o) { o.budget_tokens = 4096, o.budget_divisor = 8, o.sink_tokens = 250; }},
           Wrong{StatusCode::kOutOfRange, "budget_tokens is 1048576", [](auto& o) { o.budget_tokens = 1 << 20; }},
           Wrong{StatusCode::kOutOfRange, "KV heads take",
                 [](auto& o) { o.num_pages = 1 << 28, o.num_layers = 1 << 16; }},
           Wrong{StatusCode::kOutOfRange, "KV heads take",
                 [](auto& o) { o.max_requests = 1 << 16, o.num_layers = 1 << 13; }},
           Wrong{StatusCode::kInvalidArgument, "budget_divisor is 1", [](auto& o) { o.budget_divisor = 1; }},
           Wrong{StatusCode::kInvalidArgument, "recent_tokens is 0", [](auto& o) { o.recent_tokens = 0; }},
           Wrong{StatusCode::kInvalidArgument, "interval is 0", [](auto& o) { o.interval = 0; }},
           Wrong{StatusCode::kInvalidArgument, "candidate_factor is 1", [](auto& o) { o.candidate_factor = 1; }},
           Wrong{StatusCode::kOutOfRange, "num_pages is 0", [](auto& o) { o.num_pages = 0; }},
           Wrong{StatusCode::kOutOfRange, "max_pages_per_request is 65536",
                 [](auto& o) { o.max_pages_per_request = 65536; }},
           Wrong{StatusCode::kInvalidArgument, "2 key_codes, expected 4", [](auto& o) { o.num_layers = 2; }},
           Wrong{StatusCode::kInvalidArgument, "key_codes[1]", [](auto& o) { o.key_codes[1].channel[3] = 32; }},
           Wrong{StatusCode::kInvalidArgument, "step 0 at 4", [](auto& o) { o.key_codes[0].step[4] = 0.0f; }},
       }) {
    PageSelectorOptions o = good;
    wrong.change(o);
    const Status status = PageSelector::create(o).status();
    EXPECT_EQ(status.code(), wrong.code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(wrong.text));
  }
}

TEST(PageSelector, CallsThatMakeNoSense) {
  Step s({});
  PageSelector selector = make(s.options());
  for (std::int32_t r = 0; r < 3; ++r) ASSERT_TRUE(s.append(selector, r, 500).ok());
  Attention attention = std::move(*Attention::create(attention_for(s.shape_)));
  AttentionOptions larger = attention_for(s.shape_);
  larger.page_tokens = 32;
  Attention pages_of_32 = std::move(*Attention::create(larger));
  const SelectStep good = s.step();
  const auto expect = [](const Status& status, StatusCode code, const char* text) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  const auto changed = [&](const std::function<void(SelectStep&)>& change) {
    SelectStep step = good;
    change(step);
    return selector.select(0, s.q(), step);
  };
  constexpr auto kInvalid = StatusCode::kInvalidArgument, kRange = StatusCode::kOutOfRange;
  expect(selector.select(1, s.q(), good), kRange, "layer 1");
  expect(selector.select(-1, s.q(), good), kRange, "layer -1");
  expect(selector.select(0, {}, good), kInvalid, "q is");
  expect(selector.select(0, s.q(), {}), kInvalid, "kv_lens is");
  expect(changed([](auto& x) { x.lists = {}; }), kInvalid, "lists is");
  expect(changed([](auto& x) { x.lists.shape[2] = 15; }), kInvalid, "lists is");
  expect(changed([](auto& x) { x.lists.strides[1] = 17; }), kInvalid, "lists is");
  expect(changed([](auto& x) { x.list_tokens = {}; }), kInvalid, "list_tokens is");
  expect(changed([](auto& x) { x.page_table.data = nullptr; }), kInvalid, "without memory");
  expect(changed([](auto& x) { x.page_table.strides[1] = 2; }), kInvalid, "page_table is");
  expect(changed([](auto& x) { x.page_table.shape[1] = 20; }), kRange, "request 0 has 500 tokens, expected 0 to 320");
  expect(changed([](auto& x) { x.kv_lens.dtype = DType::kI64; }), kInvalid, "kv_lens is i64");
  expect(changed([](auto& x) { x.kv_lens.device = DeviceKind::kCuda; }), kInvalid, "expected it on cpu");
  expect(changed([](auto& x) { x.kv_lens.shape[0] = 4; }), kRange, "raise max_requests");
  s.phases_[1] = -5;
  expect(selector.select(0, s.q(), good), kInvalid, "phase -5 of request 1");
  s.phases_[1] = 5;
  s.lens_[1] = -5;
  expect(selector.select(0, s.q(), good), kRange, "request 1 has -5 tokens");
  s.lens_[1] = 500;
  std::swap(s.entries_[3], s.entries_[100]);
  const std::int32_t page = s.entries_[3];
  for (const std::int32_t bad : {-1, 180}) {
    s.entries_[3] = bad;
    expect(selector.select(0, s.q(), good), kRange, "page 3 of request 0");
  }
  s.entries_[3] = page;

  std::int32_t slot = 180 * 16;
  AppendPlaces places;
  places.slots = cpu_tensor(&slot, DType::kI32, 1);
  const TensorView row = cpu_tensor(s.k_.data(), DType::kBF16, 1, 2, 32);
  expect(selector.append(0, row, places), kRange, "slot 2880 of row 0");
  slot = -1;
  EXPECT_TRUE(selector.append(0, row, places).ok());
  expect(selector.append(0, row, {}), kInvalid, "batch_indices");
  expect(selector.append(0, cpu_tensor(s.k_.data(), DType::kI8, 1, 2, 32), places), StatusCode::kUnsupported, "k is");
  PageSelectorOptions bounds = s.options();
  bounds.policy = "quest";
  PageSelector quest = make(bounds);
  expect(quest.append(0, row, places), kInvalid, "kv is missing; policy quest");
  PagedKv few = s.kv();
  few.k.shape[0] = few.v.shape[0] = 9;
  expect(quest.append(0, row, places, few), kInvalid, "declared were num_pages = 180");

  expect(selector.plan(attention, std::vector<std::int32_t>(4, 9), good), kRange, "raise max_requests");
  expect(selector.plan(attention, s.lens_, {}), kInvalid, "list_tokens");
  SelectStep narrow = good;  // whose rows end where those of the next request begin
  narrow.page_table.shape[1] = 20;
  expect(selector.plan(attention, std::vector<std::int32_t>{320, 321}, narrow), kRange, "expected 1 to 320");
  expect(selector.plan(attention, std::vector<std::int32_t>{320, 0}, narrow), kRange, "request 1 has 0 tokens");
  expect(selector.plan(pages_of_32, s.lens_, good), kInvalid, "pages of 32 tokens");
  expect(selector.forget(2, 4), kRange, "rows [2, 4)");
  expect(selector.copy_page(0, 180), kRange, "page 0 to 180");
  EXPECT_FALSE(selector.statistics(1).ok());
  EXPECT_TRUE(changed([](auto&) {}).ok());
}

}  // namespace
}  // namespace fovea
