// The CUDA implementation of the public attention API on a driver without a GPU: what reaches the device, when, and
// what callers get wrong. The kernels themselves are tested on a GPU.
#include "abi/append_args.h"
#include "attention/cuda_attention_test_util.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;

TEST_F(CudaAttentionTest, PlansReachTheDevice) {
  Attention attention = make(), reference = make_on_cpu();
  const std::vector<std::int32_t> q_lens = {1, 5, 1, 0, 7}, kv_lens = {100, 30, 1, 9, 128};
  RequestBatch b = batch(q_lens, kv_lens);
  check(attention, reference, b);
  EXPECT_GT(attention.stats().plan_bytes, 0u);
  EXPECT_GT(attention.workspace_bytes(), attention.stats().plan_bytes);
  b.page_indices_device = DeviceKind::kCuda;
  check(attention, reference, b);
  const std::vector<std::int64_t> begins = {40, 3, 0, 5, 20};
  b.list_begins = begins.data();
  check(attention, reference, b);
  b.page_indices_device = DeviceKind::kCpu;
  check(attention, reference, b);
  b.mask = AttentionMask::kWindow;
  b.window_left = 11;
  check(attention, reference, b);
  std::vector<std::uint8_t> bits(1000, 0x5b);
  const std::vector<std::int64_t> offsets = {0, 104, 256, 264, 264};
  b.mask = AttentionMask::kBits;
  b.mask_bits = bits.data();
  b.mask_bytes = static_cast<std::int64_t>(bits.size());
  b.mask_offsets = offsets.data();
  check(attention, reference, b);
}

TEST_F(CudaAttentionTest, DecodeGoesToTheWarpsKernel) {
  options_.decode_kernel = DecodeKernel::kWarpPerWorker;
  Attention attention = make(), reference = make_on_cpu();
  const std::uint32_t ctas = static_cast<std::uint32_t>(device_->info().num_sms);
  const std::vector<std::int32_t> kv_lens = {100, 101, 128}, one = {1, 1, 1}, more = {1, 2, 1};
  RequestBatch b = batch(one, kv_lens);
  check(attention, reference, b);
  EXPECT_GT(attention.stats().num_workers, ctas);
  b.mask = AttentionMask::kWindow;
  b.window_left = 11;
  check(attention, reference, b);
  EXPECT_GT(attention.stats().num_workers, ctas);
  b = batch(more, kv_lens);  // drafts, token by token
  check(attention, reference, b);
  EXPECT_GT(attention.stats().num_workers, ctas);
  b.mask = AttentionMask::kNone;
  check(attention, reference, b);
  b = batch(one, kv_lens);
  b.page_stride = 0;  // all requests on the same pages: shared
  const std::vector<std::int64_t> begins = {0, 0, 0};
  b.list_begins = begins.data();
  check(attention, reference, b);
  EXPECT_EQ(attention.stats().num_workers, ctas);
  EXPECT_LT(attention.stats().kv_bytes, attention.stats().kv_bytes_unshared);
  b = batch(one, kv_lens);
  check(attention, reference, b);
  EXPECT_GT(attention.stats().num_workers, ctas);

  options_.decode_kernel = DecodeKernel::kAuto;  // three requests are too few
  Attention by_size = make();
  check(by_size, reference, b);
  EXPECT_EQ(by_size.stats().num_workers, ctas);
}

