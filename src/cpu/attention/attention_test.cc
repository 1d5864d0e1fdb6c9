// The executor against the oracle, over random batches and plans, on every SIMD target.
#include "cpu/attention/attention.h"

#include <algorithm>
#include <array>
#include <limits>

#include "cpu/attention/attention_test_util.h"
#include "cpu/attention/item.h"

namespace fovea::cpu {
namespace {

using testing::AttentionCase;
using testing::CaseSpec;
using testing::make_case;

constexpr DType kKvTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

class AttentionTest : public EveryTarget {};

TEST_P(AttentionTest, DecodeOfMixedLengthsForEveryGroup) {
  Judge judge;
  CaseSpec spec;
  spec.kv_lens = {0, 1, 15, 16, 17, 64, 65, 300, 700};
  spec.q_lens.assign(spec.kv_lens.size(), 1);
  spec.q_lens[0] = 0;
  for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    spec.group = group;
    spec.kv_dtype = GetParam().products == AttentionProducts::kBF16 ? DType::kBF16 : kKvTypes[group % 3];
    spec.head_dim = group % 2 == 0 ? 128 : 64;
    spec.seed = static_cast<std::uint64_t>(group);
    RunSpec run;
    run.num_workers = group % 8 + 1;
    for (const bool heads_first : {false, true}) {  // products of bf16 have kernels of their own for each
      spec.heads_first = heads_first;
      judge.run(make_case(spec), run);
    }
  }
}

// More heads than one call takes at once, whole blocks and parts of one, and workers that begin at a head in between.
TEST_P(AttentionTest, DecodeOfManyHeads) {
  Judge judge;
  CaseSpec spec;
  spec.kv_heads = kMaxHeadsAtOnce + 3;
  spec.kv_lens = {64, 200, 31, 130};
  spec.q_lens.assign(spec.kv_lens.size(), 1);
  spec.heads_first = true;
  for (const auto [group, head_dim, workers] : {std::array{1, 128, 1}, std::array{4, 64, 3}, std::array{8, 256, 5}}) {
    spec.group = group;
    spec.head_dim = head_dim;
    spec.kv_dtype = DType::kBF16;
    spec.seed = static_cast<std::uint64_t>(group);
    RunSpec run;
    run.num_workers = workers;
    judge.run(make_case(spec), run);
  }
}

// Lengths that outgrow a plan: open ends follow kv_lens, with the positions of the queries moved along (docs/plan.md).
TEST_P(AttentionTest, OpenEndsFollowLengthsThatOutgrowThePlan) {
  Judge judge;
  for (const abi::MaskKind mask : {abi::MaskKind::kNone, abi::MaskKind::kCausal}) {
    for (const std::int32_t growth : {1, 15, 70}) {
      CaseSpec spec;
      spec.kv_lens = {71, 80, 200, 700, 333};
      spec.q_lens = {1, 1, 3, 1, 4};
      spec.shared_tokens = 48;
      spec.mask = mask;
      spec.seed = static_cast<std::uint64_t>(growth);
      AttentionCase c = make_case(spec);
      for (const bool share : {false, true}) {
        RunSpec run;
        run.num_workers = 3;
        run.share_prefixes = share;
        for (std::int32_t& length : c.spec.kv_lens) length = std::max(length - growth, 5);
        const Planner planner = make_planner(c, run);
        c.spec.kv_lens = spec.kv_lens;
        abi::PlanView plan = planner.view();
        std::vector<std::int32_t> q_pos;
        for (std::size_t i = 0; i < spec.kv_lens.size(); ++i) {
          for (int j = 0; j < spec.q_lens[i]; ++j) q_pos.push_back(spec.kv_lens[i] - spec.q_lens[i] + j);
        }
        q_pos.resize(3 * q_pos.size());  // rows under shared runs see all of them, wherever they stand
        plan.q_pos = q_pos.data();
        plan.kv_lens = spec.kv_lens.data();
        const VariantSetup setup = variant_setup(c, run.variant);
        const RunResult result =
            run_plan(c, plan, setup.params, attention_kernels(run.variant), run.out_dtype, test_threads());
        judge.judge(c, setup.oracle, run.out_dtype, result, c.describe() + ", grown by " + std::to_string(growth));
      }
    }
  }
}

TEST_P(AttentionTest, CausalPrefillAndChunks) {
  Judge judge;
  CaseSpec spec;
  spec.q_lens = {1, 70, 130, 33, 0};
  spec.kv_lens = {1, 70, 200, 400, 5};
  for (const DType dtype : kKvTypes) {
    spec.kv_dtype = dtype;
    spec.heads_first = dtype == DType::kF16;
    RunSpec run;
    run.num_workers = 3;
    run.tile_rows = dtype == DType::kF32 ? 32 : 128;
    judge.run(make_case(spec), run);
  }
}

TEST_P(AttentionTest, EveryHeadDim) {
  Judge judge;
  CaseSpec spec;
  spec.q_lens = {1, 9};
  spec.kv_lens = {77, 33};
  for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
    spec.head_dim = head_dim;
    spec.group = 1 + head_dim / 16 % 4;
    for (const DType dtype : kKvTypes) {
      spec.kv_dtype = dtype;
      spec.seed = static_cast<std::uint64_t>(head_dim);
      for (const bool heads_first : {false, true}) {
        spec.heads_first = heads_first;
        judge.run(make_case(spec), RunSpec{});
      }
    }
  }
}

