// The rules, case by case: what runs a batch, and that the reason names what decided.
#include "tune/plan_choice.h"

#include <gtest/gtest.h>

namespace fovea::tune {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20, kGiB = kMiB << 10;

KernelMenu menu_of(abi::KvDType kv_dtype = abi::KvDType::kBF16) {
  AttentionNeed need;
  need.kv_dtype = kv_dtype;
  return choose_kernels(need)->menu;
}

PlanFacts decode(std::int64_t pairs, std::int64_t kv_bytes, std::int64_t longest_bytes = 0) {
  PlanFacts facts;
  facts.decode = true;
  facts.most_q = 1;
  facts.pairs = pairs;
  facts.requests = (pairs + 7) / 8;
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

// The table of shapes at which a choice once cost a multiple.
TEST(PlanChoiceTest, DecodeByPairsAndBytes) {
  const KernelMenu bf16 = menu_of(), fp8 = menu_of(abi::KvDType::kF8E4M3), int4 = menu_of(abi::KvDType::kI4);
  KernelMenu d96 = menu_of();
  d96.why_not(PlanKernel::kLowBatch) = "head dims 64 and 128";
  const auto general = PlanKernel::kGeneral, warps = PlanKernel::kWarpPerWorker, few = PlanKernel::kLowBatch;
  for (const Expected& e : {
           Expected{"one request", bf16, decode(8, kMiB, kMiB), few, PlanReason::kFewPairs},
           Expected{"as many pairs as SMs", bf16, decode(132, kGiB), few, PlanReason::kFewPairs},
           Expected{"some more", fp8, decode(148, kGiB / 8), few, PlanReason::kFewPairs},
           Expected{"fp8, 1024 of 128", fp8, decode(8192, kGiB / 4, kMiB), warps, PlanReason::kManyPairs},
           Expected{"fp8, 512 of 256", fp8, decode(4096, kGiB / 4, kMiB), warps, PlanReason::kManyPairs},
           Expected{"fp8, 256 of 512", fp8, decode(2048, kGiB / 4, kMiB), warps, PlanReason::kManyPairs},
           Expected{"fp8, 64 of 2048", fp8, decode(512, kGiB / 4, 4 * kMiB), warps, PlanReason::kManyPairs},
           Expected{"int4, 63 of 8k", int4, decode(504, kGiB / 2, 8 * kMiB), warps, PlanReason::kManyPairs},
           Expected{"int4, 64 of 8k", int4, decode(512, kGiB / 2, 8 * kMiB), warps, PlanReason::kManyPairs},
           Expected{"40, some empty", bf16, decode(224, kGiB / 12, 6 * kMiB), warps, PlanReason::kManyPairs},
           Expected{"32 of 2k", bf16, decode(256, kGiB / 4, 8 * kMiB), general, PlanReason::kBetween},
           Expected{"of any length", bf16, decode(256, kGiB / 4, 16 * kMiB), warps, PlanReason::kManyPairs},
           Expected{"of 256", bf16, decode(256, kGiB / 32, kMiB), warps, PlanReason::kManyPairs},
           Expected{"int4, 3 of 200k", int4, decode(24, kGiB / 3, kGiB / 9), warps, PlanReason::kManyPairs},
           Expected{"64 of 4k", bf16, decode(512, kGiB, 16 * kMiB), warps, PlanReason::kManyPairs},
           Expected{"many short ones", bf16, decode(4096, kGiB / 8, kMiB), warps, PlanReason::kManyPairs},
           Expected{"D96, 32 of 2k", d96, decode(256, kGiB / 5, 6 * kMiB), warps, PlanReason::kManyPairs},
           Expected{"D96, one request", d96, decode(8, kGiB / 5, kGiB / 5), general, PlanReason::kBetween},
           Expected{"one long", bf16, decode(512, kGiB, kGiB / 2), general, PlanReason::kOneLong},
           Expected{"one long beside many", bf16, decode(16400, kGiB, kGiB / 2), warps, PlanReason::kManyPairs},
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
  facts.pairs = 220;
  expect({"selected pages", menu, facts, PlanKernel::kLowBatch, PlanReason::kFewPairs});
  facts.pairs = 221;
  expect({"of many", menu, facts, PlanKernel::kGeneral, PlanReason::kGivenRows});
}

// Drafts, and more query heads a KV head than warps take alone, go to teams of warps.
TEST(PlanChoiceTest, FewRowsGoToTeams) {
  const KernelMenu menu = menu_of();
  PlanFacts facts = decode(5352, 5352 * 27000, 0);  // 669 requests of 54 tokens, 3 query tokens
  facts.decode = false;
  facts.most_q = 3;
  facts.most_rows = 12;
  expect({"drafts", menu, facts, PlanKernel::kWarpTeams, PlanReason::kFewRows});
  facts.most_rows = 8;
  expect({"of MHA", menu, facts, PlanKernel::kGeneral, PlanReason::kLongQueries});
  facts.kv_bytes = facts.pairs * 180'000;  // of 700 tokens
  expect({"of MHA, longer", menu, facts, PlanKernel::kPrefill, PlanReason::kLongQueries});
  expect({"of MHA, fp8", menu_of(abi::KvDType::kF8E4M3), facts, PlanKernel::kWarpTeams, PlanReason::kFewRows});
  facts.most_rows = 12;
  expect({"a tile of rows, longer", menu, facts, PlanKernel::kPrefill, PlanReason::kLongQueries});
  KernelMenu d96 = menu;
  d96.head_dim = 96;
  expect({"of head dim 96", d96, facts, PlanKernel::kWarpTeams, PlanReason::kFewRows});
  facts.kv_bytes = facts.pairs * 3328;  // of 13 tokens
  expect({"of a few tokens", menu, facts, PlanKernel::kGeneral, PlanReason::kLongQueries});
  facts.kv_bytes = 5352 * 27000;
  facts.most_rows = 17;
  expect({"more than a block of rows", menu, facts, PlanKernel::kPrefill, PlanReason::kLongQueries});
  facts.most_rows = 16;
  facts.pairs = 395;
  expect({"fewer requests", menu, facts, PlanKernel::kGeneral, PlanReason::kLongQueries});
  KernelMenu d112 = menu;
  d112.head_dim = 112;
  expect({"of head dim 112", d112, facts, PlanKernel::kPrefill, PlanReason::kLongQueries});
  const KernelMenu fp8 = menu_of(abi::KvDType::kF8E4M3);
  facts.most_rows = 32;
  facts.pairs = 99;
  expect({"of fp8", fp8, facts, PlanKernel::kWarpTeams, PlanReason::kFewRows});
  facts.longest_bytes = facts.kv_bytes / 2;
  expect({"of fp8, one long", fp8, facts, PlanKernel::kGeneral, PlanReason::kLongQueries});
  facts.pairs = 264;
  expect({"of fp8, one long beside many", fp8, facts, PlanKernel::kWarpTeams, PlanReason::kFewRows});
  facts.longest_bytes = 0;
  facts.pairs = 98;
  expect({"of fp8, few pairs", fp8, facts, PlanKernel::kGeneral, PlanReason::kLongQueries});
  facts.most_rows = 8;
  facts.pairs = 527;
  expect({"of fp8, short drafts", fp8, facts, PlanKernel::kGeneral, PlanReason::kLongQueries});
  facts.pairs = 528;
  expect({"of fp8, short drafts of many", fp8, facts, PlanKernel::kWarpTeams, PlanReason::kFewRows});
  facts.most_rows = 33;
  facts.flops = 60 * facts.kv_bytes;
  expect({"two tiles", fp8, facts, PlanKernel::kPrefill, PlanReason::kLongQueries});
  facts.flops /= 4;
  expect({"of most requests one", fp8, facts, PlanKernel::kWarpTeams, PlanReason::kFewRows});
  facts.kv_bytes = 1 << 20;
  facts.flops = 60 << 20;
  expect({"of few tokens", fp8, facts, PlanKernel::kWarpTeams, PlanReason::kFewRows});
  facts.flops = 257 << 20;
  expect({"of few tokens and many rows", fp8, facts, PlanKernel::kPrefill, PlanReason::kLongQueries});
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
  EXPECT_EQ(choice.kernel, PlanKernel::kWarpPerWorker);
  EXPECT_FALSE(choice.share);
  EXPECT_NE(describe(menu, facts, choice).find("read once"), std::string::npos);
  facts.shared_bytes = kGiB + kMiB;  // tiles that read a run more often than requests would
  EXPECT_FALSE(choose_plan_kernel(menu, facts).share);
}

// MB as cases have them: what requests see, what is read where runs are shared, and which of the two was faster.
// MB and TFLOP as cases have them: what requests see, what is read where runs are shared, and which was faster.
TEST(PlanChoiceTest, SharingByMeasuredCases) {
  struct Case {
    const char* name;
    abi::KvDType dtype;
    bool shared_kernel, decode;
    double all, read, gflop;
    std::int64_t rows;
    bool share;
  };
  constexpr auto kBF16 = abi::KvDType::kBF16, kF8 = abi::KvDType::kF8E4M3;
  for (const Case& c : {
           Case{"one document, bf16", kBF16, true, true, 4388, 160, 0, 2048, true},
           Case{"one document, fp8", kF8, false, true, 2194, 80, 0, 2048, true},
           Case{"one document, soft-cap", kBF16, false, true, 4388, 160, 0, 2048, true},
           Case{"one prompt of 3k", kBF16, true, true, 866, 73, 0, 2048, true},
           Case{"the smallest tree of PAT", kBF16, true, true, 185, 34, 0, 320, true},
           Case{"64 pairs with little in common", kBF16, true, true, 1336, 1324, 0, 4096, false},
           Case{"5 requests of 6k", kBF16, true, true, 253, 127, 0, 140, false},
           Case{"21 of 40 heads", kBF16, true, true, 1649, 959, 0, 840, true},
           Case{"10 over a tree, D192", kBF16, false, true, 191, 132, 0, 640, false},
           Case{"406 drafts, int8", abi::KvDType::kI8, false, false, 162, 54, 9.7, 24360, false},
           Case{"4 drafts over a document, fp8", kF8, false, false, 1524, 669, 138, 576, true},
           Case{"61 drafts of 10", kBF16, true, false, 327, 164, 35, 17080, true},
           Case{"30 drafts of 11 over a document", kBF16, true, false, 800, 240, 154, 21120, true},
       }) {
    KernelMenu menu = menu_of(c.dtype);
    menu.shared_kernel = c.shared_kernel;
    PlanFacts facts = decode(1024, static_cast<std::int64_t>(c.all * 1e6), kMiB);
    facts.decode = c.decode;
    facts.rows = c.rows;
    facts.most_q = c.decode ? 1 : 32;
    facts.flops = static_cast<std::int64_t>(c.gflop * 1e9);
    facts.shared_bytes = static_cast<std::int64_t>(c.read * 1e6);
    EXPECT_EQ(choose_plan_kernel(menu, facts).share, c.share) << c.name;
  }
}

TEST(PlanChoiceTest, WhatAGraphRecordedStays) {
  const KernelMenu menu = menu_of();
  PlanFacts facts = decode(8, kMiB);
  facts.captured = PlanKernel::kWarpPerWorker;
  expect({"decode", menu, facts, PlanKernel::kWarpPerWorker, PlanReason::kCaptured});
  EXPECT_FALSE(choose_plan_kernel(menu, facts).share);  // which that kernel does not do
  facts.decode = false;
  expect({"drafts, token by token", menu, facts, PlanKernel::kWarpPerWorker, PlanReason::kCaptured});
  facts.bit_mask = true;
  expect({"a tree of drafts", menu, facts, PlanKernel::kWarpPerWorker, PlanReason::kCannotReplay});
  facts.bit_mask = false;
  facts.captured = PlanKernel::kGeneral;
  expect({"drafts again", menu, facts, PlanKernel::kGeneral, PlanReason::kCaptured});
  facts.given = facts.selected = facts.decode = true;
  facts.captured = PlanKernel::kLowBatch;
  expect({"selected pages", menu, facts, PlanKernel::kLowBatch, PlanReason::kCaptured});
  facts.captured = PlanKernel::kWarpPerWorker;
  expect({"selected pages on warps", menu, facts, PlanKernel::kWarpPerWorker, PlanReason::kCannotReplay});
}

// A graph that was captured with dummies of one token replays the kernel that a fresh plan of real lengths takes.
TEST(PlanChoiceTest, DummyLengthsChooseAsRealOnes) {
  for (const abi::KvDType dtype : {abi::KvDType::kBF16, abi::KvDType::kF8E4M3, abi::KvDType::kI4}) {
    const KernelMenu menu = menu_of(dtype);
    for (const std::int64_t pairs : {1, 8, 64, 132, 200, 512, 8192}) {
      const PlanChoice dummies = choose_plan_kernel(menu, decode(pairs, pairs * 256, 256));
      const PlanChoice real = choose_plan_kernel(menu, decode(pairs, pairs * kMiB, kMiB));
      EXPECT_EQ(kernel_name(dummies.kernel), kernel_name(real.kernel)) << pairs;
    }
  }
}

TEST(PlanChoiceTest, TheCallerMayAsk) {
  KernelMenu menu = menu_of();
  menu.asked = PlanKernel::kWarpPerWorker;
  expect({"few pairs", menu, decode(1, kMiB), PlanKernel::kWarpPerWorker, PlanReason::kAsked});
  menu.why_not(PlanKernel::kWarpPerWorker) = "head_dim";
  expect({"which there is not", menu, decode(1, kMiB), PlanKernel::kLowBatch, PlanReason::kFewPairs});
  menu.why_not(PlanKernel::kWarpPerWorker).clear();
  PlanFacts drafts = decode(1, kMiB);
  drafts.decode = false;
  expect({"drafts", menu, drafts, PlanKernel::kWarpPerWorker, PlanReason::kAsked});
  drafts.bit_mask = true;
  expect({"for what it cannot run", menu, drafts, PlanKernel::kGeneral, PlanReason::kBitMask});
}

TEST(PlanChoiceTest, TheMenuSaysWhatOptionsRuleOut) {
  AttentionNeed need;
  need.group = 12;
  const KernelMenu menu = choose_kernels(need)->menu;
  EXPECT_NE(menu.why_not(PlanKernel::kWarpPerWorker).find("12 query heads"), std::string::npos);
  EXPECT_NE(menu.why_not(PlanKernel::kLowBatch).find("12 query heads"), std::string::npos);
  expect({"group of 12", menu, decode(1, kMiB), PlanKernel::kGeneral, PlanReason::kAlone});
  EXPECT_NE(describe(menu, decode(1, kMiB), {}).find("12 query heads"), std::string::npos);
}

TEST(PlanChoiceTest, ManyQueryTokensGoToWideTiles) {
  const KernelMenu bf16 = menu_of(), fp8 = menu_of(abi::KvDType::kF8E4M3);
  KernelMenu asked = menu_of();
  asked.asked = PlanKernel::kGeneral;
  KernelMenu fp8_asked = fp8;
  fp8_asked.asked = PlanKernel::kPrefill;
  PlanFacts prompt;
  prompt.most_q = 512;
  prompt.most_rows = 2048;
  prompt.pairs = 8;
  prompt.kv_bytes = prompt.longest_bytes = kMiB;
  PlanFacts tree = prompt;
  tree.bit_mask = true;
  PlanFacts given = prompt;
  given.given = true;
  PlanFacts draft = prompt;
  draft.most_q = 4;
  draft.most_rows = 16;
  PlanFacts dense = prompt, beside_decodes = prompt;
  dense.flops = 256 * prompt.kv_bytes;
  beside_decodes.flops = dense.flops - 1;
  for (const Expected& e : {
           Expected{"a prompt", bf16, prompt, PlanKernel::kPrefill, PlanReason::kLongQueries},
           Expected{"a tree of many tokens", bf16, tree, PlanKernel::kPrefill, PlanReason::kLongQueries},
           Expected{"block rows", bf16, given, PlanKernel::kPrefill, PlanReason::kLongQueries},
           Expected{"four tokens", bf16, draft, PlanKernel::kGeneral, PlanReason::kLongQueries},
           Expected{"8-bit KV, full tiles", fp8, dense, PlanKernel::kPrefill, PlanReason::kLongQueries},
           Expected{"8-bit KV, mostly decodes", fp8, beside_decodes, PlanKernel::kGeneral, PlanReason::kLongQueries},
           Expected{"8-bit KV, asked for", fp8_asked, prompt, PlanKernel::kPrefill, PlanReason::kAsked},
           Expected{"another is asked for", asked, prompt, PlanKernel::kGeneral, PlanReason::kAsked},
       }) {
    expect(e);
  }
  EXPECT_FALSE(choose_plan_kernel(bf16, prompt).share);
}

}  // namespace
}  // namespace fovea::tune