// Kernels are told apart by their threads: 384 of the one for all plans, 512 of the one for few requests (head dim 64).
TEST_F(CudaAttentionTest, DecodeOfFewRequestsGoesToAKernelOfItsOwn) {
  const auto& launch = fake::state().launch;
  const std::vector<std::int32_t> kv_lens = {100, 101, 120}, one = {1, 1, 1}, more = {1, 2, 1};
  Attention attention = make(), reference = make_on_cpu();
  check(attention, reference, batch(more, kv_lens));
  EXPECT_EQ(launch.block[0], 384u);
  const RequestBatch few = batch(one, kv_lens);
  check(attention, reference, few);
  EXPECT_EQ(launch.block[0], 512u);
  options_.decode_kernel = DecodeKernel::kGeneral;
  Attention never = make();
  check(never, reference, few);
  EXPECT_EQ(launch.block[0], 384u);

  // Its kernel reads the plan ahead of the kernel before it, unless that one writes the plan.
  RequestBatch on_device = few;
  on_device.page_indices_device = DeviceKind::kCuda;
  ASSERT_TRUE(attention.plan(on_device).ok());
  run(attention, true);
  EXPECT_TRUE(launch.programmatic);
  const std::vector<std::int32_t> grown = {101, 102, 121};
  ASSERT_TRUE(attention.grow(grown).ok());
  run(attention, true);
  EXPECT_FALSE(launch.programmatic);
  run(attention, true);
  EXPECT_TRUE(launch.programmatic);

  // A graph keeps its kernel.
  auto stream = cuda::Stream::create(*device_);
  ASSERT_TRUE(stream.ok());
  const auto graph = cuda::Graph::capture(*device_, stream->handle(), [&] {
    run(attention, true, {stream->handle()});
    return ok_status();
  });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  const std::vector<std::int32_t> both = {1, 2};
  const std::vector<std::int32_t> two = {40, 50};
  RequestBatch three_rows = batch(both, two);
  three_rows.page_indices_device = DeviceKind::kCuda;
  check(attention, reference, three_rows);  // drafts, token by token
  EXPECT_EQ(launch.block[0], 512u);
  const std::vector<std::uint8_t> bits(16, 0xff);
  const std::vector<std::int64_t> bit_offsets = {0, 40};
  three_rows.mask = AttentionMask::kBits;
  three_rows.mask_bits = bits.data();
  three_rows.mask_bytes = static_cast<std::int64_t>(bits.size());
  three_rows.mask_offsets = bit_offsets.data();
  three_rows.q_lens = one.data();
  three_rows.num_requests = 2;
  EXPECT_THAT(attention.plan(three_rows).message(), HasSubstr("cannot run this plan of 2 rows"));

  // Steps over chosen pages go to it too, captured or not; cascades do not.
  const std::vector<std::int64_t> lists = {0, 8, 16}, chosen = {0, 8, -1};
  SelectedBatch step;
  step.num_requests = 3;
  step.kv_lens = kv_lens.data();
  step.budget_tokens = 128;
  step.page_indices = pages_.data();
  step.num_page_indices = kPages;
  step.list_begins = lists.data();
  step.selected_begins = chosen.data();
  options_.decode_kernel = DecodeKernel::kAuto;
  Attention fresh = make();
  for (const auto& [object, threads] : {std::pair{&attention, 512u}, {&fresh, 512u}, {&never, 384u}}) {
    const Status planned = object->plan_selected(step);
    ASSERT_TRUE(planned.ok()) << planned.to_string();
    run(*object, true);
    EXPECT_EQ(launch.block[0], threads);
  }
  const std::vector<std::int32_t> all = {0, 3}, shared_len = {48};
  const CascadeLevel level{1,    all.data(), shared_len.data(), pages_.data(), DeviceKind::kCuda, kPages, lists.data(),
                           false};
  EXPECT_THAT(attention.plan_cascade(3, {&level, 1}).message(), HasSubstr("cannot run this plan of 3 rows"));
}

TEST_F(CudaAttentionTest, TensorMapsAreKeptByPool) {
  Attention attention = make();
  const std::vector<std::int32_t> lens = {1, 1}, two = {2, 2};
  ASSERT_TRUE(attention.plan(batch(two, two)).ok());
  std::vector<std::uint16_t> memory(static_cast<std::size_t>(rows_) * kHeads * kDim);
  const TensorView out = place(cpu_tensor(memory.data(), DType::kBF16, rows_, kHeads, kDim), true);
  const PagedKv first = kv(true);
  PagedKv second = first;
  std::swap(second.k, second.v);
  ASSERT_TRUE(attention.run(q(true), first, out).ok());
  ASSERT_TRUE(attention.run(q(true), second, out).ok());
  auto& calls = fake::state().calls;
  calls.clear();
  for (int layer = 0; layer < 6; ++layer) {
    const void* seen = nullptr;
    fake::state().kernels["fovea_attention"] = [&](void** parameters) {
      seen = static_cast<abi::AttentionArgs*>(parameters[0])->pool.k;
      return [] {};
    };
    const PagedKv& pool = layer % 2 == 0 ? first : second;
    ASSERT_TRUE(attention.run(q(true), pool, out).ok());
    EXPECT_EQ(seen, pool.k.data);
  }
  EXPECT_EQ(calls["cuTensorMapEncodeTiled"], 0);
}