TEST_P(AttentionTest, EveryPageSizeAndLayout) {
  Judge judge;
  CaseSpec spec;
  for (const int page : {1, 2, 3, 5, 8, 16, 24, 32, 64}) {
    spec.page_tokens = page;
    spec.kv_lens = {0, 1, std::max(1, page - 1), page, page + 1, 5 * page + 2, 130};
    spec.q_lens.assign(spec.kv_lens.size(), 1);
    spec.q_lens.back() = 6;
    for (const bool heads_first : {false, true}) {
      spec.heads_first = heads_first;
      spec.pad_elements = page % 2 == 0 ? 0 : 7;
      spec.kv_dtype = kKvTypes[page % 3];
      spec.seed = static_cast<std::uint64_t>(page);
      RunSpec run;
      run.num_workers = page % 5 + 1;
      judge.run(make_case(spec), run);
    }
  }
}

TEST_P(AttentionTest, EveryMask) {
  Judge judge;
  CaseSpec spec;
  spec.q_lens = {1, 20, 40, 8, 3};
  spec.kv_lens = {150, 20, 170, 9, 64};
  const auto run_all = [&] {
    for (const bool share : {false, true}) {
      spec.shared_tokens = share ? 64 : 0;
      for (const int workers : {1, 5}) {
        RunSpec run;
        run.num_workers = workers;
        run.share_prefixes = share;
        judge.run(make_case(spec), run);
      }
      ++spec.seed;
    }
  };
  spec.mask = abi::MaskKind::kNone;
  run_all();
  spec.mask = abi::MaskKind::kCausal;
  run_all();
  spec.mask = abi::MaskKind::kWindow;
  for (const int left : {0, 5, 63, 100}) {
    spec.window_left = left;
    run_all();
  }
  spec.mask = abi::MaskKind::kBits;
  run_all();
  spec.mask_tail = 40;
  run_all();
}

TEST_P(AttentionTest, EveryVariantSharedAndSplit) {
  for (int id = 0; id < kNumVariants; ++id) {
    Judge judge;
    CaseSpec spec;
    spec.q_lens = {1, 1, 1, 1, 1, 12, 3, 0};
    spec.kv_lens = {200, 210, 250, 190, 1, 140, 3, 0};
    spec.shared_tokens = 170;
    spec.logit_scale = 3.0f;
    for (const bool share : {false, true}) {
      for (const bool invariant : {false, true}) {
        for (const int workers : {1, 8}) {
          RunSpec run;
          run.variant = static_cast<VariantId>(id);
          run.num_workers = workers;
          run.share_prefixes = share;
          run.batch_invariant = invariant;
          spec.seed = static_cast<std::uint64_t>(id * 8 + workers);
          spec.kv_dtype = kKvTypes[(id + workers) % 3];
          judge.run(make_case(spec), run);
        }
      }
    }
  }
}

