// Plans of several launches on a driver without a GPU, against the CPU: block rows over several KV pools (heads that
// keep all tokens in a quantized pool, heads that keep sinks and a window in one of bf16, as streaming heads of the
// engine do), and steps of decodes and prompts.
#include "attention/cuda_attention.h"
#include "attention/cuda_attention_test_util.h"
#include "core/layout/head_rows.h"

namespace fovea {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kStride = 10;
constexpr std::size_t kRow = std::size_t{kHeads} * kDim;

class CudaPlansTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake::state() = {};
    fake::state().memory_bytes = std::size_t{1} << 28;
    fake::state().kernels["fovea_attention"] = [this](void** parameters) {
      const auto args = std::make_shared<abi::AttentionArgs>(*static_cast<abi::AttentionArgs*>(parameters[0]));
      return [args] { execute(*args, DevicePlanView(args->plan).view.header->num_rows, kHeads, kDim); };
    };
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<std::uint16_t>& to, std::size_t size) {
      to.resize(size);
      for (std::uint16_t& x : to) x = float_to_bf16(normal(random));
    };
    fill(q_, 64 * kRow);
    fill(window_k_, std::size_t{kPages} * kPage * kDim);
    fill(window_v_, window_k_.size());
    for (auto* bytes : {&full_k_, &full_v_}) {
      bytes->resize(std::size_t{kPages} * kPage * kKvHeads * kDim);
      for (std::uint8_t& x : *bytes) x = static_cast<std::uint8_t>(random());
    }
    scales_.assign(std::size_t{kPages} * kKvHeads * kPage, {float_to_f16(0.015625f), float_to_f16(0.25f)});
    for (int i = 0; i < 6 * kStride; ++i) pages_.push_back((i * 37 + 5) % kPages);

    config_.options.device = "cuda:0";
    config_.options.num_qo_heads = kHeads;
    config_.options.num_kv_heads = kKvHeads;
    config_.options.head_dim = kDim;
    config_.options.page_tokens = kPage;
    config_.options.max_requests = 8;
    config_.options.max_rows = 64;
    config_.options.max_pages_per_request = kStride;
    config_.options.device_growth = false;
    config_.limits.emplace();
    config_.limits->max_block_rows = 32;
    config_.limits->max_covered_rows = config_.limits->max_shared_rows = 256;
    config_.pools = {{DType::kI8, false}, {DType::kBF16, false}};
    config_.set_format(config_.pools[0]);
  }

  std::unique_ptr<PagedAttention> make() {
    auto made = create_cuda_paged_attention(config_, {DeviceKind::kCuda, 0});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(*made);
  }
  // For graphs, which the null stream has none of.
  void open_stream() {
    auto device = cuda::Device::open(0);
    ASSERT_TRUE(device.ok());
    device_.emplace(*device);
    context_.emplace(*device_);
    auto stream = cuda::Stream::create(*device_);
    ASSERT_TRUE(stream.ok());
    stream_.emplace(std::move(*stream));
  }
  std::unique_ptr<PagedAttention> make_on_cpu() {
    AttentionConfig config = config_;
    config.options.device = "cpu";
    auto made = create_cpu_paged_attention(config, AttentionProducts::kBF16, std::make_shared<ThreadPool>(1));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(*made);
  }

  // Head 0 sees all, head 1 a window of 20 tokens behind 16 sinks. Lists of head 1 follow those of head 0.
  BlockRowBatch batch(const std::vector<std::int32_t>& q_lens, const std::vector<std::int32_t>& kv_lens) {
    block_rows_.clear();
    q_pos_.clear();
    const auto requests = static_cast<std::uint32_t>(q_lens.size());
    for (std::uint32_t i = 0; i < requests; ++i) {
      RequestRows rows{static_cast<std::uint32_t>(q_pos_.size()), q_lens[i], kv_lens[i], i * kStride};
      add_head_rows({0, 1, 0, 0, 0}, rows, false, block_rows_);
      rows.list_begin += requests * kStride;
      add_head_rows({1, 2, 1, 20, 16}, rows, false, block_rows_);
      for (std::int32_t r = kv_lens[i] - q_lens[i]; r < kv_lens[i]; ++r) q_pos_.push_back(r);
    }
    row_indices_.resize(q_pos_.size());
    std::iota(row_indices_.begin(), row_indices_.end(), 0u);
    rows_ = static_cast<std::int64_t>(q_pos_.size());
    BlockRowBatch made;
    made.num_rows = static_cast<std::int32_t>(rows_);
    made.block_rows = block_rows_;
    made.row_indices = row_indices_;
    made.q_pos = q_pos_;
    made.page_entries = pages_.data();
    return made;
  }

  // The pool of head 1 alone is counted in the layer's heads.
  std::vector<abi::KvPoolView> pools() {
    abi::KvPoolView full{};
    full.k = full_k_.data();
    full.v = full_v_.data();
    full.page_stride = kPage * kKvHeads * kDim;
    full.token_stride = kDim;
    full.head_stride = kPage * kDim;
    full.num_pages = kPages;
    full.page_tokens = full.entry_tokens = kPage;
    full.entries_per_page = 1;
    full.dtype = abi::KvDType::kI8;
    full.granularity = abi::ScaleGranularity::kTokenHead;
    full.k_scale = full.v_scale = scales_.data();
    full.scale_page_stride = kKvHeads * kPage;
    full.scale_head_stride = kPage;
    abi::KvPoolView window = full;
    window.k = window_k_.data();
    window.v = window_v_.data();
    window.page_stride = kPage * kDim;
    window.dtype = abi::KvDType::kBF16;
    window.granularity = abi::ScaleGranularity::kNone;
    window.k_scale = window.v_scale = nullptr;
    return {full, abi::shift_heads(window, 1)};
  }

  struct Output {
    std::vector<std::uint16_t> out;
    std::vector<float> lse;
    explicit Output(std::int64_t rows)
        : out(static_cast<std::size_t>(rows) * kRow, 0x7fc0), lse(static_cast<std::size_t>(rows) * kHeads, 1e9f) {}
  };
  Status run(PagedAttention& attention, Output& to, Stream stream = {}) {
    return attention.run(cpu_tensor(q_.data(), DType::kBF16, rows_, kHeads, kDim), pools(),
                         cpu_tensor(to.out.data(), DType::kBF16, rows_, kHeads, kDim),
                         cpu_tensor(to.lse.data(), DType::kF32, rows_, kHeads), stream);
  }
  // Plans differ between the devices, so the last bits may.
  void expect_equal(const Output& a, const Output& b) {
    for (std::size_t i = 0; i < a.out.size(); ++i) {
      ASSERT_NEAR(bf16_to_float(a.out[i]), bf16_to_float(b.out[i]), 0.02) << "output " << i;
    }
    for (std::size_t i = 0; i < a.lse.size(); ++i) ASSERT_NEAR(a.lse[i], b.lse[i], 1e-3) << "log-sum-exp " << i;
  }
  void check(PagedAttention& on_device, PagedAttention& on_cpu, const BlockRowBatch& rows) {
    Output device_output(rows_), cpu_output(rows_);
    const Status planned = on_device.plan_block_rows(rows, {});
    ASSERT_TRUE(planned.ok()) << planned.to_string();
    ASSERT_TRUE(on_cpu.plan_block_rows(rows, {}).ok());
    const Status ran = run(on_device, device_output);
    ASSERT_TRUE(ran.ok()) << ran.to_string();
    ASSERT_TRUE(run(on_cpu, cpu_output).ok());
    expect_equal(device_output, cpu_output);
  }

  AttentionConfig config_;
  std::int64_t rows_ = 0;
  std::vector<std::uint16_t> q_, window_k_, window_v_;
  std::vector<std::uint8_t> full_k_, full_v_;
  std::vector<abi::KvScale> scales_;
  std::vector<std::int32_t> pages_, q_pos_;
  std::optional<cuda::Device> device_;
  std::optional<cuda::ScopedContext> context_;
  std::optional<cuda::Stream> stream_;
  std::vector<abi::BlockRow> block_rows_;
  std::vector<std::uint32_t> row_indices_;
};