TEST_F(CudaAttentionTest, AppendLaunchesTheKernelOfItsTypes) {
  std::vector<std::uint32_t> rows;
  fake::state().kernels["fovea_append"] = [&](void** parameters) {
    rows.push_back(static_cast<abi::AppendArgs*>(parameters[0])->rows);
    return [] {};
  };
  std::vector<std::int32_t> slots = {0, 1, 2};
  auto& calls = fake::state().calls;
  for (const std::int64_t count : {3, 2, 1}) {
    calls.clear();
    const TensorView k = place(cpu_tensor(q_.data(), DType::kBF16, count, kKvHeads, kDim), true);
    AppendPlaces places;
    places.slots = place(cpu_tensor(slots.data(), DType::kI32, count), true);
    const Status appended = append_paged_kv(k, k, places, kv(true));
    ASSERT_TRUE(appended.ok()) << appended.to_string();
    EXPECT_EQ(calls["cuLaunchKernelEx"], 1);
    EXPECT_EQ(calls["cuModuleGetFunction"], count == 3 ? 1 : 0);
  }
  EXPECT_EQ(rows, (std::vector<std::uint32_t>{3, 2, 1}));
}

TEST_F(CudaAttentionTest, ListsHaveEnds) {
  const std::vector<std::int32_t> q_lens = {1, 1};
  std::vector<std::int32_t> kv_lens = {16, 16};
  const std::vector<std::int64_t> begins = {0, 1}, ends = {1, 2};
  RequestBatch b = batch(q_lens, kv_lens);
  b.list_begins = begins.data();
  b.list_ends = ends.data();
  Attention on_cpu = make_on_cpu(), on_device = make();
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    for (Attention* attention : {&on_cpu, &on_device}) {
      b.page_indices_device = attention == &on_cpu ? DeviceKind::kCpu : kind;
      kv_lens = {15, 16};
      ASSERT_TRUE(attention->plan(b).ok());
      kv_lens = {17, 16};
      const Status beyond = attention->grow(kv_lens);
      EXPECT_EQ(beyond.code(), StatusCode::kOutOfRange);
      EXPECT_THAT(beyond.message(), HasSubstr("request 0 has 17 tokens on 2 pages, its page list has 1"));
      kv_lens = {16, 16};
      EXPECT_TRUE(attention->grow(kv_lens).ok());
      kv_lens = {16, 17};
      EXPECT_EQ(attention->plan(b).code(), StatusCode::kOutOfRange);
    }
  }
}

// What the loaders of kernels would treat each in a way of its own is not launched.
TEST_F(CudaAttentionTest, PagesOfHostListsLieInThePool) {
  Attention attention = make();
  const std::vector<std::int32_t> lens = {1, 1};
  for (const std::int32_t page : {kPages, -1}) {
    pages_[8] = page;
    ASSERT_TRUE(attention.plan(batch(lens, lens)).ok());
    std::vector<std::uint16_t> memory(static_cast<std::size_t>(rows_) * kHeads * kDim);
    const TensorView out = place(cpu_tensor(memory.data(), DType::kBF16, rows_, kHeads, kDim), true);
    const Status refused = attention.run(q(true), kv(true), out);
    EXPECT_EQ(refused.code(), StatusCode::kOutOfRange);
    EXPECT_THAT(refused.message(),
                HasSubstr("page list 1 names page " + std::to_string(page) + ", the pool has pages 0..63"));
  }
}

TEST_F(CudaAttentionTest, SharedPrefixesAndCascades) {
  options_.decode_kernel = DecodeKernel::kGeneral;
  Attention attention = make(), reference = make_on_cpu();
  const std::vector<std::int32_t> q_lens = {1, 1, 1}, kv_lens = {100, 101, 128};
  RequestBatch b = batch(q_lens, kv_lens);
  b.page_stride = 0;  // all requests on the same pages
  const std::vector<std::int64_t> begins = {0, 0, 0};
  b.list_begins = begins.data();
  check(attention, reference, b);
  EXPECT_LT(attention.stats().kv_bytes, attention.stats().kv_bytes_unshared);

  const std::vector<std::int32_t> all = {0, 3}, each = {0, 1, 2, 3}, shared_len = {48}, own = {9, 16, 1};
  const std::vector<std::int64_t> shared_list = {0}, own_lists = {10, 20, 30};
  for (const DeviceKind lists : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    CascadeLevel levels[] = {
        {1, all.data(), shared_len.data(), pages_.data(), lists, kPages, shared_list.data(), false},
        {3, each.data(), own.data(), pages_.data(), lists, kPages, own_lists.data(), true}};
    const Status planned = attention.plan_cascade(3, levels);
    ASSERT_TRUE(planned.ok()) << planned.to_string();
    const Output output = run(attention, true);
    for (CascadeLevel& level : levels) level.page_indices_device = DeviceKind::kCpu;
    ASSERT_TRUE(reference.plan_cascade(3, levels).ok());
    expect_equal(output, run(reference, false));
  }
}

