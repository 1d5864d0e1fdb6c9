// The choices that matter, written out: a change of the table is a change of this file.
#include "tune/attention_choice.h"

#include <gtest/gtest.h>

#include <map>

namespace fovea::tune {
namespace {

int macro(const AttentionChoice& choice, const std::string& name) {
  for (const auto& [key, value] : choice.tuning) {
    if (key == name) return value;
  }
  return -1;
}

TEST(AttentionChoiceTest, HopperTakesPagesByTma) {
  struct Expected {
    int head_dim, page_tokens;
    abi::KvDType kv;
    bool tma;
    int box, stages, stage_tokens;
  };
  constexpr auto kBF16 = abi::KvDType::kBF16;
  constexpr auto kF8 = abi::KvDType::kF8E4M3;
  for (const Expected& e : {
           Expected{128, 16, kBF16, true, 16, 6, 64},
           Expected{128, 64, kBF16, true, 64, 6, 64},
           Expected{128, 256, kBF16, true, 64, 6, 64},
           Expected{128, 24, kBF16, false, 64, 6, 64},
           Expected{128, 48, kBF16, true, 16, 6, 64},
           Expected{128, 1, kBF16, false, 64, 6, 64},
           Expected{128, 12, kBF16, false, 64, 6, 64},
           Expected{64, 16, kBF16, false, 64, 12, 64},
           Expected{64, 32, kBF16, true, 32, 12, 64},
           Expected{256, 16, kBF16, true, 16, 5, 32},
           Expected{128, 16, kF8, false, 64, 12, 64},
           Expected{128, 32, kF8, true, 32, 12, 64},
           Expected{256, 1, kF8, false, 64, 3, 64},
       }) {
    AttentionNeed need;
    need.head_dim = e.head_dim;
    need.page_tokens = e.page_tokens;
    need.kv_dtype = e.kv;
    const Result<AttentionChoice> choice = choose_attention(need);
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    SCOPED_TRACE(testing::Message() << "head_dim " << e.head_dim << ", pages of " << e.page_tokens);
    EXPECT_EQ(choice->tma, e.tma);
    EXPECT_EQ(choice->box_tokens, e.box);
    EXPECT_EQ(macro(*choice, "FOVEA_STAGES"), e.stages);
    EXPECT_EQ(macro(*choice, "FOVEA_STAGE_TOKENS"), e.stage_tokens);
    EXPECT_EQ(choice->threads, e.head_dim > 128 ? 256 : 384);
    EXPECT_LE(choice->smem_bytes, 232448);
    EXPECT_TRUE(choice->programmatic_launch);
    EXPECT_EQ(choice->num_workers, 132);
  }
}

TEST(AttentionChoiceTest, OlderGpusGather) {
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_120"}) {
    for (int head_dim = 32; head_dim <= 256; head_dim += 16) {
      AttentionNeed need;
      need.arch = arch;
      need.head_dim = head_dim;
      const Result<AttentionChoice> choice = choose_attention(need);
      ASSERT_TRUE(choice.ok()) << arch << ", head_dim " << head_dim << ": " << choice.status().message();
      EXPECT_FALSE(choice->tma);
      EXPECT_FALSE(choice->programmatic_launch);
      EXPECT_EQ(macro(*choice, "FOVEA_STAGES") % 3, 0);
      EXPECT_EQ(choice->threads, head_dim > 80 ? 256 : 384);
      EXPECT_LE(choice->tile_rows, (choice->threads - 128) / 2);
    }
  }
}

TEST(AttentionChoiceTest, RowsWhoseBitsAreTheirOwnHaveNarrowTiles) {
  AttentionNeed need;
  EXPECT_EQ(choose_attention(need)->tile_rows, 128);
  need.batch_invariant = true;
  EXPECT_EQ(choose_attention(need)->tile_rows, 16);
  need.batch_invariant = false;
  need.transforms_kv = true;
  EXPECT_EQ(choose_attention(need)->tile_rows, 16);
}

TEST(AttentionChoiceTest, WideGroupsHaveAQueryTokenATileAtLeast) {
  AttentionNeed need;
  for (const auto& [group, invariant_rows] : {std::pair{16, 16}, {17, 32}, {32, 32}, {33, 64}, {71, 128}, {128, 128}}) {
    SCOPED_TRACE(group);
    need.group = group;
    need.batch_invariant = false;
    const Result<AttentionChoice> choice = choose_attention(need);
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    EXPECT_EQ(choice->tile_rows, 128);
    EXPECT_TRUE(choice->shared_tile_rows == 0 || choice->shared_tile_rows >= group);
    need.batch_invariant = true;
    EXPECT_EQ(choose_attention(need)->tile_rows, invariant_rows);
  }
}

TEST(AttentionChoiceTest, SaysWhatIsNotSupported) {
  const auto message = [](auto change) {
    AttentionNeed need;
    change(need);
    const Result<AttentionChoice> choice = choose_attention(need);
    return choice.ok() ? std::string() : std::string(choice.status().message());
  };
  EXPECT_NE(message([](AttentionNeed& n) { n.head_dim = 24; }).find("multiples of 16"), std::string::npos);
  EXPECT_NE(message([](AttentionNeed& n) { n.head_dim = 272; }).find("272"), std::string::npos);
  EXPECT_NE(message([](AttentionNeed& n) { n.group = 129; }).find("1 to 128"), std::string::npos);
  EXPECT_NE(message([](AttentionNeed& n) {
              n.group = 65;
              n.head_dim = 256;
            }).find("up to 64"),
            std::string::npos);
  EXPECT_NE(message([](AttentionNeed& n) {
              n.group = 17;
              n.transforms_kv = true;
            }).find("up to 16"),
            std::string::npos);
  EXPECT_NE(message([](AttentionNeed& n) { n.arch = "sm_75"; }).find("sm_80 or later"), std::string::npos);
  EXPECT_NE(message([](AttentionNeed& n) { n.arch = "gfx90a"; }).find("gfx90a"), std::string::npos);
  EXPECT_NE(message([](AttentionNeed& n) { n.q_dtype = abi::KvDType::kF32; }).find("f16 and bf16"), std::string::npos);
  EXPECT_NE(message([](AttentionNeed& n) { n.kv_dtype = abi::KvDType::kF32; }).find("fp8_e4m3"), std::string::npos);
  EXPECT_NE(message([](AttentionNeed& n) {
              n.kv_dtype = abi::KvDType::kF8E4M3;
              n.transforms_kv = true;
            }).find("hooks"),
            std::string::npos);
}

TEST(AttentionChoiceTest, TensorMapOfAPool) {
  AttentionNeed need;
  const AttentionChoice choice = *choose_attention(need);
  abi::KvPoolView pool{};  // [7 pages, 16 tokens, 8 heads, 128]
  pool.dtype = abi::KvDType::kBF16;
  pool.page_tokens = 16;
  pool.num_pages = 7;
  pool.token_stride = 8 * 128;
  pool.head_stride = 128;
  pool.page_stride = 16 * 8 * 128;
  const KvTensorMap map = kv_tensor_map(choice, pool, 8, 128);
  EXPECT_EQ(map.rank, 5u);
  EXPECT_EQ(map.swizzle_bytes, 128);
  const std::uint64_t dims[5] = {64, 16, 2, 8, 7};
  const std::uint64_t strides[5] = {2, 2048, 128, 256, 32768};
  const std::uint32_t box[5] = {64, 16, 2, 1, 1};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(map.dims[i], dims[i]) << i;
    EXPECT_EQ(map.strides[i], strides[i]) << i;
    EXPECT_EQ(map.box[i], box[i]) << i;
  }
}

