// Batches from JSON, lengths and trees from text: good ones, and what each bad one is told.
#include "workload/batch_json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "workload/lengths.h"

namespace fovea {
namespace {

TEST(BatchJsonTest, NamedPrefixesShareFullPages) {
  const auto b = parse_batch(R"({"page": 16, "requests": [
      {"kv": 100, "count": 2, "prefix": [["a", 40]]}, {"kv": 50, "q": 3, "prefix": [["a", 40], ["b", 5]]}, {"kv": 20}]})",
                             "test");
  ASSERT_TRUE(b.ok()) << b.status().to_string();
  const PagedBatch& batch = b->batch;
  EXPECT_EQ(batch.q_lens, (std::vector<std::int32_t>{1, 1, 3, 1}));
  const auto page = [&](int request, int i) {
    return batch.page_table[static_cast<std::size_t>(request * batch.stride + i)];
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(page(0, i), page(1, i));
    EXPECT_EQ(page(0, i), page(2, i));
    EXPECT_NE(page(0, i), page(3, i));
  }
  EXPECT_NE(page(0, 2), page(1, 2));  // 40 tokens end inside the third page
  auto planner = Planner::create(b->options);
  ASSERT_TRUE(planner.ok());
  EXPECT_TRUE(planner->plan(batch.view()).ok());
}

TEST(BatchJsonTest, LengthsAndTrees) {
  const auto zipf =
      parse_batch(R"({"lengths": {"kind": "zipf", "count": 64, "average": 4096}, "workers": 132})", "test");
  ASSERT_TRUE(zipf.ok()) << zipf.status().to_string();
  EXPECT_EQ(zipf->batch.num_tokens(), 64 * 4096);
  const auto tree = parse_batch(R"({"tree": "1,2,8_64,32,10", "q": 2, "window": 50})", "test");
  ASSERT_TRUE(tree.ok()) << tree.status().to_string();
  EXPECT_EQ(tree->batch.num_rows(), 16);
  EXPECT_EQ(tree->batch.mask, abi::MaskKind::kWindow);
}

TEST(BatchJsonTest, SaysWhatIsWrong) {
  const auto message = [](const char* text) {
    const auto b = parse_batch(text, "batch.json");
    return b.ok() ? std::string("ok") : b.status().message();
  };
  EXPECT_NE(message("{}").find("exactly one of"), std::string::npos);
  EXPECT_NE(message("[1]").find("batch.json"), std::string::npos);
  EXPECT_NE(message(R"({"requests": []})").find("requests"), std::string::npos);
  EXPECT_NE(message(R"({"requests": [{"kv": -1}]})").find("kv"), std::string::npos);
  EXPECT_NE(message(R"({"requests": [{"kv": 10, "prefix": ["a"]}]})").find("prefix"), std::string::npos);
  EXPECT_NE(message(R"({"requests": [{"kv": 10, "prefix": [["a", 0]]}]})").find("prefix"), std::string::npos);
  EXPECT_NE(message(R"({"requests": [{"kv": 16000000, "count": 60000}], "page": 1})").find("entries"),
            std::string::npos);
  EXPECT_NE(message(R"({"tree": "1,3,8_64,32,10"})").find("divide"), std::string::npos);
  EXPECT_NE(message(R"({"tree": "1,2,8_64,32"})").find("expected nodes"), std::string::npos);
  EXPECT_NE(message(R"({"tree": "x_1"})").find("expected nodes"), std::string::npos);
  EXPECT_NE(message(R"({"lengths": {"kind": "pareto", "count": 3, "average": 5}})").find("zipf"), std::string::npos);
  EXPECT_NE(message(R"({"requests": [{"kv": 10}], "mask": "bits"})").find("mask"), std::string::npos);
  EXPECT_NE(message(R"({"requests": [{"kv": 10}], "wrokers": 3})").find("wrokers"), std::string::npos);
}

TEST(LengthsTest, KeepTheirSums) {
  for (const std::int32_t count : {1, 2, 7, 64}) {
    for (const std::int64_t total : {1000ll, 262144ll}) {
      const auto zipf = zipf_lengths(count, total, 1.2, 3);
      EXPECT_EQ(std::accumulate(zipf.begin(), zipf.end(), 0ll), total);
      const auto one_long = one_long_lengths(count, total);
      EXPECT_EQ(std::accumulate(one_long.begin(), one_long.end(), 0ll), total) << count;
    }
  }
  // The skewed sets that the measurements of other engines used.
  const auto one_long = one_long_lengths(64, 262144);
  EXPECT_EQ(one_long[31], 131072);
  EXPECT_EQ(one_long[30], 2080);
  const auto zipf = zipf_lengths(64, 262144, 1.2, 1);
  EXPECT_NEAR(*std::max_element(zipf.begin(), zipf.end()), 76682, 20);
}

TEST(PatTreesTest, HaveTheirPublishedTokenCounts) {
  // Unique tokens of trees 1, 3, 11 and 20 (the notes on PAT, table 1).
  const auto unique = [](std::size_t i) {
    const auto tree = parse_prefix_tree(pat_trees()[i]);
    EXPECT_TRUE(tree.ok());
    const PagedBatch batch = tree_batch(*tree, 32, 1, PageOrder::kSequential, 1);
    return std::int64_t{batch.num_pages} * 32;
  };
  ASSERT_EQ(pat_trees().size(), 20u);
  EXPECT_EQ(unique(0), 8256);
  EXPECT_EQ(unique(2), 34816);
  EXPECT_EQ(unique(10), 278912);
  EXPECT_EQ(unique(19), 1048576);
}

}  // namespace
}  // namespace fovea
