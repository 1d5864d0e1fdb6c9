// Plans, growth and runs of an Attention on a CUDA device around graphs that captured them, on a driver without a GPU.
#include "attention/cuda_attention_test_util.h"
#include "cuda/driver_api.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;

// A replay launches the captured kernel over the plan of then: plan() makes one for that kernel, or refuses.
TEST_F(CudaAttentionTest, PlansAreForTheKernelThatAGraphCaptured) {
  options_.num_qo_heads = 16;
  options_.num_kv_heads = 8;
  options_.max_requests = 128;
  options_.max_rows = 512;
  const std::vector<std::int32_t> lists(128 * 128, 3);
  auto stream = cuda::Stream::create(*device_);
  ASSERT_TRUE(stream.ok());
  std::vector<std::uint16_t> memory(std::size_t{512} * 16 * kDim);
  const auto plan = [&](Attention& attention, int requests, int q_len) {
    const std::vector<std::int32_t> q_lens(static_cast<std::size_t>(requests), q_len), kv_lens(q_lens.size(), 2000);
    RequestBatch b = batch(q_lens, kv_lens);
    b.page_indices = lists.data();
    b.page_indices_device = DeviceKind::kCuda;
    b.page_stride = 128;
    return attention.plan(b, {stream->handle()});
  };
  options_.max_pages_per_request = 128;
  fake::state().kernels["fovea_attention"] = [](void**) { return [] {}; };
  const auto capture = [&](Attention& attention) {
    const TensorView rows = place(cpu_tensor(memory.data(), DType::kBF16, rows_, 16, kDim), true);
    PagedKv pool;
    pool.k = pool.v = place(cpu_tensor(k_.data(), DType::kBF16, kPages / 4, kPage, 8, kDim), true);
    const auto graph = cuda::Graph::capture(*device_, stream->handle(),
                                            [&] { return attention.run(rows, pool, rows, {}, {stream->handle()}); });
    return graph.status();
  };
  const auto threads_of_capture = [&](Attention& attention) {
    EXPECT_FALSE(attention.captured());
    EXPECT_TRUE(capture(attention).ok());
    EXPECT_TRUE(attention.captured());
    return fake::state().launch.block[0];
  };

  // Captured with low_batch, which takes two tokens of a request one by one, but no block rows.
  Attention few = make();
  ASSERT_TRUE(plan(few, 4, 1).ok());
  const std::uint32_t few_threads = threads_of_capture(few);
  const Status more_rows = plan(few, 4, 2);
  EXPECT_EQ(more_rows.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(more_rows.message(), HasSubstr("a plan of 8 rows, but graphs captured run() with tensors of 4 rows"));
  ASSERT_TRUE(plan(few, 2, 2).ok());
  ASSERT_TRUE(capture(few).ok());
  EXPECT_EQ(fake::state().launch.block[0], few_threads);
  const std::vector<std::int32_t> row_begins = {0, 3}, level_lens = {64};
  const std::vector<std::int64_t> level_lists = {0};
  const CascadeLevel level = {
      1, row_begins.data(), level_lens.data(), lists.data(), DeviceKind::kCpu, 128, level_lists.data(), false};
  EXPECT_THAT(few.plan_cascade(3, {&level, 1}).message(), HasSubstr("cannot run this plan of 3 rows"));
  ASSERT_TRUE(plan(few, 3, 1).ok());
  ASSERT_TRUE(capture(few).ok());
  EXPECT_EQ(fake::state().launch.block[0], few_threads);

  // Captured with the kernel for all plans, which runs no plan of warp_per_worker.
  Attention all = make();
  ASSERT_TRUE(plan(all, 128, 4).ok());
  const std::uint32_t all_threads = threads_of_capture(all);
  ASSERT_TRUE(plan(all, 128, 1).ok());
  EXPECT_EQ(all.stats().num_workers, static_cast<std::uint32_t>(fake::kMultiprocessors));
  ASSERT_TRUE(capture(all).ok());
  EXPECT_EQ(fake::state().launch.block[0], all_threads);

  // Whoever promises to replay by rows has a kernel for each.
  options_.graphs_by_rows = true;
  Attention by_rows = make();
  ASSERT_TRUE(plan(by_rows, 4, 1).ok());
  ASSERT_TRUE(capture(by_rows).ok());
  EXPECT_EQ(fake::state().launch.block[0], few_threads);
  ASSERT_TRUE(plan(by_rows, 128, 1).ok());
  EXPECT_GT(by_rows.stats().num_workers, static_cast<std::uint32_t>(fake::kMultiprocessors));
  EXPECT_THAT(by_rows.plan_cascade(4, {&level, 1}).message(), HasSubstr("cannot run this plan of 4 rows"));
}

// Scales and sinks of a run are arguments of its launch: nothing is planned or made anew, and a graph keeps its own.
TEST_F(CudaAttentionTest, ScalesAndSinksMayDifferFromRunToRun) {
  std::vector<float> sinks(kHeads, 0.0f), others(kHeads, 1.5f);
  Attention plain = make();
  options_.sinks = place(cpu_tensor(sinks.data(), DType::kF32, kHeads), true);
  Attention with_sinks = make();
  abi::AttentionArgs seen{};
  fake::state().kernels["fovea_attention"] = [&](void** parameters) {
    return [&seen, args = *static_cast<abi::AttentionArgs*>(parameters[0])] { seen = args; };
  };
  const auto params = [&] { return *reinterpret_cast<const AttentionParams*>(seen.variant_params); };
  const std::vector<std::int32_t> lens = {1, 1};
  const RequestBatch b = batch(lens, lens);
  std::vector<std::uint16_t> memory(static_cast<std::size_t>(rows_) * kHeads * kDim);
  const TensorView out = place(cpu_tensor(memory.data(), DType::kBF16, rows_, kHeads, kDim), true);
  const float scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  RunValues values;
  values.logit_scale = 0.5f;
  values.sinks = place(cpu_tensor(others.data(), DType::kF32, kHeads), true);
  ASSERT_TRUE(plain.plan(b).ok());
  EXPECT_THAT(plain.run(q(true), kv(true), out, {}, {}, values).message(), HasSubstr("made without"));
  values.sinks = {};
  ASSERT_TRUE(plain.run(q(true), kv(true), out, {}, {}, values).ok());
  EXPECT_EQ(params().sm_scale, 0.5f * scale);
  ASSERT_TRUE(plain.run(q(true), kv(true), out).ok());
  EXPECT_EQ(params().sm_scale, scale);
  values.logit_scale = std::nanf("");
  EXPECT_EQ(plain.run(q(true), kv(true), out, {}, {}, values).code(), StatusCode::kInvalidArgument);

  auto stream = cuda::Stream::create(*device_);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE(with_sinks.plan(b, {stream->handle()}).ok());
  values.logit_scale = 0.25f;
  values.sinks = place(cpu_tensor(others.data(), DType::kF32, kHeads), true);
  const auto graph = cuda::Graph::capture(*device_, stream->handle(), [&] {
    return with_sinks.run(q(true), kv(true), out, {}, {stream->handle()}, values);
  });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  ASSERT_TRUE(with_sinks.run(q(true), kv(true), out, {}, {stream->handle()}).ok());
  EXPECT_EQ(params().sinks, sinks.data());
  EXPECT_EQ(params().sm_scale, scale);
  ASSERT_TRUE(graph->launch(stream->handle()).ok());
  EXPECT_EQ(params().sinks, others.data());
  EXPECT_EQ(params().sm_scale, 0.25f * scale);
  values.sinks.shape[0] = kHeads - 1;
  EXPECT_EQ(with_sinks.run(q(true), kv(true), out, {}, {}, values).code(), StatusCode::kInvalidArgument);
}

TEST_F(CudaAttentionTest, OneGraphServesEveryLaterPlan) {
  Attention attention = make(), eager = make();
  auto stream = cuda::Stream::create(*device_);
  ASSERT_TRUE(stream.ok());
  std::vector<std::int32_t> q_lens(6, 1), kv_lens(6, 1);
  ASSERT_TRUE(attention.plan(batch(q_lens, kv_lens), {stream->handle()}).ok());
  std::vector<std::uint16_t> out(static_cast<std::size_t>(rows_) * kHeads * kDim);
  const TensorView to = place(cpu_tensor(out.data(), DType::kBF16, rows_, kHeads, kDim), true);
  const auto graph = cuda::Graph::capture(*device_, stream->handle(), [&] {
    const Status refused = attention.plan(batch(q_lens, kv_lens), {stream->handle()});
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("capturing a graph"));
    EXPECT_FALSE(attention.run(q(true), kv(true), to, {}, {stream->handle()}).ok());  // the plan is gone
    return ok_status();
  });
  ASSERT_TRUE(graph.ok());
  ASSERT_TRUE(attention.plan(batch(q_lens, kv_lens), {stream->handle()}).ok());
  const auto captured = cuda::Graph::capture(
      *device_, stream->handle(), [&] { return attention.run(q(true), kv(true), to, {}, {stream->handle()}); });
  ASSERT_TRUE(captured.ok()) << captured.status().to_string();
  for (int step = 0; step < 20; ++step) {
    for (std::size_t i = 0; i < kv_lens.size(); ++i) kv_lens[i] = 1 + (step * 31 + static_cast<int>(i) * 17) % 128;
    ASSERT_TRUE(attention.plan(batch(q_lens, kv_lens), {stream->handle()}).ok());
    ASSERT_TRUE(captured->launch(stream->handle()).ok());
    ASSERT_TRUE(eager.plan(batch(q_lens, kv_lens)).ok());
    ASSERT_EQ(run(eager, true).out, out) << step;
    for (std::int32_t& n : kv_lens) n = std::min(n + 20 * step, 128);  // beyond the room of packed lists too
    ASSERT_TRUE(attention.grow(kv_lens, {stream->handle()}).ok());
    ASSERT_TRUE(captured->launch(stream->handle()).ok());
    ASSERT_TRUE(eager.plan(batch(q_lens, kv_lens)).ok());
    ASSERT_EQ(run(eager, true).out, out) << step << " grown";
  }
}

