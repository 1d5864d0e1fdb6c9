// The executor against the oracle, over random batches and plans, on every SIMD target.
#include "cpu/attention/attention.h"

#include "cpu/attention/attention_test_util.h"
#include "cpu/simd.h"

namespace fovea::cpu {
namespace {

using testing::CaseSpec;
using testing::make_case;

class AttentionTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(set_simd_cap(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(set_simd_cap("").ok()); }
};

TEST_P(AttentionTest, DecodeOfMixedLengths) {
  Judge judge;
  CaseSpec spec;
  spec.kv_lens = {0, 1, 15, 16, 17, 64, 65, 300, 1000};
  spec.q_lens.assign(spec.kv_lens.size(), 1);
  spec.q_lens[0] = 0;
  for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    spec.group = group;
    spec.kv_dtype = group % 3 == 0 ? DType::kF16 : group % 3 == 1 ? DType::kBF16 : DType::kF32;
    spec.head_dim = group % 2 == 0 ? 128 : 64;
    spec.seed = static_cast<std::uint64_t>(group);
    RunSpec run;
    run.num_workers = group % 8 + 1;
    judge.run(make_case(spec), run);
  }
}

TEST_P(AttentionTest, CausalPrefillAndChunks) {
  Judge judge;
  CaseSpec spec;
  spec.q_lens = {1, 70, 130, 33, 5};
  spec.kv_lens = {1, 70, 200, 500, 0};
  spec.q_lens[4] = 0;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    spec.kv_dtype = dtype;
    spec.heads_first = dtype == DType::kF16;
    RunSpec run;
    run.num_workers = 3;
    judge.run(make_case(spec), run);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, AttentionTest, ::testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fovea::cpu
