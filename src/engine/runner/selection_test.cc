// One layer whose KV heads partly stream: full heads read the pages that a plain reading of the policy names, streaming
// heads sinks and window, dense requests of the same step all; against attention in double over exactly those tokens.
#include "engine/runner/selection.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/half.h"
#include "base/random.h"
#include "engine/model/kv_grouping.h"

namespace fovea {
namespace {

constexpr std::int32_t kHeads = 4;
constexpr std::int32_t kGroup = 2;
constexpr std::int32_t kDim = 32;
constexpr std::int32_t kWindow = 100;
constexpr std::int32_t kSinks = 64;
constexpr std::int32_t kPages = 240;
constexpr std::int32_t kBudget = 256;

class OneLayer final : public Model {
 public:
  explicit OneLayer(const HeadProfile& profile) {
    config_.num_layers = 1;
    config_.num_qo_heads = kHeads * kGroup;
    config_.num_kv_heads = kHeads;
    config_.head_dim = kDim;
    config_.layer_window = {0};
    layout_ = make_kv_grouping(config_, {0, config_.num_kv_heads}, &profile);
  }
  const ModelConfig& config() const override { return config_; }
  const std::vector<KvGroupSpec>& kv_groups() const override { return layout_.groups; }
  const std::vector<AttentionGroupSpec>& attention_groups() const override { return layout_.attention; }
  AttentionOptions attention_options(std::size_t) const override {
    AttentionOptions attention;
    attention.num_qo_heads = kHeads * kGroup;
    attention.num_kv_heads = kHeads;
    attention.head_dim = kDim;
    attention.sm_scale = 0.5f;
    return attention;
  }
  Status forward(const ForwardBatch&, const TensorView&) override { return ok_status(); }
  std::size_t weight_bytes() const override { return 0; }