TEST_F(CudaPlansTest, StreamingHeadsAreALaunchAPool) {
  const auto attention = make(), reference = make_on_cpu();
  auto& calls = fake::state().calls;
  calls.clear();
  check(*attention, *reference, batch({1, 5, 3}, {100, 30, 128}));
  EXPECT_EQ(calls["cuLaunchKernelEx"], 2);
  check(*attention, *reference, batch({1, 1, 1}, {160, 16, 37}));
  EXPECT_GT(attention->stats().kv_bytes, attention->planner().stats().kv_bytes);
  EXPECT_EQ(attention->num_rows(), 3);

  // Nothing reads the second pool: its launch finds no work.
  batch({1, 2}, {100, 60});
  std::erase_if(block_rows_, [](const abi::BlockRow& row) { return row.pool != 0; });
  for (abi::BlockRow& row : block_rows_) row.head_end = kKvHeads;
  BlockRowBatch all;
  all.num_rows = 3;
  all.block_rows = block_rows_;
  all.row_indices = row_indices_;
  all.q_pos = q_pos_;
  all.page_entries = pages_.data();
  calls.clear();
  check(*attention, *reference, all);
  EXPECT_EQ(calls["cuLaunchKernelEx"], 2);

  // Requests read the first pool.
  const std::vector<std::int32_t> q_lens = {1, 2}, kv_lens = {100, 60}, longer = {101, 60};
  RequestBatch requests;
  requests.num_requests = 2;
  requests.q_lens = q_lens.data();
  requests.kv_lens = kv_lens.data();
  requests.page_indices = pages_.data();
  requests.page_stride = kStride;
  EXPECT_EQ(attention->grow(longer, {}).code(), StatusCode::kUnsupported);  // after block rows
  Output by_requests(rows_), by_rows(rows_);
  ASSERT_TRUE(run(*attention, by_rows).ok());
  ASSERT_TRUE(attention->plan(requests, {}).ok());
  calls.clear();
  ASSERT_TRUE(run(*attention, by_requests).ok());
  EXPECT_EQ(calls["cuLaunchKernelEx"], 1);
  expect_equal(by_requests, by_rows);
  EXPECT_TRUE(attention->grow(longer, {}).ok());
}

