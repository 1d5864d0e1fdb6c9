// Draft tokens verified several in a step, with models of random weights: the same tokens and, with --batch-invariant,
// the same bits as one token a step, alone and in a crowd, with choices, windows, streaming heads and pages that run
// out. Without it they are trees, under grammars too.

#include "engine/engine_model_test_util.h"
#include "engine/tokenizer/tokenizer.h"

namespace fovea {
namespace {

struct Kind {
  const char* name;
  const char* golden;
  std::int32_t local = 0;         // tokens that streaming heads see; 0: there are none
  std::int32_t prompt_local = 0;  // and those of prompts; 0: as many
  std::int32_t window = 100;      // of layers that have one
};

// Steps of equal length: draft tokens cost next to nothing, and trees are as large as they may be.
std::function<double()> even_clock() {
  return [now = 0.0]() mutable { return now += 1e-3; };
}

class Speculation : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    path_ = temp_config(std::string("speculate_") + GetParam().name);
    const auto [name, golden, local, prompt_local, window] = GetParam();
    Json config = Json::parse(config_of(golden, local > 0 ? 4 : 0));
    if (config.contains("sliding_window") && config["sliding_window"].is_number()) config["sliding_window"] = window;
    ASSERT_TRUE(write_file_atomic(path_, config.dump()).ok());
    if (local > 0) streaming_ = profile(local, prompt_local, {{0, 1}, {0, 3}, {1, 0}, {1, 1}});
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // Prompts that repeat themselves, greedy and sampled; answers of random weights do so too.
  static std::vector<GenerateRequest> requests() {
    PhiloxRng rng(5);
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 5; ++i) {
      Tokens phrase;
      for (int k = 0; k < 20 + 7 * i; ++k) phrase.push_back(static_cast<std::int32_t>(rng.next_below(128)));
      GenerateRequest request;
      for (int k = 0; k < 4; ++k) request.prompt.insert(request.prompt.end(), phrase.begin(), phrase.end());
      request.sampling.max_tokens = 32 + i;
      request.sampling.ignore_eos = true;
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.5f;
      request.sampling.top_k = i % 2 == 0 ? 0 : 2;
      request.sampling.has_seed = true;
      request.sampling.seed = static_cast<std::uint64_t>(i);
      request.sampling.logprobs = 0;
      if (i == 3) request.n = 3;
      if (i == 4) request.sampling.repetition_penalty = 1.05f;
      requests.push_back(request);
    }
    return requests;
  }

  std::filesystem::path path_;
  std::optional<HeadProfile> streaming_;
};

TEST_P(Speculation, SameBitsAloneAndInACrowd) {
  EngineOptions options;
  options.batch_invariant = true;
  options.num_threads = 1;
  options.chunk_tokens = 512;
  options.kv_cache_bytes = 64 << 20;
  EngineStats plain;
  const std::vector<Answer> expected = run(path_, streaming_, options, requests(), false, plain);
  ASSERT_EQ(expected.size(), 7u);
  EXPECT_EQ(plain.draft_tokens, 0u);

  options.speculate = "ngram";
  EngineStats alone;
  const std::vector<Answer> answers = run(path_, streaming_, options, requests(), false, alone);
  for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_TRUE(answers[i] == expected[i]) << "choice " << i;
  EXPECT_GT(alone.accepted_tokens, 0u);
  EXPECT_LT(alone.steps, plain.steps);

  for (const bool tight : {false, true}) {
    EngineOptions crowd = options;
    crowd.chunk_tokens = 100;
    // Few: 2 layers of at most 4 KV heads of 32 elements, K and V in bf16; answers do not fit side by side.
    if (tight) crowd.kv_cache_bytes = std::int64_t{600} * 2 * 4 * 32 * 2 * 2;
    EngineStats stats;
    const std::vector<Answer> together = run(path_, streaming_, crowd, requests(), true, stats);
    ASSERT_EQ(together.size(), expected.size());
    for (std::size_t i = 0; i < together.size(); ++i) EXPECT_TRUE(together[i] == expected[i]) << "choice " << i;
  }
}

