// The rules, case by case: what runs a batch, and that the reason names what decided.
#include "tune/plan_choice.h"

#include <gtest/gtest.h>

namespace fovea::tune {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20, kGiB = kMiB << 10;

KernelMenu menu_of(abi::KvDType kv_dtype = abi::KvDType::kBF16) {
  AttentionNeed need;
  need.kv_dtype = kv_dtype;
  return kernel_menu(need);
}

PlanFacts decode(std::int64_t pairs, std::int64_t kv_bytes, std::int64_t longest_bytes = 0) {
  PlanFacts facts;
  facts.decode = true;
  facts.most_q = 1;
  facts.pairs = pairs;
  facts.kv_bytes = kv_bytes;
  facts.longest_bytes = longest_bytes;
  return facts;
}

struct Expected {
  const char* name;
  KernelMenu menu;
  PlanFacts facts;
  PlanKernel kernel;
  PlanReason reason;
};

void expect(const Expected& e) {
  SCOPED_TRACE(e.name);
  const PlanChoice choice = choose_plan_kernel(e.menu, e.facts);
  EXPECT_EQ(kernel_name(choice.kernel), kernel_name(e.kernel));
  EXPECT_EQ(choice.reason, e.reason);
  const std::string words = describe(e.menu, e.facts, choice);
  EXPECT_TRUE(words.starts_with(std::string(kernel_name(e.kernel)) + ": ")) << words;
  EXPECT_GT(words.size(), kernel_name(e.kernel).size() + 10) << words;
}

TEST(PlanChoiceTest, DecodeByPairsAndBytes) {
  const KernelMenu bf16 = menu_of();
  const auto general = PlanKernel::kGeneral, warps = PlanKernel::kWarps, few = PlanKernel::kFew;
  for (const Expected& e : {
           Expected{"one request", bf16, decode(8, kMiB, kMiB), few, PlanReason::kFewPairs},
           Expected{"as many pairs as SMs", bf16, decode(132, kGiB), few, PlanReason::kFewPairs},
           Expected{"one more", bf16, decode(133, kGiB), general, PlanReason::kBetween},
           Expected{"192 pairs", bf16, decode(192, kGiB / 2), warps, PlanReason::kManyPairs},
           Expected{"512 pairs", bf16, decode(512, kGiB / 4), warps, PlanReason::kManyPairs},
           Expected{"511 pairs of little", bf16, decode(511, kGiB / 4), general, PlanReason::kBetween},
           Expected{"many short ones", bf16, decode(4096, kGiB / 8), general, PlanReason::kBetween},
           Expected{"one long", bf16, decode(512, kGiB, kGiB / 2), general, PlanReason::kOneLong},
           Expected{"a third of one", bf16, decode(512, kGiB, kGiB / 3), warps, PlanReason::kManyPairs},
       }) {
    expect(e);
  }
}

TEST(PlanChoiceTest, WhatOnlyTheGeneralKernelRuns) {
  const KernelMenu menu = menu_of();
  PlanFacts facts = decode(8, kMiB);
  facts.decode = false;
  facts.most_q = 5;
  expect({"drafts", menu, facts, PlanKernel::kGeneral, PlanReason::kLongQueries});
  EXPECT_NE(describe(menu, facts, choose_plan_kernel(menu, facts)).find("5 query tokens"), std::string::npos);
  facts.bit_mask = true;
  expect({"a tree of drafts", menu, facts, PlanKernel::kGeneral, PlanReason::kBitMask});
  facts = {};
  facts.given = true;
  expect({"a cascade", menu, facts, PlanKernel::kGeneral, PlanReason::kGivenRows});
  facts.decode = facts.selected = true;
  facts.pairs = 132;
  expect({"selected pages", menu, facts, PlanKernel::kFew, PlanReason::kFewPairs});
  facts.pairs = 133;
  expect({"of many", menu, facts, PlanKernel::kGeneral, PlanReason::kGivenRows});
}

TEST(PlanChoiceTest, SharingIsForWhatItSaves) {
  const KernelMenu menu = menu_of();
  PlanFacts facts = decode(1024, kGiB, kMiB);
  facts.shared_bytes = kGiB / 4;
  PlanChoice choice = choose_plan_kernel(menu, facts);
  EXPECT_EQ(choice.kernel, PlanKernel::kGeneral);
  EXPECT_EQ(choice.reason, PlanReason::kShares);
  EXPECT_TRUE(choice.share);
  EXPECT_NE(describe(menu, facts, choice).find("256.0 MiB are read instead of 1.0 GiB"), std::string::npos);
  // 64 pairs of requests with 48 tokens of 2,500 in common: read apart, as if they had none.
  facts.shared_bytes = kGiB - kGiB / 100;
  choice = choose_plan_kernel(menu, facts);
  EXPECT_EQ(choice.kernel, PlanKernel::kWarps);
  EXPECT_FALSE(choice.share);
  EXPECT_NE(describe(menu, facts, choice).find("save too little"), std::string::npos);
  facts.shared_bytes = kGiB + kMiB;  // tiles that read a run more often than requests would
  EXPECT_FALSE(choose_plan_kernel(menu, facts).share);
}

TEST(PlanChoiceTest, WhatAGraphRecordedStays) {
  const KernelMenu menu = menu_of();
  PlanFacts facts = decode(8, kMiB);
  facts.recorded = PlanKernel::kWarps;
  expect({"decode", menu, facts, PlanKernel::kWarps, PlanReason::kRecorded});
  EXPECT_FALSE(choose_plan_kernel(menu, facts).share);  // which that kernel does not do
  facts.decode = false;
  expect({"drafts", menu, facts, PlanKernel::kWarps, PlanReason::kCannotReplay});
  facts.recorded = PlanKernel::kGeneral;
  expect({"drafts again", menu, facts, PlanKernel::kGeneral, PlanReason::kRecorded});
  facts.given = facts.selected = facts.decode = true;
  facts.recorded = PlanKernel::kFew;
  expect({"selected pages", menu, facts, PlanKernel::kFew, PlanReason::kRecorded});
  facts.recorded = PlanKernel::kWarps;
  expect({"selected pages on warps", menu, facts, PlanKernel::kWarps, PlanReason::kCannotReplay});
}

TEST(PlanChoiceTest, TheCallerMayAsk) {
  KernelMenu menu = menu_of();
  menu.asked = PlanKernel::kWarps;
  expect({"few pairs", menu, decode(1, kMiB), PlanKernel::kWarps, PlanReason::kAsked});
  menu.no_warps = "head_dim";
  expect({"which there is not", menu, decode(1, kMiB), PlanKernel::kFew, PlanReason::kFewPairs});
  menu.no_warps.clear();
  PlanFacts drafts = decode(1, kMiB);
  drafts.decode = false;
  expect({"for what it cannot run", menu, drafts, PlanKernel::kGeneral, PlanReason::kLongQueries});
}

TEST(PlanChoiceTest, TheMenuSaysWhatOptionsRuleOut) {
  AttentionNeed need;
  need.group = 12;
  const KernelMenu menu = kernel_menu(need);
  EXPECT_NE(menu.no_warps.find("12 query heads"), std::string::npos);
  EXPECT_NE(menu.no_few.find("12 query heads"), std::string::npos);
  expect({"group of 12", menu, decode(1, kMiB), PlanKernel::kGeneral, PlanReason::kAlone});
  EXPECT_NE(describe(menu, decode(1, kMiB), {}).find("12 query heads"), std::string::npos);
}

}  // namespace
}  // namespace fovea::tune
