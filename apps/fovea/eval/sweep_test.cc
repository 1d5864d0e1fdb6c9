// Settings by name, which of them share an engine, and a small sweep over the embedded model.
#include "eval/sweep.h"

#include <gtest/gtest.h>

#include "eval/settings.h"

namespace fovea::app {
namespace {

TEST(EvalSettings, NamesSayPolicyBudgetStreamingAndType) {
  EngineOptions base;
  base.kv_budget = "T/16";
  const auto settings = parse_eval_settings(
      "dense,fovea,lserve:256,quest+every:4,quest+keep:2,int4-hadamard+streaming,"
      "mass+fp8+streaming:heads.json,quest:256+prefill:T/8",
      base);
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  ASSERT_EQ(settings->size(), 8u);
  const auto engine = [&](std::size_t i) { return (*settings)[i].engine; };
  EXPECT_EQ(engine(0).sparse, "off");
  EXPECT_EQ(engine(0).streaming, "off");
  EXPECT_EQ(engine(1).sparse, "fovea");
  EXPECT_EQ(engine(1).kv_budget, "T/16");
  EXPECT_EQ(engine(2).kv_budget, "256");
  EXPECT_EQ(engine(3).sparse_interval, 4);
  EXPECT_GT(engine(3).sparse_candidates, 0);
  EXPECT_EQ(engine(4).sparse_candidates, 0);
  EXPECT_EQ(engine(5).kv_dtype, DType::kI4);
  EXPECT_TRUE(engine(5).kv_rotated);
  EXPECT_EQ(engine(5).streaming, "auto");
  EXPECT_EQ(engine(6).kv_dtype, DType::kF8E4M3);
  EXPECT_EQ(engine(6).streaming, "heads.json");
  EXPECT_EQ(engine(6).sparse_prefill, "off");
  EXPECT_EQ(engine(7).sparse_prefill, "T/8");
  EXPECT_EQ((*settings)[6].name, "mass+fp8+streaming:heads.json");
}

TEST(EvalSettings, WrongOnesSayWhichPart) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"dense,best", "\"best\""},
                                                                  {"", "\"\""},
                                                                  {"dense,,quest", "\"\""},
                                                                  {"quest:12", "kv_budget"},
                                                                  {"quest+every:0", "every:0"},
                                                                  {"every:4", "no policy"},
                                                                  {"prefill:256", "no policy"},
                                                                  {"dense,dense", "twice"},
                                                                  {"int8+int4", "says twice"},
                                                                  {"dense+quest", "says twice"},
                                                                  {"quest+every:4+keep:8", "says twice"},
                                                                  {"streaming:", "names no heads"}};
  for (const auto& [list, part] : cases) {
    const auto settings = parse_eval_settings(list, {});
    ASSERT_FALSE(settings.ok()) << list;
    EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(settings.status().message().find(part), std::string::npos) << settings.status().message();
  }
}

TEST(EvalSettings, HowPromptsAreReadIsOfThoseThatSelect) {
  EngineOptions base;
  base.sparse_prefill = "T/8";
  const auto settings = parse_eval_settings("dense,quest", base);
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ((*settings)[0].engine.sparse_prefill, "off");
  EXPECT_EQ((*settings)[1].engine.sparse_prefill, "T/8");
}

TEST(EvalSettings, ThoseOfOneEngineAreGrouped) {
  const auto settings = parse_eval_settings(
      "dense,random,quest,lserve:256,fovea,int8,fovea+every:4,fovea+prefill:256,fovea:256+prefill:256", {});
  ASSERT_TRUE(settings.ok());
  const std::vector<EvalGroup> groups = group_eval_settings(*settings);
  ASSERT_EQ(groups.size(), 6u);
  EXPECT_EQ(groups[0].settings, (std::vector<std::size_t>{2, 3, 0, 1}));  // min/max, and those that need nothing
  EXPECT_EQ(groups[1].settings, (std::vector<std::size_t>{4}));
  EXPECT_EQ(groups[2].settings, (std::vector<std::size_t>{6}));
  EXPECT_EQ(groups[3].settings, (std::vector<std::size_t>{7}));  // their prompts read differently
  EXPECT_EQ(groups[4].settings, (std::vector<std::size_t>{8}));
  EXPECT_EQ(groups[5].settings, (std::vector<std::size_t>{5}));
  const auto all = parse_eval_settings("all", {});
  ASSERT_TRUE(all.ok()) << all.status().message();
  std::size_t grouped = 0;
  for (const EvalGroup& group : group_eval_settings(*all)) grouped += group.settings.size();
  EXPECT_EQ(grouped, all->size());
}

TEST(EvalSweep, AsksTheSameQuestionsUnderEverySetting) {
  const auto settings =
      parse_eval_settings("dense,quest:256,random:256,fovea+streaming,quest:256+prefill:256,mass:256+prefill:256", {});
  ASSERT_TRUE(settings.ok());
  NeedleEvalOptions options;
  options.contexts = {700};
  options.questions = 6;
  std::int64_t last = 0;
  const auto rows = sweep_needle(*settings, options, 0.0, [&](std::int64_t done, std::int64_t) { last = done; });
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ASSERT_EQ(rows->size(), 6u);
  EXPECT_EQ(last, 36);
  for (const SweepRow& row : *rows) EXPECT_EQ(row.cells[0].marks.size(), 6u) << row.setting.name;
  EXPECT_EQ(rows->front().cells[0].pages_kept, 0u);
  const SweepCell& quest = (*rows)[1].cells[0];
  EXPECT_EQ((*rows)[1].stat_bytes, 32);
  EXPECT_GT(quest.pages_read, 0u);
  EXPECT_EQ(quest.pages_read, quest.pages_expected);
  EXPECT_LT(2 * quest.pages_read, quest.pages_kept);
  EXPECT_GE(rows->front().cells[0].score.total.right, 5);
  EXPECT_LE((*rows)[2].cells[0].score.total.right, 2);
  EXPECT_EQ((*rows)[3].cells[0].pages_kept, 0u);  // below its budget of 4096
  for (const bool markdown : {false, true}) {
    const std::string table = sweep_table(*rows, markdown);
    EXPECT_NE(table.find("random:256"), std::string::npos);
    EXPECT_EQ(table.find("| quest:256 | "), markdown ? table.find("| quest") : std::string::npos);
  }
  const std::string json = sweep_json(*rows);
  EXPECT_NE(json.find("\"answers\":\"" + quest.marks + "\""), std::string::npos);
}

}  // namespace
}  // namespace fovea::app