// Rows that see of each other what bits say, in both pools; bits lie where the CPU's plan finds them.
TEST_F(CudaPlansTest, RowsThatAreTreesHaveTheBitsOfTheBatch) {
  const auto attention = make(), reference = make_on_cpu();
  std::mt19937_64 random(9);
  std::vector<std::uint8_t> bits(3 + 8 + 8);
  for (const std::vector<std::int32_t>& kv_lens : {std::vector<std::int32_t>{100, 30, 128}, {5, 16, 3}}) {
    const std::vector<std::int32_t> q_lens = {1, 7, 3};
    batch(q_lens, kv_lens);
    block_rows_.clear();
    std::fill(bits.begin(), bits.end(), std::uint8_t{0});
    std::uint32_t row = 0;
    std::uint64_t offset = 19;
    for (std::uint32_t i = 0; i < 3; ++i) {
      const auto count = static_cast<std::uint32_t>(q_lens[i]);
      RequestRows rows{row, q_lens[i], kv_lens[i], i * kStride, count > 1, offset};
      row += count;
      for (std::uint32_t r = 0; rows.tree && r < count; ++r) {
        for (std::uint32_t t = 0; t <= r; ++t, ++offset) {
          if (t == r || random() % 2 == 0) bits[offset / 8] |= static_cast<std::uint8_t>(1u << offset % 8);
        }
        offset += count - 1 - r;
      }
      add_head_rows({0, 1, 0, 0, 0}, rows, false, block_rows_);
      rows.list_begin += 3 * kStride;
      add_head_rows({1, 2, 1, 20, 16}, rows, false, block_rows_);
    }
    BlockRowBatch trees;
    trees.num_rows = static_cast<std::int32_t>(rows_);
    trees.block_rows = block_rows_;
    trees.row_indices = row_indices_;
    trees.q_pos = q_pos_;
    trees.page_entries = pages_.data();
    trees.mask_bits = bits.data();
    trees.mask_bytes = bits.size();
    check(*attention, *reference, trees);
    EXPECT_THAT(attention->kernel_and_reason(), HasSubstr("mask of bits"));
    trees.mask_bytes = (offset - 1) / 8;  // the last one is beyond
    EXPECT_EQ(attention->plan_block_rows(trees, {}).code(), StatusCode::kOutOfRange);
  }
}

TEST_F(CudaPlansTest, OneGraphServesEveryLaterPlan) {
  const auto attention = make(), reference = make_on_cpu();
  ASSERT_NO_FATAL_FAILURE(open_stream());
  ASSERT_TRUE(attention->plan_block_rows(batch({1, 1, 1}, {1, 1, 1}), {stream_->handle()}).ok());
  Output replayed(rows_);
  const auto graph =
      cuda::Graph::capture(*device_, stream_->handle(), [&] { return run(*attention, replayed, {stream_->handle()}); });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  for (const std::vector<std::int32_t>& kv_lens : {std::vector<std::int32_t>{100, 30, 128}, {16, 160, 40}}) {
    const BlockRowBatch rows = batch({1, 1, 1}, kv_lens);
    ASSERT_TRUE(attention->plan_block_rows(rows, {stream_->handle()}).ok());
    ASSERT_TRUE(graph->launch(stream_->handle()).ok());
    Output eager(rows_), output(rows_);
    ASSERT_TRUE(run(*attention, eager, {stream_->handle()}).ok());
    EXPECT_EQ(eager.out, replayed.out);
    EXPECT_EQ(eager.lse, replayed.lse);
    ASSERT_TRUE(reference->plan_block_rows(rows, {}).ok());
    ASSERT_TRUE(run(*reference, output).ok());
    expect_equal(replayed, output);
  }
}

