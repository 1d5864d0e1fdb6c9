// Models of every family over two and four ranks on the CPU give the logits of one, but for the order of sums, and the
// same bits on every rank; what cannot be divided is refused by name.
#include <gtest/gtest.h>

#include <thread>

#include "device/group/process_group.h"
#include "engine/model/model_golden_test_util.h"
#include "engine/model/shard.h"

namespace fovea {
namespace {

DeviceOptions exact() {
  DeviceOptions options;
  options.bf16_products = false;
  options.num_threads = 1;
  return options;
}

// What each rank's thread returns.
template <typename F>
auto on_ranks(int size, const F& f) {
  const auto groups = ProcessGroup::of_threads(size);
  EXPECT_TRUE(groups.ok()) << groups.status().message();
  std::vector<decltype(f(exact()))> results(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      DeviceOptions options = exact();
      options.group = (*groups)[static_cast<std::size_t>(rank)];
      results[static_cast<std::size_t>(rank)] = f(options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& group : *groups) group->leave();
  return results;
}

class ModelRanks : public ::testing::TestWithParam<std::string> {};

TEST_P(ModelRanks, LogitsAreThoseOfOne) {
  const Golden golden = load_golden(kGoldens / GetParam());
  const auto prefill = [&](const DeviceOptions& options) {
    auto runner = ModelHarness::create(kGoldens / GetParam(), DType::kF32, options);
    EXPECT_TRUE(runner.ok()) << runner.status().message();
    return runner.ok() ? golden_prefill(**runner, golden, 7, true) : std::vector<float>();
  };
  const std::vector<float> alone = prefill(exact());
  const auto config = load_model_config(kGoldens / GetParam());
  ASSERT_TRUE(config.ok());
  for (const int size : {2, 4}) {
    if (config->num_qo_heads % size != 0) continue;
    const auto ranks = on_ranks(size, prefill);
    const Difference d = difference(ranks[0], alone);
    EXPECT_LT(d.max, 1e-4 * deviation(alone)) << size << " ranks";
    EXPECT_GT(d.max, 0.0) << "nothing was divided";
    for (const auto& other : ranks) EXPECT_EQ(other, ranks[0]) << size << " ranks";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ModelRanks, ::testing::ValuesIn(golden_models()),
                         [](const auto& info) { return info.param; });

TEST(Shard, CoversTheModelOnce) {
  ModelConfig config;
  config.num_qo_heads = 24;
  config.num_kv_heads = 8;
  config.intermediate_size = 96;
  config.vocab_size = 1000;
  for (const int size : {1, 2, 4, 8}) {
    std::int64_t qo = 0, kv = 0, width = 0, vocab = 0;
    for (int rank = 0; rank < size; ++rank) {
      const auto shard = make_shard(config, rank, size);
      ASSERT_TRUE(shard.ok()) << shard.status().message();
      for (const auto& [range, at] : {std::pair{&shard->qo_heads, &qo},
                                      {&shard->kv_heads, &kv},
                                      {&shard->intermediate, &width},
                                      {&shard->vocabulary, &vocab}}) {
        EXPECT_EQ(range->begin, *at);
        *at += range->count;
      }
      EXPECT_EQ(shard->vocabulary.begin, rank * shard->vocab_step);
    }
    EXPECT_EQ(qo, 24);
    EXPECT_EQ(kv, 8);
    EXPECT_EQ(width, 96);
    EXPECT_EQ(vocab, 1000);
  }
}

TEST(Shard, KvHeadsAreRepeatedWhereRanksAreMore) {
  ModelConfig config;
  config.num_qo_heads = 16;
  config.num_kv_heads = 2;
  config.intermediate_size = 64;
  config.vocab_size = 1000;
  for (int rank = 0; rank < 8; ++rank) {
    const auto shard = make_shard(config, rank, 8);
    ASSERT_TRUE(shard.ok());
    EXPECT_EQ(shard->kv_heads.count, 1);
    // The KV head of its query heads.
    EXPECT_EQ(shard->kv_heads.begin, shard->qo_heads.begin / 8);
  }
}

TEST(Shard, RefusesWhatCannotBeDivided) {
  ModelConfig config;
  config.model_type = "llama";
  config.num_qo_heads = 12;
  config.num_kv_heads = 6;
  config.intermediate_size = 98;
  config.vocab_size = 1000;
  const auto says = [&](int size) {
    const auto shard = make_shard(config, 0, size);
    return shard.ok() ? std::string() : shard.status().message();
  };
  EXPECT_EQ(says(2), "");
  EXPECT_NE(says(5).find("12 query heads"), std::string::npos) << says(5);
  EXPECT_NE(says(4).find("6 KV heads"), std::string::npos) << says(4);
  EXPECT_NE(says(3).find("98 columns of the MLP"), std::string::npos) << says(3);
  config.vocab_size = 3;
  config.num_qo_heads = config.num_kv_heads = 14;
  EXPECT_NE(says(14).find("3 tokens of the vocabulary"), std::string::npos) << says(14);
}

}  // namespace
}  // namespace fovea