// Page lists on the device: growing is one launch, and the plan there is the one that planning anew would make.
TEST_F(CudaAttentionTest, GrowingIsOneLaunchWhereListsLieOnTheDevice) {
  Attention attention = make(), reference = make();
  std::vector<std::int32_t> q_lens(6, 1), kv_lens = {1, 60, 90, 0, 2, 90};
  q_lens[3] = 0;
  RequestBatch b = batch(q_lens, kv_lens);
  b.page_indices_device = DeviceKind::kCuda;
  ASSERT_TRUE(attention.plan(b).ok());
  auto& calls = fake::state().calls;
  for (int step = 1; step <= 100; ++step) {
    for (std::size_t i = 0; i < kv_lens.size(); ++i) kv_lens[i] += (step + static_cast<int>(i)) % 3 == 0;
    if (step % 25 == 0) kv_lens[4] += 20;
    calls.clear();
    ASSERT_TRUE(attention.grow(kv_lens).ok());
    EXPECT_EQ(calls["cuLaunchKernelEx"], 1);
    EXPECT_EQ(calls["cuMemcpyHtoDAsync_v2"] + calls["cuStreamSynchronize"] + calls["cuMemAlloc_v2"], 0);
    const Output grown = run(attention, true);
    ASSERT_TRUE(reference.plan(b).ok());
    ASSERT_EQ(run(reference, true).out, grown.out) << step;
  }
  EXPECT_EQ(reschedules_, 100);
  // The host's view follows when asked.
  EXPECT_EQ(attention.stats().kv_bytes, reference.stats().kv_bytes);
  const std::vector<std::int32_t> grown = kv_lens;
  kv_lens[1] -= 1;
  const Status shrank = attention.grow(kv_lens);
  EXPECT_EQ(shrank.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(shrank.message(), HasSubstr("request 1 shrank"));
  kv_lens[1] = kPages * kPage + 1;
  EXPECT_EQ(attention.grow(kv_lens).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(attention.grow({kv_lens.data(), 2}).code(), StatusCode::kInvalidArgument);
  // What is refused changes nothing.
  kv_lens = grown;
  EXPECT_EQ(run(attention, true).out, run(reference, true).out);
  ASSERT_TRUE(attention.grow(grown).ok());

  // Lists that lie within page_indices as long as lengths stay small.
  kv_lens[5] = 90;
  b.num_page_indices = 5 * b.page_stride + 6;
  ASSERT_TRUE(attention.plan(b).ok());
  kv_lens[5] = 6 * kPage + 1;
  EXPECT_EQ(attention.grow(kv_lens).code(), StatusCode::kOutOfRange);
  b.num_page_indices = 0;

  // Without what the device needs the host does it.
  reschedules_ = 0;
  options_.device_growth = false;
  Attention by_host = make();
  kv_lens = grown;
  ASSERT_TRUE(by_host.plan(b).ok());
  ++kv_lens[0];
  ASSERT_TRUE(by_host.grow(kv_lens).ok());
  EXPECT_EQ(reschedules_, 0);
}

TEST_F(CudaAttentionTest, GrowingByLengthsOfTheDeviceIsOneLaunchThatGraphsRecord) {
  std::vector<std::int32_t> q_lens = {1, 1}, kv_lens = {100, 30};
  const TensorView lens = place(cpu_tensor(kv_lens.data(), DType::kI32, 2), true);
  RequestBatch b = batch(q_lens, kv_lens);
  b.page_indices_device = DeviceKind::kCuda;
  options_.device_growth = false;
  Attention fixed = make();
  ASSERT_TRUE(fixed.plan(b).ok());
  EXPECT_EQ(fixed.grow_on_device(lens).code(), StatusCode::kInvalidArgument);

  options_.device_growth = true;
  Attention attention = make(), reference = make();
  EXPECT_EQ(attention.grow_on_device(lens).code(), StatusCode::kInvalidArgument);  // no plan
  ASSERT_TRUE(attention.plan(b).ok());
  auto stream = cuda::Stream::create(*device_);
  ASSERT_TRUE(stream.ok());
  auto& calls = fake::state().calls;
  calls.clear();
  const auto graph = cuda::Graph::capture(*device_, stream->handle(),
                                          [&] { return attention.grow_on_device(lens, {stream->handle()}); });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ(calls["cuLaunchKernelEx"], 1);
  EXPECT_EQ(reschedules_, 0);
  const auto expect_plan_of_now = [&] {
    const Output grown = run(attention, true);
    ASSERT_TRUE(reference.plan(b).ok());
    EXPECT_EQ(run(reference, true).out, grown.out);
  };
  kv_lens = {128, 77};
  ASSERT_TRUE(graph->launch(stream->handle()).ok());
  EXPECT_EQ(reschedules_, 1);
  expect_plan_of_now();
  ASSERT_TRUE(graph->launch(stream->handle()).ok());
  run(attention, true);
  EXPECT_FALSE(fake::state().launch.programmatic) << "a replay may write the plan that the kernel reads";
  // The host does not know how far replays went, so it makes the whole plan.
  kv_lens = {101, 40};
  ASSERT_TRUE(attention.grow(kv_lens, {stream->handle()}).ok());
  EXPECT_EQ(reschedules_, 2);
  expect_plan_of_now();

  // What the device refuses, callers can read.
  EXPECT_TRUE(attention.growth_status({stream->handle()}).ok());
  kv_lens = {102, 39};
  ASSERT_TRUE(attention.grow_on_device(lens, {stream->handle()}).ok());
  const Status shrank = attention.growth_status({stream->handle()});
  EXPECT_EQ(shrank.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(shrank.message(), HasSubstr("request 1"));
  kv_lens = {102, 40};
  ASSERT_TRUE(attention.grow_on_device(lens, {stream->handle()}).ok());
  EXPECT_TRUE(attention.growth_status({stream->handle()}).ok());

  TensorView wrong = lens;
  wrong.shape[0] = 1;
  EXPECT_EQ(attention.grow_on_device(wrong).code(), StatusCode::kInvalidArgument);
  RequestBatch masked = batch(q_lens, kv_lens);
  const std::vector<std::uint8_t> bits(64);
  const std::vector<std::int64_t> offsets = {0, 104};
  masked.mask = AttentionMask::kBits;
  masked.mask_bits = bits.data();
  masked.mask_bytes = 64;
  masked.mask_offsets = offsets.data();
  ASSERT_TRUE(attention.plan(masked).ok());
  EXPECT_EQ(attention.grow_on_device(lens).code(), StatusCode::kUnsupported);
}

// A replayed growth meets the plan of then, whichever kernel it is for.
TEST_F(CudaAttentionTest, AGrowthFitsThePlansOfEveryKernel) {
  options_.num_qo_heads = 16;
  options_.num_kv_heads = 8;
  options_.max_requests = options_.max_rows = 128;
  options_.max_pages_per_request = 128;
  Attention attention = make();
  auto stream = cuda::Stream::create(*device_);
  ASSERT_TRUE(stream.ok());
  const std::vector<std::int32_t> lists(128 * 128, 3);
  const auto plan = [&](std::vector<std::int32_t>& kv_lens) {
    const std::vector<std::int32_t> q_lens(kv_lens.size(), 1);
    RequestBatch b = batch(q_lens, kv_lens);
    b.page_indices = lists.data();
    b.page_indices_device = DeviceKind::kCuda;
    b.page_stride = 128;
    return attention.plan(b, {stream->handle()});
  };
  const auto lengths = [&](std::vector<std::int32_t>& kv_lens) {
    return place(cpu_tensor(kv_lens.data(), DType::kI32, static_cast<std::int64_t>(kv_lens.size())), true);
  };
  std::vector<std::int32_t> few = {100, 101}, many(128, 2000);
  const Status planned = plan(few);
  ASSERT_TRUE(planned.ok()) << planned.to_string();
  ASSERT_TRUE(attention.grow_on_device(lengths(few), {stream->handle()}).ok());
  const abi::RescheduleArgs of_few = reschedule_args_;
  ASSERT_TRUE(plan(many).ok());
  ASSERT_TRUE(attention.grow_on_device(lengths(many), {stream->handle()}).ok());
  abi::DevicePlanHeader header;
  std::memcpy(&header, reschedule_args_.plan, sizeof header);
  EXPECT_NE(header.counts.flags & abi::kPlanWarpStarts, 0u);
  EXPECT_EQ(reschedule_args_.scratch, of_few.scratch);
  EXPECT_EQ(reschedule_args_.smem_bytes, of_few.smem_bytes);
}

// As Python collects garbage at any time: PyTorch records in global mode, which allocating and freeing would spoil.
TEST_F(CudaAttentionTest, ObjectsComeAndGoWhileAStreamRecords) {
  auto stream = cuda::Stream::create(*device_);
  ASSERT_TRUE(stream.ok());
  std::optional<Attention> attention = make();
  const cuda::DriverApi& api = device_->driver().api();
  ASSERT_EQ(api.stream_begin_capture(stream->handle(), cuda::kCuCaptureGlobal), 0);
  attention.reset();
  attention = make();
  attention.reset();
  cuda::CuGraph graph = nullptr;
  EXPECT_EQ(api.stream_end_capture(stream->handle(), &graph), 0);
  ASSERT_EQ(api.stream_begin_capture(stream->handle(), cuda::kCuCaptureGlobal), 0);
  cuda::CuAddress address = 0;
  EXPECT_NE(api.memory_allocate(&address, 16), 0) << "what the mode is for";
  cuda::CuGraph spoiled = nullptr;
  EXPECT_NE(api.stream_end_capture(stream->handle(), &spoiled), 0);
  EXPECT_EQ(api.graph_destroy(graph), 0);
}

TEST_F(CudaAttentionTest, PageListsStayWhereAGraphReadsThem) {
  Attention attention = make();
  const std::vector<std::int32_t> lens = {1, 1};
  const RequestBatch host = batch(lens, lens);
  RequestBatch device = host;
  device.page_indices_device = DeviceKind::kCuda;
  auto stream = cuda::Stream::create(*device_);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE(attention.plan(device, {stream->handle()}).ok());
  ASSERT_TRUE(attention.plan(host, {stream->handle()}).ok());  // nothing captured them yet
  ASSERT_TRUE(attention.plan(device, {stream->handle()}).ok());
  std::vector<std::uint16_t> out(static_cast<std::size_t>(rows_) * kHeads * kDim);
  const TensorView to = place(cpu_tensor(out.data(), DType::kBF16, rows_, kHeads, kDim), true);
  ASSERT_TRUE(cuda::Graph::capture(*device_, stream->handle(), [&] {
                return attention.run(q(true), kv(true), to, {}, {stream->handle()});
              }).ok());
  ASSERT_TRUE(attention.plan(device, {stream->handle()}).ok());
  const Status refused = attention.plan(host, {stream->handle()});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("a graph captured run()"));
  RequestBatch elsewhere = device;
  elsewhere.page_indices += 4;
  EXPECT_EQ(attention.plan(elsewhere, {stream->handle()}).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(attention.run(q(true), kv(true), to, {}, {stream->handle()}).ok());  // the plan is gone
  EXPECT_TRUE(attention.plan(device, {stream->handle()}).ok());
}

}  // namespace
}  // namespace fovea