 private:
  ModelConfig config_;
  KvGrouping layout_;
};

// Multiples of 1/8, so that fp16 statistics are exact and choices have no ties by rounding.
std::vector<float> numbers(PhiloxRng& rng, std::size_t count) {
  std::vector<float> made(count);
  for (float& x : made) x = (static_cast<float>(rng.next_below(129)) - 64.0f) / 8.0f;
  return made;
}

class MixedLayer : public ::testing::TestWithParam<std::int32_t> {
 protected:
  // lengths: tokens that the newest query of each request sees; counts: its query tokens of this step; prompts: those
  // of them that are tokens of a prompt and select together.
  void run(const std::vector<std::int32_t>& lengths, const std::vector<std::int32_t>& counts,
           const std::vector<const char*>& policies, std::vector<std::int32_t> prompts = {}) {
    prompts.resize(lengths.size(), 0);
    const std::int32_t page_tokens = GetParam();
    OneLayer model({"", kSinks, kWindow, 0, {{0, 1}, {0, 3}}});
    ASSERT_EQ(model.kv_groups().size(), 2u);
    DeviceOptions threads;
    threads.num_threads = 2;
    threads.bf16_products = false;
    auto device = create_device("cpu", threads);
    ASSERT_TRUE(device.ok());
    KvPoolOptions memory;
    memory.format.dtype = DType::kF32;
    memory.page_tokens = page_tokens;
    memory.bytes = std::int64_t{kPages} * page_tokens * kHeads * kDim * 8;
    memory.max_running = 8;
    auto pool = KvPool::create(**device, model.kv_groups(), model.attention_groups(), memory);
    ASSERT_TRUE(pool.ok()) << pool.status().message();
    ReqToTokenPool rows(static_cast<std::int32_t>(lengths.size()), 2, kPages);

    AttentionConfig config{model.attention_options(0), {}, {}};
    config.options.q_dtype = config.options.kv_dtype = DType::kF32;
    config.options.page_tokens = page_tokens;
    config.options.max_requests = 8;
    config.options.max_rows = 64;
    config.options.max_pages_per_request = kPages;
    SelectionOptions options;
    options.stat = abi::StatKind::kMinMaxF16;
    options.layers = {0};
    options.rotary_dim = kDim;
    auto selection = Selection::create(**device, model, **pool, rows, {config}, memory.format, options);
    ASSERT_TRUE(selection.ok()) << selection.status().message();

    // All tokens are appended, in this forward's append; queries are the last of each request.
    PhiloxRng rng(7);
    std::vector<Sequence> sequences(lengths.size());
    Step step;
    std::vector<std::int32_t> positions;
    std::vector<std::vector<std::vector<float>>> k(lengths.size()), v(lengths.size());  // [request][head]: [token, dim]
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      Sequence& sequence = sequences[r];
      sequence.id = r + 1;
      sequence.slot = rows.allocate();
      sequence.prompt_length = lengths[r] - counts[r] + prompts[r];
      sequence.tokens.resize(static_cast<std::size_t>(lengths[r]));
      if (policies[r] != nullptr) sequence.sparse.policy = *find_select_policy(policies[r]);
      sequence.sparse.budget = {kBudget, 0};
      sequence.sparse.first_position = sequence.prompt_length;
      if (prompts[r] > 0) sequence.sparse.prompt_budget = KvBudget{kBudget, 0};
      step.items.push_back({&sequence, lengths[r] - counts[r], counts[r], true});
      step.num_tokens += counts[r];
      for (std::int32_t i = lengths[r] - counts[r]; i < lengths[r]; ++i) positions.push_back(i);
      for (std::int32_t g = 0; g < 2; ++g) {
        for (std::int32_t p = 0; p * page_tokens < lengths[r]; ++p) {
          const std::int32_t page = (*pool)->pages(static_cast<std::size_t>(g)).allocate();
          ASSERT_NE(page, kNoPage);
          rows.push(sequence.slot, g, page);
        }
      }
      for (std::int32_t h = 0; h < kHeads; ++h) {
        k[r].push_back(numbers(rng, static_cast<std::size_t>(lengths[r] * kDim)));
        v[r].push_back(numbers(rng, static_cast<std::size_t>(lengths[r] * kDim)));
      }
    }
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      for (std::size_t range = 0; range < model.attention_groups()[0].ranges.size(); ++range) {
        const HeadRange& heads = model.attention_groups()[0].ranges[range];
        std::vector<std::int32_t> to;
        for (std::int32_t t = 0; t < lengths[r]; ++t) {
          const auto row = rows.row(sequences[r].slot, static_cast<std::int32_t>(heads.kv_group));
          to.push_back(row[static_cast<std::size_t>(t / page_tokens)] * page_tokens + t % page_tokens);
        }
        for (std::int32_t h = heads.head_begin; h < heads.head_end; ++h) {
          const auto at = static_cast<std::size_t>(h);
          const abi::KvPoolView view = abi::shift_heads((*pool)->layer_views()[0][range], -h);
          std::vector<float> qkv(static_cast<std::size_t>(lengths[r]) * 3 * kDim);
          for (std::int32_t i = 0; i < lengths[r] * kDim; ++i) {
            float* const token = qkv.data() + i / kDim * 3 * kDim + i % kDim;
            token[kDim] = k[r][at][static_cast<std::size_t>(i)];
            token[2 * kDim] = v[r][at][static_cast<std::size_t>(i)];
          }
          RopeConfig none;
          none.kind = RopeKind::kNone;
          QkvHeads one;
          one.qkv = cpu_tensor(qkv.data(), DType::kF32, lengths[r], 3, kDim);
          one.num_qo_heads = one.num_kv_heads = 1;
          one.rope = &none;
          KvTarget target{0, 1, to.data(), view};
          target.stats = (*selection)->statistics(0, range);
          if (target.stats.data != nullptr) {
            const std::int32_t nth = h - heads.head_begin;
            target.stats.data = static_cast<std::byte*>(target.stats.data) + nth * target.stats.head_stride;
            target.stats.num_heads = 1;
            if (target.stats.codes != nullptr) target.stats.codes += nth;
          }
          ASSERT_TRUE((*device)->rope_append(one, {&target, 1}).ok());
        }
      }
    }
    ASSERT_TRUE((*selection)->begin(step, positions).ok());
    std::vector<float> q = numbers(rng, positions.size() * kHeads * kGroup * kDim);
    for (float& x : q) x /= 16.0f;
    std::vector<float> out(q.size(), std::nanf(""));
    const auto n = static_cast<std::int64_t>(positions.size());
    const auto done = (*selection)
                          ->attend(0, cpu_tensor(q.data(), DType::kF32, n, kHeads * kGroup, kDim),
                                   cpu_tensor(out.data(), DType::kF32, n, kHeads * kGroup, kDim));
    ASSERT_TRUE(done.ok()) << done.status().message();
    ASSERT_TRUE(*done);