// Stored KV may round to the next number where products of another number of rows were added in another order.
void expect_close(const Answer& answer, const Answer& expected, DType kv) {
  ASSERT_EQ(answer.logprobs.size(), expected.logprobs.size());
  for (std::size_t i = 0; i < expected.logprobs.size(); ++i) {
    ASSERT_NEAR(answer.logprobs[i], expected.logprobs[i], kv == DType::kF32 ? 1e-5f : 5e-3f) << "token " << i;
  }
}

// Answers of three words, so that they come back to the same ones and go on differently.
std::vector<GenerateRequest> wandering_requests() {
  std::vector<GenerateRequest> requests;
  PhiloxRng rng(17);
  for (int i = 0; i < 6; ++i) {
    GenerateRequest request;
    for (int k = 0; k < 40 + 30 * i; ++k) {
      request.prompt.push_back(static_cast<std::int32_t>(rng.next_below(3)));
    }
    request.sampling.max_tokens = 120;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = 2.0f;
    for (std::int32_t token = 0; token < 3; ++token) request.sampling.logit_bias.push_back({token, 100.0f});
    request.sampling.has_seed = true;
    request.sampling.seed = static_cast<std::uint64_t>(40 + i);
    request.sampling.logprobs = 0;
    if (i == 4) request.n = 2;
    requests.push_back(request);
  }
  return requests;
}

TEST_P(Speculation, TreesGiveTheSameTokens) {
  for (const DType kv : {DType::kF32, DType::kBF16, DType::kI8, DType::kI4}) {
    SCOPED_TRACE(dtype_name(kv));
    EngineOptions options;
    options.num_threads = 1;
    options.simd = "avx2";  // without products of bf16: those of attention add in an order of their own for many rows
    options.kv_dtype = kv;
    options.kv_cache_bytes = 64 << 20;
    EngineStats plain;
    const std::vector<Answer> expected = run(path_, streaming_, options, wandering_requests(), false, plain);
    ASSERT_EQ(expected.size(), 7u);
    options.speculate = "ngram";
    for (const bool crowd : {false, true}) {
      // Who shares a step is up to the threads' timing, and a last bit can move a stored integer to the next.
      if (crowd && kv != DType::kF32) continue;
      EngineStats stats;
      const std::vector<Answer> answers =
          run(path_, streaming_, options, wandering_requests(), crowd, stats, {}, nullptr, nullptr, even_clock());
      ASSERT_EQ(answers.size(), expected.size());
      for (std::size_t i = 0; i < answers.size(); ++i) {
        EXPECT_EQ(answers[i].tokens, expected[i].tokens) << "choice " << i << (crowd ? ", in a crowd" : ", alone");
        expect_close(answers[i], expected[i], kv);
      }
      if (!crowd) {
        EXPECT_GT(stats.accepted_branches, 50u);
      }
      EXPECT_LT(stats.steps, plain.steps);
    }
  }
}

