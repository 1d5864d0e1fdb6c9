// The public attention API on the CPU against the oracle: batches as tables and as lists, every mask, cascades, append,
// merge, and what callers get wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "fovea/attention.h"
#include "testing/attention_case.h"
#include "testing/attention_oracle.h"

namespace fovea {
namespace {

using testing::AttentionCase;
using testing::CaseSpec;
using ::testing::HasSubstr;
using testing::make_case;

AttentionOptions options_for(const AttentionCase& c) {
  AttentionOptions o;
  o.num_qo_heads = c.num_qo_heads();
  o.num_kv_heads = c.spec.kv_heads;
  o.head_dim = c.spec.head_dim;
  o.q_dtype = DType::kF32;
  o.kv_dtype = c.spec.kv_dtype;
  o.page_tokens = c.spec.page_tokens;
  o.max_requests = std::max(1, c.num_requests());
  o.max_rows = std::max(1, c.num_rows);
  o.max_pages_per_request = c.page_table_stride;
  o.checked = true;
  return o;
}

PagedKv kv_of(const AttentionCase& c) {
  PagedKv kv;
  const auto& p = c.pool;
  const bool hnd = c.spec.heads_first;
  kv.layout = hnd ? KvLayout::kHND : KvLayout::kNHD;
  kv.k = hnd ? cpu_tensor(p.k, c.spec.kv_dtype, p.num_pages, c.spec.kv_heads, p.page_tokens, c.spec.head_dim)
             : cpu_tensor(p.k, c.spec.kv_dtype, p.num_pages, p.page_tokens, c.spec.kv_heads, c.spec.head_dim);
  kv.k.strides = {p.page_stride, hnd ? p.head_stride : p.token_stride, hnd ? p.token_stride : p.head_stride, 1, 0};
  kv.v = kv.k;
  kv.v.data = p.v;
  return kv;
}

// The batch of a case; owns what it names. As lists, each request's pages stand alone, in another order of requests.
struct Batch {
  RequestBatch view;
  std::vector<std::int32_t> indices;
  std::vector<std::int64_t> begins;
  std::vector<std::int64_t> mask_offsets;
  std::vector<std::uint8_t> mask;
};

void fill_batch(const AttentionCase& c, bool lists, Batch& b) {
  b.view.num_requests = c.num_requests();
  b.view.q_lens = c.spec.q_lens.data();
  b.view.kv_lens = c.spec.kv_lens.data();
  b.view.mask = static_cast<AttentionMask>(c.spec.mask);
  b.view.window_left = c.spec.window_left;
  b.view.page_indices = c.page_table.data();
  b.view.num_page_indices = static_cast<std::int64_t>(c.page_table.size());
  b.view.page_stride = c.page_table_stride;
  if (lists) {
    b.begins.resize(c.spec.q_lens.size());
    for (int r = c.num_requests() - 1; r >= 0; --r) {
      const int pages = (c.spec.kv_lens[r] + c.spec.page_tokens - 1) / c.spec.page_tokens;
      b.begins[r] = static_cast<std::int64_t>(b.indices.size());
      const auto row = c.page_table.begin() + std::ptrdiff_t{r} * c.page_table_stride;
      b.indices.insert(b.indices.end(), row, row + pages);
    }
    b.view.page_indices = b.indices.data();
    b.view.num_page_indices = static_cast<std::int64_t>(b.indices.size());
    b.view.list_begins = b.begins.data();
  }
  if (c.spec.mask == abi::MaskKind::kBits) {  // whole masks, each request on a byte of its own
    for (int r = 0; r < c.num_requests(); ++r) {
      b.mask_offsets.push_back(static_cast<std::int64_t>(b.mask.size()) * 8);
      b.mask.resize(b.mask.size() + (static_cast<std::size_t>(c.spec.q_lens[r]) * c.spec.kv_lens[r] + 7) / 8);
      for (int row = 0; row < c.spec.q_lens[r]; ++row) {
        for (int t = 0; t < c.spec.kv_lens[r]; ++t) {
          const std::int64_t bit = b.mask_offsets[r] + std::int64_t{row} * c.spec.kv_lens[r] + t;
          if (c.sees(r, row, t)) b.mask[bit / 8] |= static_cast<std::uint8_t>(1u << (bit % 8));
        }
      }
    }
    b.view.mask_bits = b.mask.data();
    b.view.mask_bytes = static_cast<std::int64_t>(b.mask.size());
    b.view.mask_offsets = b.mask_offsets.data();
  }
}

struct Output {
  std::vector<float> out, lse;
};

// Runs the last plan over the case's fp32 queries.
Output run_case(Attention& attention, const AttentionCase& c) {
  Output o;
  o.out.assign(c.q.size(), std::nanf(""));
  o.lse.assign(c.q.size() / static_cast<std::size_t>(c.spec.head_dim), std::nanf(""));
  const auto shaped = [&](const void* data) {
    return cpu_tensor(data, DType::kF32, c.num_rows, c.num_qo_heads(), c.spec.head_dim);
  };
  const Status status = attention.run(shaped(c.q.data()), kv_of(c), shaped(o.out.data()),
                                      cpu_tensor(o.lse.data(), DType::kF32, c.num_rows, c.num_qo_heads()));
  EXPECT_TRUE(status.ok()) << status.to_string();
  return o;
}

void expect_near(const testing::OracleResult& truth, const Output& actual, double tolerance, const std::string& where) {
  for (std::size_t i = 0; i < truth.out.size(); ++i) {
    ASSERT_NEAR(truth.out[i], actual.out[i], tolerance) << "output " << i << ": " << where;
  }
  for (std::size_t i = 0; i < truth.lse.size(); ++i) {
    if (std::isinf(truth.lse[i])) {
      ASSERT_EQ(truth.lse[i], actual.lse[i]) << "log-sum-exp " << i << ": " << where;
    } else {
      ASSERT_NEAR(truth.lse[i], actual.lse[i], 1e-4) << "log-sum-exp " << i << ": " << where;
    }
  }
}

testing::OracleVariant scaled(const AttentionCase& c) {
  testing::OracleVariant v;
  v.sm_scale = 1.0 / std::sqrt(c.spec.head_dim);
  return v;
}

void check_case(const CaseSpec& spec) {
  const AttentionCase c = make_case(spec);
  Result<Attention> attention = Attention::create(options_for(c));
  ASSERT_TRUE(attention.ok()) << attention.status().to_string();
  const testing::OracleResult truth = oracle_attention(c, scaled(c));
  for (const bool lists : {false, true}) {
    Batch batch;
    fill_batch(c, lists, batch);
    const Status planned = attention->plan(batch.view);
    ASSERT_TRUE(planned.ok()) << planned.to_string();
    expect_near(truth, run_case(*attention, c), 2e-5, c.describe() + (lists ? ", lists" : ", table"));
  }
}

TEST(AttentionApi, EveryMaskAndLayoutAgainstTheOracle) {
  CaseSpec spec;
  spec.q_lens = {1, 20, 7, 0, 3, 1};
  spec.kv_lens = {150, 20, 170, 5, 64, 1};
  spec.shared_tokens = 32;
  for (const auto mask : {abi::MaskKind::kNone, abi::MaskKind::kCausal, abi::MaskKind::kWindow, abi::MaskKind::kBits}) {
    spec.mask = mask;
    spec.window_left = mask == abi::MaskKind::kWindow ? 33 : -1;
    for (const int page : {1, 5, 16, 64}) {
      spec.page_tokens = page;
      spec.heads_first = page == 5;
      spec.kv_dtype = page == 1 ? DType::kF32 : page == 5 ? DType::kF16 : DType::kBF16;
      ++spec.seed;
      check_case(spec);
    }
  }
}

TEST(AttentionApi, AnyQueryLength) {
  CaseSpec spec;
  spec.group = 3;
  spec.q_lens = {300, 1, 129};
  spec.kv_lens = {300, 70, 200};
  check_case(spec);
}

TEST(AttentionApi, QueriesOfBothHalfTypes) {
  CaseSpec spec;
  spec.q_lens = {1, 4};
  spec.kv_lens = {90, 33};
  spec.kv_dtype = DType::kF16;
  const AttentionCase c = make_case(spec);
  const testing::OracleResult truth = oracle_attention(c, scaled(c));
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    AttentionOptions o = options_for(c);
    o.q_dtype = dtype;
    Result<Attention> attention = Attention::create(o);
    ASSERT_TRUE(attention.ok()) << attention.status().to_string();
    Batch batch;
    fill_batch(c, false, batch);
    ASSERT_TRUE(attention->plan(batch.view).ok());
    std::vector<std::uint16_t> q(c.q.size()), out(c.q.size(), 0x7fff);
    for (std::size_t i = 0; i < q.size(); ++i) {
      q[i] = dtype == DType::kF16 ? testing::f16_of(c.q[i]) : testing::bf16_of(c.q[i]);
    }
    const auto shaped = [&](const void* data) {
      return cpu_tensor(data, dtype, c.num_rows, c.num_qo_heads(), c.spec.head_dim);
    };
    const Status status = attention->run(shaped(q.data()), kv_of(c), shaped(out.data()));
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (std::size_t i = 0; i < out.size(); ++i) {
      const float value = dtype == DType::kF16 ? testing::float_of_f16(out[i]) : testing::float_of_bf16(out[i]);
      ASSERT_NEAR(truth.out[i], value, 0.03) << i;
    }
  }
}

TEST(AttentionApi, VariantsAgainstTheOracle) {
  CaseSpec spec;
  spec.q_lens = {1, 5};
  spec.kv_lens = {90, 33};
  const AttentionCase c = make_case(spec);
  std::vector<float> heads(static_cast<std::size_t>(c.num_qo_heads()));
  for (std::size_t h = 0; h < heads.size(); ++h) heads[h] = 0.25f * static_cast<float>(h) - 0.5f;
  const TensorView per_head = cpu_tensor(heads.data(), DType::kF32, c.num_qo_heads());
  for (const std::string which : {"softcap", "sinks", "softcap+sinks", "alibi", "sigmoid"}) {
    AttentionOptions o = options_for(c);
    testing::OracleVariant v = scaled(c);
    if (which.starts_with("softcap")) v.softcap = o.softcap = 2.0f;
    if (which.ends_with("sinks")) o.sinks = per_head, v.sinks = heads;
    if (which == "alibi") o.alibi_slopes = per_head, v.alibi_slopes = heads;
    if (which == "sigmoid") v.sigmoid = o.sigmoid = true, v.sigmoid_bias = o.sigmoid_bias = -2.0f;
    Result<Attention> attention = Attention::create(o);
    ASSERT_TRUE(attention.ok()) << attention.status().to_string();
    Batch batch;
    fill_batch(c, false, batch);
    ASSERT_TRUE(attention->plan(batch.view).ok());
    expect_near(oracle_attention(c, v), run_case(*attention, c), 1e-4, which);
  }
}

TEST(AttentionApi, GrownEqualsPlannedAnew) {
  CaseSpec spec;
  spec.q_lens = {1, 1, 2};
  spec.kv_lens = {80, 33, 47};
  const AttentionCase c = make_case(spec);
  for (const bool lists : {false, true}) {
    Result<Attention> attention = Attention::create(options_for(c));
    ASSERT_TRUE(attention.ok());
    Batch batch;
    fill_batch(c, lists, batch);
    const std::vector<std::int32_t> before = {70, 33, 40};
    batch.view.kv_lens = before.data();
    ASSERT_TRUE(attention->plan(batch.view).ok());
    // What is refused leaves the plan as it was.
    const std::vector<std::int32_t> shorter = {80, 32, 47}, longer = {80, 33, 1 << 20};
    EXPECT_EQ(attention->grow(shorter).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(attention->grow(longer).code(), StatusCode::kOutOfRange);
    EXPECT_EQ(attention->grow({before.data(), 2}).code(), StatusCode::kInvalidArgument);
    const Status grown = attention->grow(c.spec.kv_lens);
    ASSERT_TRUE(grown.ok()) << grown.to_string();
    expect_near(oracle_attention(c, scaled(c)), run_case(*attention, c), 2e-5, lists ? "lists" : "table");
  }
}

// Two levels: pages that all rows share, then each request's own. As one flat batch it is what the oracle knows.
TEST(AttentionApi, CascadeEqualsTheFlatBatch) {
  CaseSpec spec;
  spec.q_lens = {1, 3, 2, 1};
  spec.kv_lens = {64 + 9, 64 + 40, 64 + 2, 64 + 1};
  spec.shared_tokens = 64;
  const AttentionCase c = make_case(spec);
  AttentionOptions o = options_for(c);
  o.max_cascade_levels = 2;
  Result<Attention> attention = Attention::create(o);
  ASSERT_TRUE(attention.ok()) << attention.status().to_string();
  const std::vector<std::int32_t> all = {0, c.num_rows}, each = {0, 1, 4, 6, 7};
  const std::vector<std::int32_t> shared_len = {64}, own_lens = {9, 40, 2, 1};
  const std::int64_t stride = c.page_table_stride;
  const std::vector<std::int64_t> shared_begin = {0}, own_begins = {4, stride + 4, 2 * stride + 4, 3 * stride + 4};
  const auto entries = static_cast<std::int64_t>(c.page_table.size());
  const CascadeLevel levels[] = {
      {1, all.data(), shared_len.data(), c.page_table.data(), DeviceKind::kCpu, entries, shared_begin.data(), false},
      {4, each.data(), own_lens.data(), c.page_table.data(), DeviceKind::kCpu, entries, own_begins.data(), true}};
  const Status planned = attention->plan_cascade(c.num_rows, levels);
  ASSERT_TRUE(planned.ok()) << planned.to_string();
  expect_near(oracle_attention(c, scaled(c)), run_case(*attention, c), 2e-5, "cascade");
  EXPECT_LT(attention->stats().kv_bytes, 2u * 2 * 64 * 2 * (64 + 52 + 4));  // the shared run once, not four times
}

TEST(AttentionApi, AppendThenReadBack) {
  constexpr int kPages = 6, kPage = 4, kHeads = 2, kDim = 16, kRows = 5;
  std::vector<std::uint16_t> k(kPages * kPage * kHeads * kDim), v(k.size());
  PagedKv kv;
  kv.k = cpu_tensor(k.data(), DType::kBF16, kPages, kPage, kHeads, kDim);
  kv.v = cpu_tensor(v.data(), DType::kBF16, kPages, kPage, kHeads, kDim);
  std::vector<float> rows(kRows * kHeads * kDim);
  std::iota(rows.begin(), rows.end(), 1.0f);
  const TensorView new_rows = cpu_tensor(rows.data(), DType::kF32, kRows, kHeads, kDim);
  const std::vector<std::int32_t> requests = {0, 0, 1, 1, 1}, positions = {3, 4, 0, 1, 2};
  const std::vector<std::int32_t> indices = {5, 2, 3}, indptr = {0, 2, 3};
  AppendPlaces places;
  places.batch_indices = cpu_tensor(requests.data(), DType::kI32, kRows);
  places.positions = cpu_tensor(positions.data(), DType::kI32, kRows);
  places.page_indices = cpu_tensor(indices.data(), DType::kI32, 3);
  places.page_indptr = cpu_tensor(indptr.data(), DType::kI32, 3);
  const Status status = append_paged_kv(new_rows, new_rows, places, kv);
  ASSERT_TRUE(status.ok()) << status.to_string();
  const std::vector<std::int32_t> slots = {5 * 4 + 3, 2 * 4, 3 * 4, 3 * 4 + 1, 3 * 4 + 2};
  for (int i = 0; i < kRows; ++i) {
    for (int d = 0; d < kHeads * kDim; ++d) {
      const float expected = testing::float_of_bf16(testing::bf16_of(rows[i * kHeads * kDim + d]));
      ASSERT_EQ(testing::float_of_bf16(k[slots[i] * kHeads * kDim + d]), expected);
      ASSERT_EQ(testing::float_of_bf16(v[slots[i] * kHeads * kDim + d]), expected);
    }
  }
  const std::vector<std::int32_t> beyond = {3, 8, 0, 1, 2};
  places.positions = cpu_tensor(beyond.data(), DType::kI32, kRows);
  const Status refused = append_paged_kv(new_rows, new_rows, places, kv);
  EXPECT_EQ(refused.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(refused.message(), HasSubstr("position 8 of row 1"));
}

// States of halves of the tokens make the state of all of them.
TEST(AttentionApi, MergedStatesEqualTheWhole) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> a = {1, 2, 3, 4}, b = {5, 6, 7, 8};  // [2 rows, 1 head, 2]
  const std::vector<float> lse_a = {1.0f, -kInf}, lse_b = {2.0f, -kInf};
  std::vector<float> out(4), lse(2);
  const auto rows = [](const void* p) { return cpu_tensor(p, DType::kF32, 2, 1, 2); };
  const auto sums = [](const void* p) { return cpu_tensor(p, DType::kF32, 2, 1); };
  ASSERT_TRUE(merge_state(rows(a.data()), sums(lse_a.data()), rows(b.data()), sums(lse_b.data()), rows(out.data()),
                          sums(lse.data()))
                  .ok());
  EXPECT_NEAR(out[0], (1.0f * 2 + 5.0f * 4) / 6, 1e-6);
  EXPECT_NEAR(out[1], (2.0f * 2 + 6.0f * 4) / 6, 1e-6);
  EXPECT_NEAR(lse[0], std::log2(6.0f), 1e-6);
  EXPECT_EQ(out[2], 0.0f);
  EXPECT_EQ(lse[1], -kInf);
  const std::vector<float> both = {1, 2, 5, 6, 3, 4, 7, 8}, both_lse = {1.0f, 2.0f, -kInf, -kInf};
  std::vector<float> out2(4), lse2(2);
  ASSERT_TRUE(merge_states(cpu_tensor(both.data(), DType::kF32, 2, 2, 1, 2),
                           cpu_tensor(both_lse.data(), DType::kF32, 2, 2, 1), rows(out2.data()), sums(lse2.data()))
                  .ok());
  EXPECT_EQ(out, out2);
  EXPECT_EQ(lse, lse2);
  const std::vector<std::uint8_t> mask = {0, 1};  // in place, and row 0 keeps what it has
  std::vector<float> kept = a, kept_lse = {1.0f, 1.0f};
  const std::vector<float> lse_c = {2.0f, 1.0f};
  ASSERT_TRUE(merge_state(rows(kept.data()), sums(kept_lse.data()), rows(b.data()), sums(lse_c.data()),
                          rows(kept.data()), sums(kept_lse.data()), cpu_tensor(mask.data(), DType::kU8, 2))
                  .ok());
  EXPECT_EQ(kept, (std::vector<float>{1, 2, 5, 6}));
  EXPECT_EQ(kept_lse, (std::vector<float>{1.0f, 2.0f}));
}

class AttentionApiErrors : public ::testing::Test {
 protected:
  AttentionApiErrors() : case_(make_case(spec())), attention_(Attention::create(options()).value()) {
    fill_batch(case_, false, batch_);
    q_ = out_ = cpu_tensor(case_.q.data(), DType::kF32, case_.num_rows, case_.num_qo_heads(), case_.spec.head_dim);
    memory_.resize(case_.q.size());
    out_.data = memory_.data();
  }
  AttentionOptions options() const {
    AttentionOptions o = options_for(case_);
    o.max_selected = 1;
    return o;
  }
  static CaseSpec spec() {
    CaseSpec s;
    s.q_lens = {1, 2};
    s.kv_lens = {40, 20};
    return s;
  }
  Status plan() { return attention_.plan(batch_.view); }
  void expect(const Status& status, StatusCode code, const std::string& part) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(part));
  }