    std::uint64_t pages_read = 0;
    std::uint64_t prompt_pages_read = 0;
    std::size_t row = 0;
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      for (std::int32_t i = lengths[r] - counts[r]; i < lengths[r]; ++i, ++row) {
        for (std::int32_t h = 0; h < kHeads; ++h) {
          const float* queries = q.data() + (row * kHeads + static_cast<std::size_t>(h)) * kGroup * kDim;
          const bool streams = h == 1 || h == 3;
          const std::vector<float>& keys = k[r][static_cast<std::size_t>(h)];
          std::set<std::int32_t> seen;
          const std::int32_t start = lengths[r] - counts[r];
          const bool prompt = i < start + prompts[r];
          const std::int32_t block = i / 64 * 64;
          const bool selects = !streams && policies[r] != nullptr && (prompt ? block : i) + 1 > kBudget;
          if (selects && prompt) {
            const std::int32_t first = std::max(block, start);
            const std::int32_t end = std::min(block + 64, start + prompts[r]);
            const std::size_t stride = kHeads * kGroup * kDim;
            seen = chosen_for_block(policies[r], keys, queries - static_cast<std::size_t>(i - first) * stride, stride,
                                    first, end);
            if (i == first) prompt_pages_read += seen.size();
          } else if (selects) {
            seen = chosen_units(policies[r], keys, queries, i + 1);
            pages_read += seen.size();
          }
          for (std::int32_t g = 0; g < kGroup; ++g) {
            const auto sees = [&](std::int32_t t) {
              return streams ? t < kSinks || i - t < kWindow : !selects || seen.contains(t / 16);
            };
            const float* got =
                out.data() +
                ((row * kHeads + static_cast<std::size_t>(h)) * kGroup + static_cast<std::size_t>(g)) * kDim;
            expect_attention(keys, v[r][static_cast<std::size_t>(h)], queries + g * kDim, i + 1, sees, got);
          }
        }
      }
    }
    EXPECT_EQ((*selection)->counts().pages_read, pages_read);
    EXPECT_EQ((*selection)->counts().prompt_pages_read, prompt_pages_read);
  }

  // Of 16 tokens: the first, the newest two (16 tokens back), and the best others.
  static std::set<std::int32_t> chosen_units(const std::string& policy, const std::vector<float>& keys, const float* q,
                                             std::int32_t tokens) {
    return best_units(policy, keys, {q, q + kGroup * kDim}, tokens, tokens - 16, kBudget / 16);
  }

  // Queries [first, end) of a block: its own units, those of the 64 tokens before them, the first, and the best others
  // by means of 16 queries.
  static std::set<std::int32_t> chosen_for_block(const std::string& policy, const std::vector<float>& keys,
                                                 const float* q, std::size_t stride, std::int32_t first,
                                                 std::int32_t end) {
    std::vector<float> means;
    for (std::int32_t row = first; row < end; row += 16) {
      const std::int32_t count = std::min(16, end - row);
      for (std::int32_t i = 0; i < kGroup * kDim; ++i) {
        float sum = 0.0f;
        for (std::int32_t j = row - first; j < row - first + count; ++j)
          sum += q[static_cast<std::size_t>(j) * stride + static_cast<std::size_t>(i)];
        means.push_back(sum / static_cast<float>(count));
      }
    }
    const std::int32_t before = first / 16 * 16;
    std::set<std::int32_t> chosen =
        best_units(policy, keys, means, before, before - 64, (kBudget - (end - before)) / 16);
    for (std::int32_t u = before / 16; u < (end + 15) / 16; ++u) chosen.insert(u);
    return chosen;
  }

  // The first unit, those from token `recent` on, and the best others by the queries [.., kGroup, kDim].
  static std::set<std::int32_t> best_units(const std::string& policy, const std::vector<float>& keys,
                                           const std::vector<float>& queries, std::int32_t tokens, std::int32_t recent,
                                           std::int32_t most) {
    const std::int32_t units = (tokens + 15) / 16;
    std::set<std::int32_t> chosen = {0};
    for (std::int32_t u = recent / 16; u < units; ++u) chosen.insert(u);
    std::vector<std::pair<double, std::int32_t>> scores;
    const float* q = queries.data();
    for (std::int32_t u = 0; u < units; ++u) {
      double best = -1e30;
      for (std::int32_t g = 0; g < static_cast<std::int32_t>(queries.size()) / kDim; ++g) {
        double bound = 0.0;
        std::vector<double> products(16, 0.0);
        for (std::int32_t d = 0; d < kDim; ++d) {
          double most = -1e30;
          for (std::int32_t t = u * 16; t < std::min((u + 1) * 16, tokens); ++t) {
            const double product = double{q[g * kDim + d]} * keys[static_cast<std::size_t>(t * kDim + d)];
            most = std::max(most, product);
            products[static_cast<std::size_t>(t % 16)] += product;
          }
          bound += most;
        }
        if (policy == "oracle") bound = *std::max_element(products.begin(), products.end());
        best = std::max(best, bound);
      }
      scores.push_back({-best, u});
    }
    std::sort(scores.begin(), scores.end());
    for (const auto& [score, unit] : scores) {
      if (static_cast<std::int32_t>(chosen.size()) < most) chosen.insert(unit);
    }
    return chosen;
  }

  template <typename Sees>
  static void expect_attention(const std::vector<float>& k, const std::vector<float>& v, const float* q,
                               std::int32_t tokens, Sees sees, const float* got) {
    std::vector<double> logits(static_cast<std::size_t>(tokens), -1e30);
    double top = -1e30;
    for (std::int32_t t = 0; t < tokens; ++t) {
      if (!sees(t)) continue;
      double dot = 0.0;
      for (std::int32_t d = 0; d < kDim; ++d) dot += double{q[d]} * k[static_cast<std::size_t>(t * kDim + d)];
      logits[static_cast<std::size_t>(t)] = 0.5 * dot;
      top = std::max(top, 0.5 * dot);
    }
    double sum = 0.0;
    std::vector<double> out(kDim, 0.0);
    for (std::int32_t t = 0; t < tokens; ++t) {
      const double weight = std::exp(logits[static_cast<std::size_t>(t)] - top);
      sum += weight;
      for (std::int32_t d = 0; d < kDim; ++d) {
        out[static_cast<std::size_t>(d)] += weight * v[static_cast<std::size_t>(t * kDim + d)];
      }
    }
    for (std::int32_t d = 0; d < kDim; ++d) ASSERT_NEAR(got[d], out[static_cast<std::size_t>(d)] / sum, 2e-4);
  }
};