// What accepted draft tokens leave in the pages is what computing them in their order leaves: a prompt that goes on
// behind an answer finds it in the cache, and is answered as if it did not.
TEST_P(Speculation, AnswersOfTreesAreCachedAsIfComputed) {
  for (const DType kv : {DType::kF32, DType::kBF16, DType::kI8, DType::kI4}) {
    SCOPED_TRACE(dtype_name(kv));
    EngineOptions options;
    options.num_threads = 1;
    options.simd = "avx2";
    options.kv_dtype = kv;
    options.kv_cache_bytes = 64 << 20;
    EngineOptions cold = options;
    cold.prefix_cache = false;
    options.speculate = "ngram";
    auto engine = create_engine(path_, streaming_, options, nullptr, nullptr, even_clock());
    auto other = create_engine(path_, streaming_, cold);
    ASSERT_TRUE(engine.ok() && other.ok());
    for (GenerateRequest request : wandering_requests()) {
      request.n = 1;
      // The last token is not computed; those before it fill pages, or a window would have given up what is needed.
      request.sampling.max_tokens = 128 + 1 - static_cast<std::int32_t>(request.prompt.size() % 16);
      const Tokens answer = ask(**engine, request).tokens;
      const auto prompt = static_cast<std::int32_t>(request.prompt.size());
      request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
      const auto known = static_cast<std::int32_t>(request.prompt.size());
      request.prompt.push_back(7);
      request.sampling = {};
      request.sampling.temperature = 0.0f;
      request.sampling.max_tokens = 4;
      request.sampling.ignore_eos = true;
      request.sampling.logprobs = 0;
      const Answer warm = ask(**engine, request);
      const Answer expected = ask(**other, request);
      // Where prompts see more than answers, no answer is of use to them.
      EXPECT_EQ(warm.cached, GetParam().prompt_local == 0 ? known - 1 : prompt / 16 * 16);
      EXPECT_EQ(expected.cached, 0);
      EXPECT_EQ(warm.tokens, expected.tokens);
      expect_close(warm, expected, kv);
    }
    EXPECT_GT((*engine)->stats().accepted_branches, 50u);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Speculation,
                         ::testing::Values(Kind{"plain", "llama31"}, Kind{"streaming", "llama31", 100},
                                           Kind{"narrow", "llama31", 1}, Kind{"prompts", "llama31", 4, 90},
                                           Kind{"window", "gemma2"}, Kind{"slit", "gemma2", 0, 0, 3}),
                         [](const auto& info) { return std::string(info.param.name); });

// The embedded model, which has a tokenizer and so grammars, with steps of equal length.
Result<std::unique_ptr<EngineCore>> create_needle(const EngineOptions& options) {
  const std::string folder = std::string(FOVEA_SOURCE_DIR) + "/models/needle";
  EngineParts parts;
  parts.options = options;
  parts.name = "needle";
  parts.clock = even_clock();
  DeviceOptions device;
  device.num_threads = options.num_threads;
  device.simd = options.simd;
  FOVEA_ASSIGN_OR_RETURN(parts.device, create_device(options.device, device));
  ModelLoadOptions load;
  load.max_forward_tokens = options.chunk_tokens;
  load.max_logit_rows = max_logit_rows(options);
  FOVEA_ASSIGN_OR_RETURN(parts.model, load_model(folder, *parts.device, load));
  FOVEA_ASSIGN_OR_RETURN(parts.tokenizer, Tokenizer::load(folder));
  return EngineCore::create(std::move(parts));
}

// Answers of three letters held to grammars, so that they come back to the same ones and go on differently; prompts
// have sequences of them that no grammar lets pass. Branches are accepted, from the grammar's state before them, and
// the answers stay the same.
TEST(GrammarSpeculation, AcceptedBranchesKeepToTheGrammar) {
  const GrammarSpec specs[] = {{GrammarKind::kRegex, "([ab]c?){50,60}"},
                               {GrammarKind::kJsonSchema, R"({"type":"string","pattern":"^(a|bc?|ca){45,50}$"})"},
                               {GrammarKind::kEbnf, "root ::= (\"a\" | \"b\" | \"c\" \"a\") root"}};
  std::vector<Tokens> plain;
  for (const char* speculate : {"off", "ngram"}) {
    EngineOptions options;
    options.num_threads = 1;
    options.kv_dtype = DType::kF32;
    options.kv_cache_bytes = 16 << 20;
    options.speculate = speculate;
    auto engine = create_needle(options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    std::vector<Tokens> answers;
    for (std::size_t i = 0; i < 9; ++i) {
      auto grammar = (*engine)->compile_grammar(specs[i % 3]);
      ASSERT_TRUE(grammar.ok()) << grammar.status().message();
      GenerateRequest request;
      request.grammar = *std::move(grammar);
      for (const char* letter : {"a", "b", "c"}) {
        const Tokens token = *(*engine)->encode(letter, false);
        ASSERT_EQ(token.size(), 1u);
        request.sampling.logit_bias.emplace_back(token[0], 100.0f);
      }
      PhiloxRng rng(i);
      for (int k = 0; k < 40; ++k) request.prompt.push_back(request.sampling.logit_bias[rng.next_below(3)].first);
      request.sampling.temperature = 2.0f;
      request.sampling.has_seed = true;
      request.sampling.seed = i;
      request.sampling.max_tokens = 100;
      answers.push_back(ask(**engine, request).tokens);
    }
    if (plain.empty()) {
      plain = std::move(answers);
      continue;
    }
    for (std::size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i], plain[i]) << i;
    EXPECT_GT((*engine)->stats().accepted_branches, 20u);
    EXPECT_TRUE((*engine)->check_integrity().ok());
  }
}

}  // namespace
}  // namespace fovea