  AttentionCase case_;
  Attention attention_;
  Batch batch_;
  TensorView q_, out_;
  std::vector<float> memory_;
};

TEST_F(AttentionApiErrors, Options) {
  const auto code = [&](auto change) {
    AttentionOptions o = options_for(case_);
    change(o);
    return Attention::create(o).status().code();
  };
  EXPECT_EQ(code([](auto& o) { o.device = "gpu"; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.device = "cuda:x"; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.head_dim = 72; }), StatusCode::kUnsupported);
  EXPECT_EQ(code([](auto& o) { o.page_tokens = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.num_kv_heads = 3; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.kv_dtype = DType::kI32; }), StatusCode::kUnsupported);
  EXPECT_EQ(code([](auto& o) { o.softcap = -1.0f; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.max_rows = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([&](auto& o) { o.sinks = cpu_tensor(memory_.data(), DType::kF32, 3); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.sigmoid = true, o.softcap = 1.0f; }), StatusCode::kUnsupported);
}

TEST_F(AttentionApiErrors, Batches) {
  expect(attention_.run(q_, kv_of(case_), out_), StatusCode::kInvalidArgument, "plan() first");
  batch_.view.num_requests = 3;
  expect(plan(), StatusCode::kOutOfRange, "raise max_requests");
  batch_.view.num_requests = 2;
  batch_.view.q_lens = nullptr;
  expect(plan(), StatusCode::kInvalidArgument, "needs q_lens");
  const std::vector<std::int32_t> negative = {-1, 2}, many = {1, 30}, huge = {1 << 20, 20};
  batch_.view.q_lens = negative.data();
  expect(plan(), StatusCode::kInvalidArgument, "q_len -1");
  batch_.view.q_lens = many.data();
  expect(plan(), StatusCode::kOutOfRange, "query tokens");
  batch_.view.q_lens = case_.spec.q_lens.data();
  batch_.view.kv_lens = huge.data();
  expect(plan(), StatusCode::kOutOfRange, "request 0 has");
  batch_.view.kv_lens = case_.spec.kv_lens.data();
  batch_.view.num_page_indices = 3;
  expect(plan(), StatusCode::kOutOfRange, "page_indices");
  batch_.view.num_page_indices = 0;
  batch_.view.page_stride = -1;
  expect(plan(), StatusCode::kInvalidArgument, "page_stride");
  batch_.view.page_stride = case_.page_table_stride;
  batch_.view.mask = AttentionMask::kBits;
  expect(plan(), StatusCode::kInvalidArgument, "mask_bits");
  batch_.view.mask = AttentionMask::kWindow;
  expect(plan(), StatusCode::kInvalidArgument, "window_left");
  expect(attention_.run(q_, kv_of(case_), out_), StatusCode::kInvalidArgument, "plan() first");
}

// Where lists begin is compared without sums that could overflow: these were taken, and read far outside of the array.
TEST_F(AttentionApiErrors, ListsThatBeginFarAway) {
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::int32_t> pages(16, 0), lens = {40, 20};
  const std::vector<std::int64_t> lists = {0, 4}, selected = {8, -1}, far = {kFar, 0};
  SelectedBatch step;
  step.num_requests = 2;
  step.kv_lens = lens.data();
  step.budget_tokens = case_.spec.page_tokens;
  step.page_indices = pages.data();
  step.num_page_indices = static_cast<std::int64_t>(pages.size());
  step.list_begins = lists.data();
  step.selected_begins = selected.data();
  step.selected_stride = 1;
  EXPECT_TRUE(attention_.plan_selected(step).ok());
  step.selected_stride = kFar;
  expect(attention_.plan_selected(step), StatusCode::kInvalidArgument, "selected_stride");
  step.budget_divisor = 1;
  expect(attention_.plan_selected(step), StatusCode::kInvalidArgument, "budget_divisor is 1");
  step.budget_divisor = 0;
  step.selected_stride = 1;
  step.selected_begins = far.data();
  expect(attention_.plan_selected(step), StatusCode::kOutOfRange, "which has 16");
  step.selected_begins = lists.data();
  expect(attention_.plan_selected(step), StatusCode::kOutOfRange, "raise max_selected");
  batch_.view.page_indices = pages.data();
  batch_.view.num_page_indices = static_cast<std::int64_t>(pages.size());
  batch_.view.list_begins = far.data();
  expect(plan(), StatusCode::kOutOfRange, "which has 16");
  const std::vector<std::int32_t> rows = {0, 1};
  CascadeLevel level;
  level.num_groups = 1;
  level.row_begins = rows.data();
  level.kv_lens = lens.data();
  level.page_indices = pages.data();
  level.num_page_indices = static_cast<std::int64_t>(pages.size());
  level.list_begins = far.data();
  expect(attention_.plan_cascade(1, {&level, 1}), StatusCode::kOutOfRange, "which has 16");
}

TEST_F(AttentionApiErrors, Tensors) {
  ASSERT_TRUE(plan().ok());
  const PagedKv kv = kv_of(case_);
  ASSERT_TRUE(attention_.run(q_, kv, out_).ok());
  const auto changed = [](TensorView t, auto change) {
    change(t);
    return t;
  };
  expect(attention_.run(changed(q_, [](auto& t) { t.dtype = DType::kBF16; }), kv, out_), StatusCode::kInvalidArgument,
         "q is bf16");
  expect(attention_.run(changed(q_, [](auto& t) { t.shape[0] = 2; }), kv, out_), StatusCode::kInvalidArgument, "q is");
  expect(attention_.run(changed(q_, [](auto& t) { t.strides[2] = 2; }), kv, out_), StatusCode::kInvalidArgument,
         "stride 2");
  expect(attention_.run(changed(q_, [](auto& t) { t.device = DeviceKind::kCuda; }), kv, out_),
         StatusCode::kInvalidArgument, "on cuda:0, expected it on cpu");
  expect(attention_.run(changed(q_, [](auto& t) { t.data = nullptr; }), kv, out_), StatusCode::kInvalidArgument,
         "without memory");
  PagedKv other = kv;
  other.v.strides[0] += 16;
  expect(attention_.run(q_, other, out_), StatusCode::kInvalidArgument, "same type, shape and strides");
  other = kv;
  other.layout = KvLayout::kHND;
  expect(attention_.run(q_, other, out_), StatusCode::kInvalidArgument, "HND layout");
  other = kv;
  other.k.shape[0] = other.v.shape[0] = 1;  // the plan reads more pages than that
  expect(attention_.run(q_, other, out_), StatusCode::kOutOfRange, "the pool has pages 0..0");
  std::vector<float> lse(64);
  expect(attention_.run(q_, kv, out_, cpu_tensor(lse.data(), DType::kF32, 2)), StatusCode::kInvalidArgument, "lse is");
}

}  // namespace
}  // namespace fovea