TEST_P(MixedLayer, FullHeadsSelectBesideStreamingOnes) {
  run({700, 500, 90, 640, 300}, {1, 1, 1, 1, 1}, {"quest", nullptr, "quest", "oracle", "quest"});
}

// A request that is computed again has many queries that select; a prompt in the same step has none.
TEST_P(MixedLayer, ChunksAndPromptsInOneStep) { run({500, 420}, {9, 20}, {"quest", nullptr}); }

// Blocks of a prompt that select together, the first of them below the budget or cut by the chunk, beside a request
// whose prompt reads all, one that decodes, and a prompt whose last tokens select each for itself.
TEST_P(MixedLayer, PromptsSelectInBlocks) {
  run({672, 420, 600, 408}, {32, 10, 1, 16}, {"quest", nullptr, "quest", "quest"}, {32, 0, 0, 8});
}
TEST_P(MixedLayer, APromptThatOutgrowsItsBudget) { run({304}, {64}, {"quest"}, {64}); }
TEST_P(MixedLayer, APromptByExactProducts) { run({592, 560}, {24, 40}, {"oracle", "quest"}, {24, 40}); }

INSTANTIATE_TEST_SUITE_P(PageTokens, MixedLayer, ::testing::Values(16, 32));

}  // namespace
}  // namespace fovea