// Reading a run once costs items and merges of its own, so that a little in common is read by each request, unless the
// caller asks for the kernel that shares.
TEST_F(CudaAttentionTest, CommonPagesAreReadOnceWhereThatIsFaster) {
  constexpr int kOwn = 31;
  Attention attention = make(), on_cpu = make_on_cpu();
  options_.decode_kernel = DecodeKernel::kGeneral;
  Attention sharing = make();
  const std::vector<std::int32_t> q_lens = {1, 1}, kv_lens = {kPage * kOwn, kPage * kOwn};
  std::vector<std::int32_t> lists(2 * kOwn);
  for (const int common : {0, 3, 16}) {
    SCOPED_TRACE(common);
    for (int i = 0; i < 2 * kOwn; ++i) {
      lists[static_cast<std::size_t>(i)] = i >= kOwn && i - kOwn < common ? i - kOwn : i;
    }
    RequestBatch b = batch(q_lens, kv_lens);
    b.page_indices = lists.data();
    b.page_stride = kOwn;
    check(attention, on_cpu, b);
    EXPECT_EQ(attention.stats().kv_bytes, attention.stats().kv_bytes_unshared);
    const std::string words = attention.explain();
    EXPECT_NE(words.find("low_batch: decode of 4 (request, KV head) pairs"), std::string::npos) << words;
    EXPECT_EQ(words.find("save too little") != std::string::npos, common > 0) << words;
    check(sharing, on_cpu, b);
    EXPECT_EQ(sharing.stats().kv_bytes * 2 * kOwn, sharing.stats().kv_bytes_unshared * (2 * kOwn - common));
    EXPECT_EQ(sharing.explain().find("general: requests share runs") != std::string::npos, common > 0);
  }
}

TEST_F(CudaAttentionTest, ARunIsOneLaunchAndNothingElse) {
  Attention attention = make();
  const std::vector<std::int32_t> q_lens = {1, 1}, kv_lens = {100, 30};
  ASSERT_TRUE(attention.plan(batch(q_lens, kv_lens)).ok());
  run(attention, true);
  auto& calls = fake::state().calls;
  calls.clear();
  run(attention, true);
  calls.erase("cuCtxGetCurrent");
  EXPECT_EQ(calls, (std::map<std::string, int>{{"cuLaunchKernelEx", 1}}));
  const std::uint32_t grid = fake::state().launch.grid[0];
  EXPECT_EQ(grid, static_cast<std::uint32_t>(fake::kMultiprocessors));
  // A plan is copies alone, and a pool elsewhere is two tensor maps at most.
  calls.clear();
  ASSERT_TRUE(attention.plan(batch(q_lens, kv_lens)).ok());
  EXPECT_EQ(calls["cuMemAlloc_v2"] + calls["cuMemHostAlloc"] + calls["cuStreamSynchronize"], 0);
  EXPECT_EQ(calls["cuMemcpyHtoDAsync_v2"], 2);  // the plan, the page lists
  v_.insert(v_.begin(), 8, 0);
  run(attention, true);
  EXPECT_LE(calls["cuTensorMapEncodeTiled"], 2);
}

