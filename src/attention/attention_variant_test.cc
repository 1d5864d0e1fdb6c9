// Variants of a user's own through the public API, on the CPU: equal to the shipped ones bit for bit, and what a wrong
// one says. That each variant is right is shown in cpu/attention/user_variant_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/attention.h"
#include "testing/attention_case.h"

namespace fovea {
namespace {

using testing::AttentionCase;
using ::testing::HasSubstr;

// ALiBi of src/variant, with another name for the slopes and one factor more.
VariantSpec own_alibi() {
  VariantSpec spec;
  spec.name = "OwnAlibi";
  spec.source = R"(struct OwnAlibi : Plain {
  template <class M>
  static typename M::F logit(const Params& p, typename M::F s, const LogitPlace<typename M::F>& at) {
    return s + M::set(p.slopes[at.q_head] * p.factor * static_cast<float>(p.count)) * (at.kv_pos - at.q_pos);
  }
};
)";
  spec.params = {{"slopes", VariantParamType::kFloatTensor},
                 {"factor", VariantParamType::kFloat},
                 {"count", VariantParamType::kInt}};
  return spec;
}

class AttentionVariantTest : public ::testing::Test {
 protected:
  AttentionVariantTest() : c_(testing::make_case(spec())) {
    for (int h = 0; h < c_.num_qo_heads(); ++h) slopes_.push_back(0.01f * static_cast<float>(h + 1));
    options_.num_qo_heads = c_.num_qo_heads();
    options_.num_kv_heads = c_.spec.kv_heads;
    options_.head_dim = c_.spec.head_dim;
    options_.q_dtype = DType::kF32;
    options_.max_requests = c_.num_requests();
    options_.max_rows = c_.num_rows;
    options_.max_pages_per_request = c_.page_table_stride;
  }
  static testing::CaseSpec spec() {
    testing::CaseSpec spec;
    spec.q_lens = {1, 20, 1};
    spec.kv_lens = {200, 60, 5};
    return spec;
  }
  AttentionOptions with_own() const {
    AttentionOptions options = options_;
    options.variant = own_alibi();
    options.variant_values = {{.name = "slopes", .tensor = cpu_tensor(slopes_.data(), DType::kF32, c_.num_qo_heads())},
                              {.name = "factor", .number = 0.5},
                              {.name = "count", .number = 2}};
    return options;
  }
  std::vector<float> run(const AttentionOptions& options) const {
    Result<Attention> attention = Attention::create(options);
    EXPECT_TRUE(attention.ok()) << attention.status().to_string();
    if (!attention.ok()) return {};
    RequestBatch batch;
    batch.num_requests = c_.num_requests();
    batch.q_lens = c_.spec.q_lens.data();
    batch.kv_lens = c_.spec.kv_lens.data();
    batch.page_indices = c_.page_table.data();
    batch.page_stride = c_.page_table_stride;
    EXPECT_TRUE(attention->plan(batch).ok());
    std::vector<float> out(c_.q.size());
    PagedKv kv;
    kv.k = cpu_tensor(c_.pool.k, c_.spec.kv_dtype, c_.pool.num_pages, c_.pool.page_tokens, c_.spec.kv_heads,
                      c_.spec.head_dim);
    kv.v = kv.k;
    kv.v.data = c_.pool.v;
    const auto view = [&](const float* data) {
      return cpu_tensor(data, DType::kF32, c_.num_rows, c_.num_qo_heads(), c_.spec.head_dim);
    };
    const Status status = attention->run(view(c_.q.data()), kv, view(out.data()));
    EXPECT_TRUE(status.ok()) << status.to_string();
    return out;
  }
  Status refused(const AttentionOptions& options) const { return Attention::create(options).status(); }

  AttentionCase c_;
  std::vector<float> slopes_;
  AttentionOptions options_;
};

TEST_F(AttentionVariantTest, OwnTextGivesTheBitsOfTheShippedVariant) {
  AttentionOptions shipped = options_;
  shipped.alibi_slopes = cpu_tensor(slopes_.data(), DType::kF32, c_.num_qo_heads());
  const std::vector<float> expected = run(shipped);
  EXPECT_EQ(run(with_own()), expected);
  EXPECT_NE(run(options_), expected);
}

TEST_F(AttentionVariantTest, WrongVariantsAndValuesAreRefused) {
  AttentionOptions o = with_own();
  o.variant.source.insert(o.variant.source.find("return"), "nonsense;\n");
  EXPECT_EQ(refused(o).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused(o).message(), HasSubstr("variant OwnAlibi:4:"));
  o = with_own();
  o.variant_values.pop_back();
  EXPECT_THAT(refused(o).message(), HasSubstr("never set: count"));
  o = with_own();
  o.variant_values[2].number = 2.5;
  EXPECT_THAT(refused(o).message(), HasSubstr("count is 2.5, expected an int"));
  o = with_own();
  o.variant_values[1].name = "factors";
  EXPECT_EQ(refused(o).code(), StatusCode::kNotFound);
  EXPECT_THAT(refused(o).message(), HasSubstr("slopes, factor, count"));
  o = with_own();
  o.variant_values[0].tensor.dtype = DType::kF16;
  EXPECT_THAT(refused(o).message(), HasSubstr("slopes is f16 [8] on cpu, expected f32"));
  o = with_own();
  o.variant_values[0].tensor = {};
  EXPECT_THAT(refused(o).message(), HasSubstr("without memory"));
  o = with_own();
  o.sigmoid = true;
  EXPECT_EQ(refused(o).code(), StatusCode::kUnsupported);
  o = with_own();
  o.variant.name.clear();
  EXPECT_THAT(refused(o).message(), HasSubstr("no name"));
  o = with_own();
  o.variant.source.clear();
  EXPECT_EQ(refused(o).code(), StatusCode::kInvalidArgument);
  o = options_;
  o.variant_values = {{.name = "slopes"}};
  EXPECT_EQ(refused(o).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace fovea
