// A variant of a user's own, compiled as users would: every hook does something, and the oracle restates it.
#include "cpu/attention/attention_test_util.h"
#include "cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/custom_variant_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/attention/executor_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

struct EveryHook : variant::Plain {
  static constexpr bool kHasLogit = true, kHasVisible = true, kHasQuery = true, kHasKey = true, kHasValue = true,
                        kHasOutput = true;
  template <class M>
  static typename M::F logit(const AttentionParams&, typename M::F s, const variant::LogitPlace<typename M::F>& at) {
    return s + M::set(0.01f) * (at.kv_pos - at.q_pos);
  }
  // Nearer than 100 positions.
  template <class M>
  static typename M::B visible(const AttentionParams&, const variant::LogitPlace<typename M::F>& at) {
    return M::less(at.q_pos - at.kv_pos, M::set(100.0f));
  }
  static float query(const AttentionParams&, const float* row, int d, const variant::RowPlace& at) {
    return row[at.head_dim - 1 - d];
  }
  static float key(const AttentionParams&, const float* row, int d, const variant::RowPlace& at) {
    return row[d] * (1.0f + 0.125f * static_cast<float>(at.position % 3));
  }
  static float value(const AttentionParams&, const float* row, int d, const variant::RowPlace& at) {
    return row[d] - 0.5f * static_cast<float>(at.head);
  }
  static float output(const AttentionParams&, float o, int d, const variant::RowPlace& at) {
    return o * 2.0f + static_cast<float>(d + at.head + at.position % 2);
  }
};

AttentionKernels every_hook() { return kernels_of<EveryHook>(); }

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {
namespace {

HWY_EXPORT(every_hook);

TEST(CustomVariantTest, HooksRunAndAgreeWithTheOracle) {
  testing::CaseSpec spec;
  spec.q_lens = {1, 30, 1, 1};
  spec.kv_lens = {180, 150, 5, 190};
  spec.shared_tokens = 64;
  for (const std::string_view target : simd_targets()) {
    ASSERT_TRUE(set_simd_cap(target).ok());
    Judge judge;
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kI8, DType::kI4}) {
      spec.kv_dtype = dtype;
      spec.rotated = dtype == DType::kI4;
      const testing::AttentionCase c = testing::make_case(spec);
      AttentionParams params;
      params.sm_scale = 0.125f;
      RunSpec run;
      run.num_workers = 3;
      const Planner planner = make_planner(c, run);
      const RunResult result =
          run_plan(c, planner.view(), params, HWY_DYNAMIC_DISPATCH(every_hook)(), DType::kF32, test_threads());

      // The same through the oracle, which has no hooks on rows: q, k and v are changed beforehand.
      testing::CaseSpec plain = spec;
      plain.kv_dtype = DType::kF32;
      testing::AttentionCase changed = testing::make_case(plain);
      const int dim = spec.head_dim;
      for (std::size_t row = 0; row < c.q.size() / dim; ++row) {
        for (int d = 0; d < dim; ++d) changed.q[row * dim + d] = c.q[row * dim + dim - 1 - d];
      }
      for (int r = 0; r < c.num_requests(); ++r) {
        for (int t = 0; t < spec.kv_lens[r]; ++t) {
          const std::int64_t page = c.page_table[static_cast<std::size_t>(r) * c.page_table_stride + t / 16];
          for (int h = 0; h < spec.kv_heads; ++h) {
            for (int d = 0; d < dim; ++d) {
              const std::int64_t at =
                  page * changed.pool.page_stride + t % 16 * changed.pool.token_stride + h * dim + d;
              reinterpret_cast<float*>(changed.k.data())[at] =
                  static_cast<float>(c.element(true, r, t, h, d)) * (1.0f + 0.125f * static_cast<float>(t % 3));
              reinterpret_cast<float*>(changed.v.data())[at] =
                  static_cast<float>(c.element(false, r, t, h, d)) - 0.5f * static_cast<float>(h);
            }
          }
        }
      }
      testing::OracleVariant oracle;
      oracle.sm_scale = 0.125;
      oracle.custom = [](double logit, int q_pos, int kv_pos, int) {
        return q_pos - kv_pos < 100 ? logit + 0.01 * (kv_pos - q_pos) : -std::numeric_limits<double>::infinity();
      };
      RunResult unwrapped = result;
      std::size_t row = 0;
      for (int r = 0; r < c.num_requests(); ++r) {
        for (int i = 0; i < spec.q_lens[r]; ++i, ++row) {
          const int position = spec.kv_lens[r] - spec.q_lens[r] + i;
          for (int h = 0; h < c.num_qo_heads(); ++h) {
            for (int d = 0; d < dim; ++d) {
              double& x = unwrapped.out[(row * c.num_qo_heads() + h) * dim + d];
              // What the output hook did, undone; exact enough to see the rest against the bar of bf16 below.
              x = testing::float_of_bf16(testing::bf16_of(static_cast<float>((x - (d + h + position % 2)) / 2.0)));
            }
          }
        }
      }
      judge.judge(changed, oracle, DType::kBF16, unwrapped, std::string(target));
    }
  }
  ASSERT_TRUE(set_simd_cap("").ok());
}

}  // namespace
}  // namespace fovea::cpu
#endif