TEST_P(AttentionTest, Bf16QueriesAndOutputs) {
  Judge judge;
  CaseSpec spec;
  spec.q_lens = {1, 60, 1, 17};
  spec.kv_lens = {300, 90, 41, 17};
  spec.q_bf16 = true;
  for (const DType dtype : kKvTypes) {
    spec.kv_dtype = dtype;
    RunSpec run;
    run.out_dtype = DType::kBF16;
    judge.run(make_case(spec), run);
  }
}

// Logits of about 1e4 that lie within a few units of each other: what cancels in the softmax is at its worst.
TEST_P(AttentionTest, HugeLogits) {
  Judge judge;
  CaseSpec spec;
  spec.q_lens = {1, 30, 1};
  spec.kv_lens = {500, 120, 64};
  spec.logit_scale = 1e4f;
  spec.key_spread = 2e-4f;
  spec.kv_dtype = DType::kF32;
  for (const bool share : {false, true}) {
    spec.shared_tokens = share ? 64 : 0;
    RunSpec run;
    run.num_workers = 4;
    judge.run(make_case(spec), run);
  }
  // Independent ones, where one token takes all.
  spec.key_spread = -1.0f;
  RunSpec run;
  run.out_dtype = DType::kBF16;
  judge.run(make_case(spec), run);
}

TEST_P(AttentionTest, OneLongRequestAmongAThousand) {
  Judge judge;
  CaseSpec spec;
  spec.kv_lens.assign(1000, 0);
  for (int i = 0; i < 1000; ++i) spec.kv_lens[i] = i % 7 == 0 ? 0 : i % 5;
  spec.kv_lens[637] = 1500;
  spec.q_lens.assign(1000, 1);
  for (int i = 0; i < 1000; ++i) spec.q_lens[i] = std::min(1, spec.kv_lens[i]);
  spec.kv_heads = 1;
  spec.group = 2;
  spec.head_dim = 32;
  RunSpec run;
  run.num_workers = 7;
  judge.run(make_case(spec), run);
}

// Row r of a causal prefill must not feel what stands in the values of later tokens, which share its blocks.
TEST_P(AttentionTest, ValuesThatARowDoesNotSeeNeverLeak) {
  for (const DType dtype : kKvTypes) {
    CaseSpec spec;
    spec.q_lens = {48};
    spec.kv_lens = {100};
    spec.kv_dtype = dtype;
    AttentionCase clean = make_case(spec);
    AttentionCase dirty = make_case(spec);
    const int bad = 80;  // the position of query token 28
    const std::int64_t element =
        std::int64_t{clean.page_table[bad / 16]} * clean.pool.page_stride + bad % 16 * clean.pool.token_stride;
    for (int d = 0; d < spec.head_dim * spec.kv_heads; ++d) {
      const float trash = d % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
      const std::uint16_t half = dtype == DType::kF16 ? testing::f16_of(trash) : testing::bf16_of(trash);
      for (std::byte* memory : {dirty.k.data(), dirty.v.data()}) {
        if (dtype == DType::kF32) {
          std::memcpy(memory + (element + d) * 4, &trash, 4);
        } else {
          std::memcpy(memory + (element + d) * 2, &half, 2);
        }
      }
    }
    const VariantSetup setup = variant_setup(clean, VariantId::kPlain);
    const Planner planner = make_planner(clean, RunSpec{});
    const AttentionKernels kernels = attention_kernels(VariantId::kPlain);
    const RunResult a = run_plan(clean, planner.view(), setup.params, kernels, DType::kF32, test_threads());
    const RunResult b = run_plan(dirty, planner.view(), setup.params, kernels, DType::kF32, test_threads());
    const std::size_t row = static_cast<std::size_t>(clean.num_qo_heads()) * spec.head_dim;
    for (std::size_t i = 0; i < 28 * row; ++i) ASSERT_EQ(a.out[i], b.out[i]) << i;
    EXPECT_TRUE(std::isnan(b.out[28 * row]));
  }
}