// Decodes ahead of prompts are a plan of their own where they read enough, and what a plan of all gives is the same.
TEST_F(CudaPlansTest, DecodesAndPromptsAreTwoLaunches) {
  config_.pools.resize(1);
  config_.graphs_by_kind = true;
  const std::vector<std::int32_t> q_lens = {1, 1, 1, 20, 2}, kv_lens = {100, 30, 128, 90, 60};
  rows_ = 25;
  RequestBatch requests;
  requests.num_requests = 5;
  requests.q_lens = q_lens.data();
  requests.kv_lens = kv_lens.data();
  requests.page_indices = pages_.data();
  requests.page_stride = kStride;
  const auto as_one = make(), on_cpu = make_on_cpu();  // 258 tokens are less than the least that is apart
  const std::int64_t read = std::int64_t{258} * kKvHeads * 2 * kDim;
  config_.least_decode_bytes = read;
  const auto apart = make();
  Output one(rows_), two(rows_), reference(rows_);
  auto& calls = fake::state().calls;
  for (auto [attention, to, launches] : {std::tuple{as_one.get(), &one, 1}, {apart.get(), &two, 2}}) {
    const Status planned = attention->plan(requests, {});
    ASSERT_TRUE(planned.ok()) << planned.to_string();
    EXPECT_EQ(attention->num_rows(), 25);
    EXPECT_TRUE(attention->check_pages(kPages).ok());
    EXPECT_EQ(attention->check_pages(2).code(), StatusCode::kOutOfRange);
    calls.clear();
    const Status ran = run(*attention, *to);
    ASSERT_TRUE(ran.ok()) << ran.to_string();
    EXPECT_EQ(calls["cuLaunchKernelEx"], launches);
  }
  ASSERT_TRUE(on_cpu->plan(requests, {}).ok());
  ASSERT_TRUE(run(*on_cpu, reference).ok());
  expect_equal(one, reference);
  expect_equal(two, reference);
  EXPECT_EQ(apart->stats().kv_bytes_unshared, as_one->stats().kv_bytes_unshared);
  EXPECT_THAT(apart->kernel_and_reason(), AllOf(HasSubstr("decodes: "), HasSubstr("; prompts: ")));
  EXPECT_NE(apart->run_kind(), as_one->run_kind());
  const std::uint64_t kind = apart->run_kind();
  EXPECT_EQ(apart->grow(kv_lens, {}).code(), StatusCode::kUnsupported);

  // One decode less: the prompts' launch begins at another row, and what is left reads too little.
  requests.num_requests = 4;
  ++requests.q_lens;
  ++requests.kv_lens;
  requests.page_indices += kStride;
  ASSERT_TRUE(apart->plan(requests, {}).ok());
  EXPECT_THAT(apart->kernel_and_reason(), Not(HasSubstr("prompts: ")));
  EXPECT_NE(apart->run_kind(), kind);

  // Steps of decodes alone and of drafts, which graphs repeat, are one launch, and decodes' may grow.
  for (const std::vector<std::int32_t>& q : {std::vector<std::int32_t>{1, 1, 1, 1, 1}, {1, 1, 1, 4, 16}}) {
    requests.num_requests = 5;
    requests.q_lens = q.data();
    requests.kv_lens = kv_lens.data();
    requests.page_indices = pages_.data();
    ASSERT_TRUE(apart->plan(requests, {}).ok());
    EXPECT_THAT(apart->kernel_and_reason(), Not(HasSubstr("prompts: ")));
  }
  config_.options.batch_invariant = true;
  const auto invariant = make();
  requests.q_lens = q_lens.data();
  ASSERT_TRUE(invariant->plan(requests, {}).ok());
  EXPECT_THAT(invariant->kernel_and_reason(), Not(HasSubstr("prompts: ")));
}