TEST(AttentionChoiceTest, BoxesOfTheWideTilesReachBeyondRowsThatAreNoWholePanels) {
  AttentionNeed need;
  need.head_dim = 80;
  const Result<AttentionChoice> choice = choose_prefill_attention(need);
  ASSERT_TRUE(choice.ok()) << choice.status().to_string();
  abi::KvPoolView pool{};
  pool.dtype = abi::KvDType::kBF16;
  pool.page_tokens = 16;
  pool.num_pages = 7;
  pool.token_stride = 8 * 80;
  pool.head_stride = 80;
  pool.page_stride = 16 * 8 * 80;
  const KvTensorMap map = kv_tensor_map(*choice, pool, 8, 80);
  EXPECT_EQ(map.swizzle_bytes, 128);
  EXPECT_EQ(map.dims[0], 80u);  // a box from element 64 on has 16 of a row, and zeros
  EXPECT_EQ(map.dims[2], 1u);
  EXPECT_EQ(map.box[0], 64u);
  EXPECT_EQ(map.box[2], 1u);
  need.head_dim = 160;
  EXPECT_FALSE(choose_prefill_attention(need).ok());
}

TEST(AttentionChoiceTest, WarpsTakeDecodeOfUpToEightHeads) {
  struct Expected {
    int head_dim, page_tokens;
    abi::KvDType kv;
    bool tma;
    int threads, slots, workers;
  };
  constexpr auto kBF16 = abi::KvDType::kBF16;
  constexpr auto kF8 = abi::KvDType::kF8E4M3;
  for (const Expected& e : {
           Expected{128, 16, kBF16, true, 256, 2, 1024},
           Expected{128, 48, kBF16, true, 256, 2, 1024},
           Expected{128, 8, kBF16, false, 256, 2, 1024},
           Expected{64, 16, kBF16, true, 256, 6, 1024},
           Expected{256, 16, kBF16, true, 128, 2, 512},
           Expected{128, 1, kF8, false, 256, 5, 1024},
           Expected{128, 16, abi::KvDType::kI8, true, 256, 5, 1024},
           Expected{128, 16, abi::KvDType::kI4, false, 256, 3, 1024},
       }) {
    AttentionNeed need;
    need.head_dim = e.head_dim;
    need.page_tokens = e.page_tokens;
    need.kv_dtype = e.kv;
    const Result<AttentionChoice> choice = choose_warp_per_worker_attention(need);
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    SCOPED_TRACE(testing::Message() << "head_dim " << e.head_dim << ", pages of " << e.page_tokens);
    EXPECT_EQ(choice->tma, e.tma);
    EXPECT_EQ(choice->box_tokens, 16);
    EXPECT_EQ(choice->threads, e.threads);
    EXPECT_EQ(macro(*choice, "FOVEA_SLOTS"), e.slots);
    EXPECT_EQ(choice->num_workers, e.workers);
    EXPECT_EQ(choice->ctas * choice->threads / 32, choice->num_workers);  // a warp a worker
    EXPECT_LE(choice->smem_bytes, 232448);
  }
  AttentionNeed need;
  need.num_sms = 108;  // 1024 of 864 would be too many, 512 too few
  EXPECT_EQ(choose_warp_per_worker_attention(need)->num_workers, 864);
  need.group = 9;
  EXPECT_EQ(choose_warp_per_worker_attention(need).status().code(), StatusCode::kUnsupported);
  for (bool AttentionNeed::*off :
       {&AttentionNeed::batch_invariant, &AttentionNeed::transforms_kv, &AttentionNeed::checked}) {
    AttentionNeed other;
    other.*off = true;
    EXPECT_EQ(choose_warp_per_worker_attention(other).status().code(), StatusCode::kUnsupported);
  }
}