// Requests beyond the budget read a list a KV head, which kernels of the graph write: every head is what a dense batch
// over its list gives. One plan serves all steps.
TEST_F(CudaAttentionTest, StepsOverChosenPages) {
  constexpr int kBudgetPages = 3, kStride = 5;
  options_.max_selected = 2;
  Attention attention = make(), on_cpu = make_on_cpu(), reference = make_on_cpu();
  auto stream = cuda::Stream::create(*device_);
  ASSERT_TRUE(stream.ok());
  const std::vector<std::int32_t> q_lens(4, 1);
  std::vector<std::int32_t> kv_lens = {97, 100, 30, 97}, list_tokens(4);
  RequestBatch dense = batch(q_lens, kv_lens);
  std::vector<std::int32_t> entries = pages_;
  entries.resize(entries.size() + 2 * kKvHeads * kStride, -1);
  const std::vector<std::int64_t> lists = {0, 8, 16, 24}, chosen = {kPages, kPages + kKvHeads * kStride, 0, -1};
  SelectedBatch step;
  step.num_requests = 4;
  step.kv_lens = kv_lens.data();
  step.budget_tokens = kBudgetPages * kPage;
  step.page_indices = entries.data();
  step.num_page_indices = static_cast<std::int64_t>(entries.size());
  step.list_begins = lists.data();
  step.selected_begins = chosen.data();
  step.selected_stride = kStride;
  step.list_tokens = list_tokens.data();
  const Status planned = attention.plan_selected(step, {stream->handle()});
  ASSERT_TRUE(planned.ok()) << planned.to_string();
  std::vector<std::uint16_t> out(static_cast<std::size_t>(rows_) * kHeads * kDim);
  const TensorView to = place(cpu_tensor(out.data(), DType::kBF16, rows_, kHeads, kDim), true);
  std::optional<cuda::Graph> graph;
  for (int n = 0; n < 31; ++n, ++kv_lens[0], ++kv_lens[1], kv_lens[2] += n == 0) {
    std::vector<std::vector<std::int32_t>> seen(kKvHeads, pages_);  // pages that a head sees, requests 8 entries apart
    for (int r = 0; r < 4; ++r) {
      const int pages = (kv_lens[r] + kPage - 1) / kPage;
      list_tokens[r] = r >= 2 ? kv_lens[r] : kv_lens[r] - (pages - kBudgetPages) * kPage;
      for (int h = 0; r < 2 && h < kKvHeads; ++h) {
        std::vector<std::int32_t> order(static_cast<std::size_t>(pages) - 1);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random_);
        std::sort(order.begin(), order.begin() + kBudgetPages - 1);
        order[kBudgetPages - 1] = pages - 1;
        for (int i = 0; i < kBudgetPages; ++i) {
          seen[h][8 * r + i] = entries[static_cast<std::size_t>(chosen[r] + h * kStride + i)] =
              pages_[8 * r + order[i]];
        }
      }
    }
    if (!graph.has_value()) {
      auto captured = cuda::Graph::capture(
          *device_, stream->handle(), [&] { return attention.run(q(true), kv(true), to, {}, {stream->handle()}); });
      ASSERT_TRUE(captured.ok()) << captured.status().to_string();
      graph.emplace(std::move(*captured));
    }
    ASSERT_TRUE(graph->launch(stream->handle()).ok());
    ASSERT_TRUE(on_cpu.plan_selected(step).ok());
    const Output here = run(on_cpu, false);
    dense.kv_lens = list_tokens.data();
    for (int h = 0; h < kKvHeads; ++h) {
      dense.page_indices = seen[h].data();
      ASSERT_TRUE(reference.plan(dense).ok());
      const Output expected = run(reference, false);
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (static_cast<int>(i) / kDim % kHeads / (kHeads / kKvHeads) != h) continue;
        ASSERT_NEAR(bf16_to_float(out[i]), bf16_to_float(expected.out[i]), 0.02) << "step " << n << " output " << i;
        ASSERT_NEAR(bf16_to_float(here.out[i]), bf16_to_float(expected.out[i]), 0.02) << "step " << n;
      }
    }
  }
  // Lengths elsewhere would not reach the graph.
  step.list_tokens = nullptr;
  EXPECT_THAT(attention.plan_selected(step).message(), HasSubstr("list_tokens"));
  EXPECT_EQ(attention.grow(kv_lens).code(), StatusCode::kInvalidArgument);  // and the plan is gone
}