// As many tokens, and as many decodes among them: the prompts may be others.
TEST_F(CudaPlansTest, AGraphOfTwoLaunchesServesOtherPrompts) {
  config_.pools.resize(1);
  config_.graphs_by_kind = true;
  config_.least_decode_bytes = 1;
  const auto attention = make(), reference = make_on_cpu();
  ASSERT_NO_FATAL_FAILURE(open_stream());
  std::vector<std::int32_t> q_lens, kv_lens;
  rows_ = 45;
  const auto plan = [&](PagedAttention& of, const std::vector<std::int32_t>& q, const std::vector<std::int32_t>& kv) {
    q_lens = q;
    kv_lens = kv;
    RequestBatch requests;
    requests.num_requests = static_cast<std::int32_t>(q.size());
    requests.q_lens = q_lens.data();
    requests.kv_lens = kv_lens.data();
    requests.page_indices = pages_.data();
    requests.page_stride = kStride;
    return of.plan(requests, {stream_->handle()});
  };
  ASSERT_TRUE(plan(*attention, {1, 1, 26, 17}, {9, 30, 60, 40}).ok());
  const std::uint64_t kind = attention->run_kind();
  Output replayed(rows_);
  auto& calls = fake::state().calls;
  calls.clear();
  const auto graph =
      cuda::Graph::capture(*device_, stream_->handle(), [&] { return run(*attention, replayed, {stream_->handle()}); });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ(calls["cuLaunchKernelEx"], 2);
  struct Batch {
    std::vector<std::int32_t> q_lens, kv_lens;
  };
  for (const auto& [q, kv] : {Batch{{1, 1, 17, 26}, {160, 3, 90, 160}}, {{1, 1, 20, 3, 20}, {64, 128, 20, 40, 155}}}) {
    ASSERT_TRUE(plan(*attention, q, kv).ok());
    ASSERT_EQ(attention->run_kind(), kind);
    ASSERT_TRUE(graph->launch(stream_->handle()).ok());
    Output eager(rows_), output(rows_);
    ASSERT_TRUE(run(*attention, eager, {stream_->handle()}).ok());
    EXPECT_EQ(eager.out, replayed.out);
    EXPECT_EQ(eager.lse, replayed.lse);
    ASSERT_TRUE(plan(*reference, q, kv).ok());
    ASSERT_TRUE(run(*reference, output).ok());
    expect_equal(replayed, output);
  }
  // The prompts' launch begins at another row.
  ASSERT_TRUE(plan(*attention, {1, 1, 1, 25, 17}, {9, 30, 42, 60, 40}).ok());
  EXPECT_NE(attention->run_kind(), kind);
}

TEST_F(CudaPlansTest, WhatCannotRunIsTold) {
  const auto attention = make();
  batch({1, 1}, {40, 50});
  Output output(rows_);
  EXPECT_THAT(run(*attention, output).message(), HasSubstr("needs a plan"));
  const auto refused = [&](StatusCode code, const char* message, auto change) {
    BlockRowBatch rows = batch({1, 1}, {40, 50});
    change();
    rows.block_rows = block_rows_;
    const Status status = attention->plan_block_rows(rows, {});
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_EQ(attention->num_rows(), -1);
    EXPECT_FALSE(run(*attention, output).ok());
  };
  refused(StatusCode::kInvalidArgument, "query token 1 has no block row for KV head 1",
          [&] { std::erase_if(block_rows_, [](const abi::BlockRow& b) { return b.row_begin == 1 && b.pool == 1; }); });
  refused(StatusCode::kUnsupported, "query token 1 reads KV pools 0 and 1 under KV head 0", [&] {
    block_rows_.back().head_begin = 0;
    block_rows_.back().head_end = 1;
  });
  refused(StatusCode::kInvalidArgument, "reads KV pool 2, declared were 2", [&] { block_rows_[0].pool = 2; });
  refused(StatusCode::kOutOfRange, "1 rows of 40 bits from bit 0 on, 0 apart; mask_bits has 0 bytes",
          [&] { block_rows_[0].mask = abi::MaskKind::kBits; });
  refused(StatusCode::kUnsupported, "lists positions", [&] { block_rows_[0].positions_begin = 0; });

  ASSERT_TRUE(attention->plan_block_rows(batch({1, 1}, {40, 50}), {}).ok());
  const TensorView q = cpu_tensor(q_.data(), DType::kBF16, rows_, kHeads, kDim);
  const TensorView out = cpu_tensor(output.out.data(), DType::kBF16, rows_, kHeads, kDim);
  std::vector<abi::KvPoolView> views = pools();
  EXPECT_THAT(attention->run(q, std::span(views).first(1), out, {}, {}).message(), HasSubstr("reads KV pool 1"));
  std::swap(views[0], views[1]);
  EXPECT_THAT(attention->run(q, views, out, {}, {}).message(), HasSubstr("KV pool 0 is bf16"));
  views = pools();
  views[1].page_tokens = 2 * kPage;
  views[1].entries_per_page = 2;
  EXPECT_EQ(attention->run(q, views, out, {}, {}).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace fovea