TEST(AttentionChoiceTest, FewPairsHaveAKernel) {
  AttentionNeed need;
  for (const int head_dim : {64, 128}) {
    for (const int group : {1, 4, 8}) {
      need.head_dim = head_dim;
      need.group = group;
      const Result<AttentionChoice> choice = choose_low_batch_attention(need);
      ASSERT_TRUE(choice.ok()) << choice.status().message();
      EXPECT_EQ(choice->threads, head_dim == 64 ? 512 : 384);
      EXPECT_EQ(macro(*choice, "FOVEA_FEW_ROWS"), group);
      EXPECT_EQ(choice->num_workers, 132);
      EXPECT_EQ(choice->ctas, 132);
      EXPECT_LE(choice->smem_bytes, 232448);
    }
  }
  AttentionNeed hopper;
  EXPECT_EQ(macro(*choose_low_batch_attention(hopper), "FOVEA_SLICES"), 1);
  hopper.kv_dtype = abi::KvDType::kF8E4M3;
  EXPECT_EQ(macro(*choose_low_batch_attention(hopper), "FOVEA_SLICES"), 2);
  EXPECT_FALSE(choose_low_batch_attention(hopper)->tma);
  EXPECT_TRUE(choose_low_batch_attention(hopper)->programmatic_launch);
  hopper.arch = "sm_80";
  EXPECT_FALSE(choose_low_batch_attention(hopper)->programmatic_launch);
  using Change = void (*)(AttentionNeed&);
  for (const Change change :
       {Change{[](AttentionNeed& n) { n.group = 9; }}, Change{[](AttentionNeed& n) { n.head_dim = 256; }},
        Change{[](AttentionNeed& n) { n.kv_dtype = abi::KvDType::kI8; }}, Change{[](AttentionNeed& n) {
          n.kv_dtype = abi::KvDType::kF8E4M3;
          n.token_scales = true;
        }},
        Change{[](AttentionNeed& n) { n.batch_invariant = true; }},
        Change{[](AttentionNeed& n) { n.transforms_kv = true; }},
        Change{[](AttentionNeed& n) { n.transforms_q = true; }}, Change{[](AttentionNeed& n) { n.checked = true; }}}) {
    AttentionNeed other;
    change(other);
    EXPECT_EQ(choose_low_batch_attention(other).status().code(), StatusCode::kUnsupported);
  }
}

TEST(AttentionChoiceTest, PlansThatShareHaveAKernelWhereLogitsArePlain) {
  AttentionNeed need;
  EXPECT_EQ(choose_attention(need)->shared_header, "kernels/attention/prefix_forest/kernel.cuh");
  need.page_tokens = 8;  // gathered
  EXPECT_EQ(choose_attention(need)->shared_header.empty(), choose_attention(need)->tma);
  using Change = void (*)(AttentionNeed&);
  for (const Change change :
       {Change{[](AttentionNeed& n) { n.plain_logits = false; }}, Change{[](AttentionNeed& n) { n.head_dim = 256; }},
        Change{[](AttentionNeed& n) { n.kv_dtype = abi::KvDType::kF8E4M3; }},
        Change{[](AttentionNeed& n) { n.arch = "sm_80"; }}}) {
    AttentionNeed other;
    change(other);
    EXPECT_TRUE(choose_attention(other)->shared_header.empty());
  }
}

TEST(AttentionChoiceTest, EveryArchitectureHasRoomForWarps) {
  for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_120"}) {
    for (int head_dim = 32; head_dim <= 192; head_dim += 16) {
      AttentionNeed need;
      need.arch = arch;
      need.head_dim = head_dim;
      const Result<AttentionChoice> choice = choose_warp_per_worker_attention(need);
      ASSERT_TRUE(choice.ok()) << arch << ", head_dim " << head_dim << ": " << choice.status().message();
      EXPECT_GE(macro(*choice, "FOVEA_SLOTS"), 1);
    }
  }
}

}  // namespace
}  // namespace fovea::tune