TEST_F(CudaAttentionTest, UpToTheBudgetBitsAreThoseOfPlan) {
  options_.decode_kernel = DecodeKernel::kGeneral;
  Attention attention = make();
  const std::vector<std::int32_t> q_lens(4, 1), kv_lens = {128, 100, 30, 1};
  RequestBatch dense = batch(q_lens, kv_lens);
  dense.page_indices_device = DeviceKind::kCuda;
  ASSERT_TRUE(attention.plan(dense).ok());
  const Output expected = run(attention, true);
  const std::uint32_t items = attention.stats().num_items;
  const std::vector<std::int64_t> lists = {0, 8, 16, 24}, chosen = {40, 40, 40, 40};
  SelectedBatch step;
  step.num_requests = 4;
  step.kv_lens = kv_lens.data();
  step.budget_tokens = 128;
  step.page_indices = pages_.data();
  step.num_page_indices = kPages;
  step.list_begins = lists.data();
  step.selected_begins = chosen.data();
  for (const std::int32_t* tokens : {static_cast<const std::int32_t*>(nullptr), kv_lens.data()}) {
    step.list_tokens = tokens;
    ASSERT_TRUE(attention.plan_selected(step).ok());
    EXPECT_EQ(attention.stats().num_items, items);
    const Output output = run(attention, true);
    EXPECT_EQ(output.out, expected.out);
    EXPECT_EQ(output.lse, expected.lse);
  }
  step.budget_tokens = 64;  // beyond it, with lists that end beyond the array
  step.num_page_indices = 43;
  EXPECT_EQ(attention.plan_selected(step).code(), StatusCode::kOutOfRange);
  step.budget_tokens = 60;
  EXPECT_THAT(attention.plan_selected(step).message(), HasSubstr("multiple of page_tokens"));
}

TEST_F(CudaAttentionTest, WhatCallersGetWrong) {
  const auto expect = [](const Status& status, StatusCode code, const std::string& part) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(part));
  };
  options_.max_page_entries = 64;
  options_.max_mask_bytes = 16;
  Attention attention = make();
  std::vector<std::int32_t> q_lens = {1, 1}, kv_lens = {100, 30};
  RequestBatch b = batch(q_lens, kv_lens);
  ASSERT_TRUE(attention.plan(b).ok());
  std::vector<std::uint16_t> memory(static_cast<std::size_t>(rows_) * kHeads * kDim + 16);
  const TensorView out = place(cpu_tensor(memory.data(), DType::kBF16, rows_, kHeads, kDim), true);
  expect(attention.run(q(false), kv(true), out), StatusCode::kInvalidArgument, "on cpu, expected it on cuda:0");
  TensorView other = out;
  other.device_index = 1;
  expect(attention.run(q(true), kv(true), other), StatusCode::kInvalidArgument, "on cuda:1, expected it on cuda:0");
  other = out;
  other.data = memory.data() + 1;
  expect(attention.run(q(true), kv(true), other), StatusCode::kInvalidArgument, "multiple of 16 bytes");
  other = q(true);
  other.strides[0] += 4;
  expect(attention.run(other, kv(true), out), StatusCode::kInvalidArgument, "multiple of 16 bytes");
  PagedKv pool = kv(true);
  pool.k.strides[1] += 4;
  pool.v.strides[1] += 4;
  expect(attention.run(q(true), pool, out), StatusCode::kInvalidArgument, "tokens");
  pool = kv(true);
  pool.k.data = k_.data() + 1;
  expect(attention.run(q(true), pool, out), StatusCode::kInvalidArgument, "multiple of 16 bytes");
  pool = kv(true);
  pool.k.dtype = pool.v.dtype = DType::kF16;
  expect(attention.run(q(true), pool, out), StatusCode::kInvalidArgument, "declared was bf16");
  fake::state().failures["cuLaunchKernelEx"] = 700;
  expect(attention.run(q(true), kv(true), out), StatusCode::kInternal, "CUDA_ERROR_ILLEGAL_ADDRESS");
  fake::state().failures.clear();
  kv_lens = {128, 128};
  q_lens = {1, 1};
  std::vector<std::uint8_t> bits(64);
  const std::vector<std::int64_t> offsets = {0, 128};
  b.mask = AttentionMask::kBits;
  b.mask_bits = bits.data();
  b.mask_bytes = 64;
  b.mask_offsets = offsets.data();
  expect(attention.plan(b), StatusCode::kOutOfRange, "max_mask_bytes");
  b = batch(q_lens, kv_lens);
  options_.max_page_entries = 10;
  Attention small = make();
  expect(small.plan(b), StatusCode::kOutOfRange, "max_page_entries");
  expect(attention.grow(kv_lens), StatusCode::kInvalidArgument, "plan() first");

  options_.device = "cuda:3";
  expect(Attention::create(options_).status(), StatusCode::kNotFound, "cuda:3");
  options_.device = "cuda:0";
  fake::state().failures["cuMemAlloc_v2"] = 2;
  expect(Attention::create(options_).status(), StatusCode::kResourceExhausted, "cuda:0");
  fake::state().failures.clear();
  options_.max_mask_bytes = std::int64_t{1} << 40;
  expect(Attention::create(options_).status(), StatusCode::kResourceExhausted, "1099511627776 bytes on cuda:0");
  options_.max_mask_bytes = 16;
  options_.q_dtype = DType::kF32;
  expect(Attention::create(options_).status(), StatusCode::kUnsupported, "f16 or bf16");
}

