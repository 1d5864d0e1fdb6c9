// Prompts that read selected pages: under the budget the bits of dense prompts, above it fewer pages and other answers
// only where they must be, and no prefix of one kind where the other kind looks for it.
#include "engine/engine_model_test_util.h"
#include "engine/sparse_options.h"

namespace fovea {
namespace {

class SparsePrefill : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = temp_config("sparse_prefill");
    ASSERT_TRUE(write_file_atomic(path_, config_of("llama31")).ok());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  static EngineOptions options_of(const std::string& prefill) {
    EngineOptions options = selecting_options("quest");
    options.batch_invariant = false;
    options.sparse_prefill = prefill;
    return options;
  }

  std::filesystem::path path_;
};

TEST_F(SparsePrefill, UnderBudgetTheBitsOfDense) {
  const std::vector<GenerateRequest> requests = selecting_requests();
  EngineStats stats;
  const std::vector<Answer> dense = run(path_, {}, options_of("off"), requests, false, stats);
  EXPECT_GT(stats.sparse_pages_read, 0u);
  EXPECT_EQ(stats.sparse_prompt_pages_read, 0u);
  EXPECT_EQ(run(path_, {}, options_of("1024"), requests, false, stats), dense);
  EXPECT_EQ(run(path_, {}, options_of("T/1"), requests, false, stats), dense);
  EXPECT_EQ(stats.sparse_prompt_pages_read, 0u);
  EngineOptions most = options_of("256");
  most.kv_budget = "1024";  // of generated tokens, and so of prompts
  run(path_, {}, most, requests, false, stats);
  EXPECT_EQ(stats.sparse_prompt_pages_read, 0u);
}

TEST_F(SparsePrefill, ReadsFewerPagesAndFindsItsOwnPrefixesOnly) {
  std::vector<GenerateRequest> requests = selecting_requests();
  for (GenerateRequest& request : requests) request.sparse_prompt_tokens = 0;
  GenerateRequest dense = requests[3];
  dense.sparse = "off";
  EngineStats stats;
  const std::vector<Answer> expected = run(path_, {}, options_of("off"), {dense}, false, stats);
  // After prompts that selected; then once more, after itself.
  const std::vector<Answer> answers =
      run(path_, {}, options_of("256"), {requests[3], dense, dense, requests[3]}, false, stats);
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(answers[1].cached, 0);
  EXPECT_TRUE(answers[1] == expected[0]);
  EXPECT_GT(answers[2].cached, 850);
  EXPECT_GT(answers[3].cached, 850);
  EXPECT_FALSE(answers[0] == expected[0]);
  EXPECT_GT(stats.sparse_prompt_pages_read, 0u);
  EXPECT_LT(stats.sparse_prompt_pages_read, stats.sparse_prompt_pages_kept);
}

TEST_F(SparsePrefill, NoSaltIsThatOfAPromptThatSelects) {
  SparseSetting dense, selecting;
  selecting.policy = *find_select_policy("quest");
  selecting.prompt_budget = KvBudget{};
  EXPECT_EQ(cache_salt("", dense), "");
  EXPECT_NE(cache_salt("mine", dense), "");
  EXPECT_NE(cache_salt("mine", dense), cache_salt("mine", selecting));
  const std::string own = cache_salt("", selecting);
  for (const std::string& asked : {own, own.substr(0, own.size() - 1), "\x1f" + own, own + "\x1f"}) {
    EXPECT_NE(cache_salt(asked, dense), own) << asked;
  }
}

// 257 tokens are 16 units of 16, and 4 of 64, as 256 are: lists, answers and prefixes in the cache are the same.
TEST_F(SparsePrefill, BudgetsThatReadTheSameAreTheSame) {
  GenerateRequest request = selecting_requests()[3];
  request.sparse_prompt_tokens = 0;
  const auto salt_of = [&](const char* policy, const char* budget, const char* prompt_budget) {
    SparseConfig config;
    config.policy = *find_select_policy("quest");
    config.prompt_budget = *parse_kv_budget(prompt_budget);
    request.sparse = policy;
    request.kv_budget = budget;
    return cache_salt("", *sparse_setting(config, request));
  };
  EXPECT_EQ(salt_of("quest", "257", "512"), salt_of("quest", "256", "527"));
  EXPECT_NE(salt_of("quest", "272", "512"), salt_of("quest", "256", "512"));
  EXPECT_NE(salt_of("quest", "256", "528"), salt_of("quest", "256", "512"));
  EXPECT_EQ(salt_of("lserve", "319", "T/8"), salt_of("lserve", "256", "T/8"));
  EXPECT_NE(salt_of("lserve", "320", "T/8"), salt_of("lserve", "256", "T/8"));

  request.sparse.clear();
  GenerateRequest more = request;
  request.kv_budget = "256";
  more.kv_budget = "257";
  EngineStats stats;
  const std::vector<Answer> answers = run(path_, {}, options_of("267"), {request, more}, false, stats);
  const std::vector<Answer> alone = run(path_, {}, options_of("256"), {more}, false, stats);
  EXPECT_GT(answers[1].cached, 850);
  EXPECT_GT(stats.sparse_prompt_pages_read, 0u);
  EXPECT_TRUE(alone[0] == answers[0]);
}

TEST_F(SparsePrefill, SaysWhyItIsRefused) {
  const auto refused = [&](const EngineOptions& options, const std::string& part) {
    const auto engine = create_engine(path_, {}, options);
    ASSERT_FALSE(engine.ok()) << part;
    EXPECT_NE(engine.status().message().find(part), std::string::npos) << engine.status().message();
  };
  EngineOptions options = options_of("T");
  refused(options, "sparse_prefill: kv_budget is \"T\"");
  options = options_of("512");
  options.sparse = "off";
  refused(options, "sparse_prefill is \"512\", but no policy");
  options = options_of("512");
  options.batch_invariant = true;
  refused(options, "batch_invariant");
}

}  // namespace
}  // namespace fovea