TEST_P(AttentionTest, SamePlanSameBitsForAnyNumberOfThreads) {
  CaseSpec spec;
  spec.q_lens = {1, 1, 40, 1, 1};
  spec.kv_lens = {700, 650, 300, 660, 90};
  spec.shared_tokens = 600;
  const AttentionCase c = make_case(spec);
  const VariantSetup setup = variant_setup(c, VariantId::kPlain);
  RunSpec run;
  run.num_workers = 6;
  const Planner planner = make_planner(c, run);
  const AttentionKernels kernels = attention_kernels(VariantId::kPlain);
  const RunResult first = run_plan(c, planner.view(), setup.params, kernels, DType::kF32, test_threads());
  for (const int size : {1, 2, 3, 6, 7}) {
    ThreadPool threads(size);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const RunResult again = run_plan(c, planner.view(), setup.params, kernels, DType::kF32, threads);
      ASSERT_EQ(first.out, again.out);
      ASSERT_EQ(first.lse, again.lse);
    }
  }
}

// Left in the middle of items and between them, split ones and such of several heads and few rows among them.
TEST_P(AttentionTest, LeftAndTakenUpAgainSameBits) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI8}) {
    CaseSpec spec;
    spec.q_lens = {1, 200, 40, 1};
    spec.kv_lens = {700, 650, 1300, 660};
    spec.kv_dtype = dtype;
    const AttentionCase c = make_case(spec);
    const VariantSetup setup = variant_setup(c, VariantId::kPlain);
    RunSpec run;
    run.num_workers = 5;
    const Planner planner = make_planner(c, run);
    const AttentionKernels kernels = attention_kernels(VariantId::kPlain);
    const RunResult whole = run_plan(c, planner.view(), setup.params, kernels, DType::kF32, test_threads());
    for (const int asks : {1, 2, 4, 20}) {
      const RunResult parts = run_plan(c, planner.view(), setup.params, kernels, DType::kF32, test_threads(), asks);
      ASSERT_EQ(whole.out, parts.out) << asks;
      ASSERT_EQ(whole.lse, parts.lse) << asks;
      EXPECT_GT(parts.parts, 3) << asks;
    }
  }
}

// Products of bf16 promise no such thing: tiles of few rows add in another order.
class BatchInvariantTest : public AttentionTest {};

// In batch_invariant plans a request's bits are those it has alone, whoever shares its batch, its pages or its tiles.
TEST_P(BatchInvariantTest, PlansKeepARequestsBits) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int group : {1, 4, 7}) {
      CaseSpec spec;
      spec.q_lens = {1, 1, 1, 5, 1, 1, 1, 1, 30, 1};
      spec.kv_lens = {1300, 1290, 1100, 1250, 40, 1301, 600, 512, 1400, 1};
      spec.shared_tokens = 1088;
      spec.kv_dtype = dtype;
      spec.group = group;
      spec.kv_heads = 1;
      spec.head_dim = 64;
      const AttentionCase c = make_case(spec);
      const VariantSetup setup = variant_setup(c, VariantId::kPlain);
      const AttentionKernels kernels = attention_kernels(VariantId::kPlain);
      const std::size_t row = static_cast<std::size_t>(c.num_qo_heads()) * spec.head_dim;
      for (const int tile_rows : {16, 128}) {
        RunSpec run;
        run.batch_invariant = true;
        run.num_workers = tile_rows == 16 ? 5 : 2;
        run.tile_rows = tile_rows;
        const Planner together = make_planner(c, run);
        const RunResult all = run_plan(c, together.view(), setup.params, kernels, DType::kF32, test_threads());
        std::size_t first_row = 0;
        for (int r = 0; r < c.num_requests(); ++r) {
          // The request alone, over the same memory.
          AttentionCase alone;
          alone.spec = spec;
          alone.spec.q_lens = {spec.q_lens[r]};
          alone.spec.kv_lens = {spec.kv_lens[r]};
          alone.num_rows = spec.q_lens[r];
          alone.page_table_stride = c.page_table_stride;
          const auto table = c.page_table.begin() + static_cast<std::ptrdiff_t>(r) * c.page_table_stride;
          alone.page_table.assign(table, table + c.page_table_stride);
          alone.pool = c.pool;
          const auto q = c.q.begin() + static_cast<std::ptrdiff_t>(first_row * row);
          alone.q.assign(q, q + static_cast<std::ptrdiff_t>(spec.q_lens[r] * row));
          RunSpec single = run;
          single.tile_rows = 128;
          single.num_workers = 1;
          const Planner planner = make_planner(alone, single);
          const RunResult result = run_plan(alone, planner.view(), setup.params, kernels, DType::kF32, test_threads());
          for (std::size_t i = 0; i < result.out.size(); ++i) {
            ASSERT_EQ(result.out[i], all.out[first_row * row + i])
                << "request " << r << ", element " << i << ", group " << group << ", tile rows " << tile_rows;
          }
          first_row += static_cast<std::size_t>(spec.q_lens[r]);
        }
      }
    }
  }
}