// Whatever lengths are declared: the kernel for many pairs is there for short ones.
TEST(AttentionKernels, WarpsAreThereForAsManyPairs) {
  AttentionOptions o;
  o.device = "cuda:0";
  for (const std::int32_t requests : {8, 32, 64, 256}) {
    for (const std::int32_t pages : {4, 128, 4096}) {
      o.max_requests = o.max_rows = requests;
      o.max_pages_per_request = pages;
      const auto variant = variant_spec(o);
      ASSERT_TRUE(variant.ok());
      const auto allowed = allowed_kernels(o, *variant, "sm_90a", 132);
      ASSERT_TRUE(allowed.ok());
      EXPECT_EQ(allowed->menu.has(tune::PlanKernel::kWarpPerWorker), requests * 8 >= 66) << requests << " of " << pages;
      EXPECT_TRUE(allowed->menu.has(tune::PlanKernel::kLowBatch));
    }
  }
}

TEST(AttentionKernels, TeamsAreThereForAsManyPairs) {
  AttentionOptions o;
  o.device = "cuda:0";
  o.num_qo_heads = 96;
  for (const DType kv_dtype : {DType::kBF16, DType::kF8E4M3}) {
    o.kv_dtype = kv_dtype;
    for (const std::int32_t requests : {8, 32, 64, 256}) {
      o.max_requests = o.max_rows = requests;
      const auto variant = variant_spec(o);
      ASSERT_TRUE(variant.ok());
      const auto allowed = allowed_kernels(o, *variant, "sm_90a", 132);
      ASSERT_TRUE(allowed.ok());
      EXPECT_EQ(allowed->menu.has(tune::PlanKernel::kWarpTeams), requests * 8 >= (kv_dtype == DType::kBF16 ? 528 : 99))
          << requests;
    }
  }
}

TEST_F(CudaAttentionTest, AnObjectForOneRequestIsSmall) {
  AttentionOptions o;
  o.device = "cuda:0";
  o.max_requests = 1;
  o.max_rows = 1;
  for (const bool share : {false, true}) {
    o.share_prefixes = share;
    Result<Attention> made = Attention::create(o);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_LE(made->workspace_bytes(), std::size_t{8} << 20);
  }
}

TEST_F(CudaAttentionTest, NothingOutlivesAnObject) {
  const auto before = fake::state().alive;
  {
    Attention attention = make();
    const std::vector<std::int32_t> lens = {1, 1};
    ASSERT_TRUE(attention.plan(batch(lens, lens)).ok());
    run(attention, true);
  }
  fake::state().alive.modules = before.modules;    // kernels stay loaded,
  fake::state().alive.contexts = before.contexts;  // and devices open
  EXPECT_TRUE(fake::state().alive == before);
}

TEST(AttentionKernels, ThoseOfAnObjectForWarmUp) {
  AttentionOptions options;
  options.num_qo_heads = kHeads;
  options.num_kv_heads = kKvHeads;
  const auto sources = attention_kernels(options, "sm_90a");
  ASSERT_TRUE(sources.ok()) << sources.status().to_string();
  // Attention of all plans, of those that share, by warps, for few requests and for many query tokens; append, merge,
  // what cuts plans again.
  EXPECT_EQ(sources->size(), 8u);
  EXPECT_EQ(attention_kernels(options, "sm_75").status().code(), StatusCode::kUnsupported);
  options.device_growth = false;
  EXPECT_EQ(attention_kernels(options, "sm_90a")->size(), 7u);
  options.max_requests = 1;  // nobody to share with, and too little for warp_per_worker
  EXPECT_EQ(attention_kernels(options, "sm_90a")->size(), 5u);
  options.q_dtype = DType::kF32;
  EXPECT_EQ(attention_kernels(options, "sm_90a").status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace fovea