std::vector<Mode> exact_modes() {
  std::vector<Mode> exact = modes();
  std::erase_if(exact, [](const Mode& mode) { return mode.products == AttentionProducts::kBF16; });
  return exact;
}

INSTANTIATE_TEST_SUITE_P(Targets, AttentionTest, ::testing::ValuesIn(modes()), mode_name);
INSTANTIATE_TEST_SUITE_P(Targets, BatchInvariantTest, ::testing::ValuesIn(exact_modes()), mode_name);

TEST(AttentionErrorsTest, SayWhatIsWrong) {
  CaseSpec spec;
  spec.q_lens = {1};
  spec.kv_lens = {20};
  const AttentionCase c = make_case(spec);
  const Planner planner = make_planner(c, RunSpec{});
  std::vector<float> out(c.q.size());
  AttentionWorkspace workspace;
  AttentionParams params;
  const TensorView q = cpu_tensor(c.q.data(), DType::kF32, 1, 8, 64);
  const TensorView o = cpu_tensor(out.data(), DType::kF32, 1, 8, 64);
  const auto run = [&](const TensorView& q_view, const TensorView& o_view, const abi::KvPoolView& pool, int pools,
                       VariantId variant) {
    return run_attention(planner.view(), params, variant, q_view, &pool, pools, o_view, nullptr, workspace,
                         test_threads());
  };
  EXPECT_TRUE(run(q, o, c.pool, 1, VariantId::kPlain).ok());
  EXPECT_EQ(run(cpu_tensor(c.q.data(), DType::kF32, 1, 4, 64), o, c.pool, 1, VariantId::kPlain).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(run(cpu_tensor(c.q.data(), DType::kI32, 1, 8, 64), o, c.pool, 1, VariantId::kPlain).code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(run(cpu_tensor(c.q.data(), DType::kF32, 1, 8, 40), o, c.pool, 1, VariantId::kPlain).code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(run(q, o, c.pool, 0, VariantId::kPlain).code(), StatusCode::kInvalidArgument);
  abi::KvPoolView pool = c.pool;
  pool.dtype = abi::KvDType::kI8;  // without scales
  EXPECT_EQ(run(q, o, pool, 1, VariantId::kPlain).code(), StatusCode::kInvalidArgument);
  pool.dtype = static_cast<abi::KvDType>(77);
  EXPECT_EQ(run(q, o, pool, 1, VariantId::kPlain).code(), StatusCode::kInvalidArgument);
  pool = c.pool;
  pool.entry_tokens = 0;
  EXPECT_EQ(run(q, o, pool, 1, VariantId::kPlain).code(), StatusCode::kInvalidArgument);
  for (const VariantId variant : {VariantId::kSoftcap, VariantId::kSinks, VariantId::kAlibi}) {
    EXPECT_EQ(run(q, o, c.pool, 1, variant).code(), StatusCode::kInvalidArgument) << variant_name(variant);
  }
}

}  // namespace
}  // namespace fovea::cpu
