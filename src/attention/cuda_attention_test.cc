// The CUDA implementation of the public attention API on a driver without a GPU, whose kernel is the CPU's executor
// over the plan as it lies in device memory: what reaches the device, when, and what callers get wrong. The kernels
// themselves are tested on a GPU.
#include "attention/cuda_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>

#include "abi/attention_args.h"
#include "abi/recut_args.h"
#include "attention/cuda_executor.h"
#include "base/half.h"
#include "cpu/attention/attention.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "cuda/testing/fake_driver.h"
#include "testing/attention_case.h"
#include "testing/host_recut.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;
namespace fake = cuda::fake;

// Before anything asks for the driver or for kernels.
const bool kPrepared = fake::name_driver_and_cache();

ThreadPool& threads() {
  static ThreadPool pool(1);
  return pool;
}

// The packed plan as the executor of the CPU reads it.
void execute(const abi::AttentionArgs& args, std::int64_t rows, std::int64_t heads, std::int64_t head_dim) {
  abi::DevicePlanHeader header;
  std::memcpy(&header, args.plan, sizeof header);
  const auto at = [&](std::uint32_t offset) { return args.plan + offset; };
  std::vector<std::uint32_t> queue_begin;
  const auto* starts = reinterpret_cast<const abi::WorkerStart*>(at(abi::kWorkerStartOffset));
  const auto* warps = reinterpret_cast<const abi::WarpStart*>(starts);
  const bool by_warps = (header.counts.flags & abi::kPlanWarpStarts) != 0;
  for (std::uint32_t w = 0; w < header.num_workers; ++w) {
    queue_begin.push_back(by_warps ? warps[w].queue_begin : starts[w].queue_begin);
  }
  queue_begin.push_back(by_warps ? warps[header.num_workers].queue_begin : starts[header.num_workers - 1].queue_end);
  const abi::Launch launch{0, header.num_workers};
  abi::PlanView view{};
  view.header = &header.counts;
  view.items = reinterpret_cast<const abi::WorkItem*>(at(header.items));
  view.block_rows = reinterpret_cast<const abi::BlockRow*>(at(header.block_rows));
  view.launches = &launch;
  view.queue_begin = queue_begin.data();
  view.queue = reinterpret_cast<const std::uint32_t*>(at(header.queue));
  view.row_indices = reinterpret_cast<const std::uint32_t*>(at(header.row_indices));
  view.q_pos = reinterpret_cast<const std::int32_t*>(at(header.q_pos));
  view.merges = reinterpret_cast<const abi::MergeEntry*>(at(header.merges));
  view.merge_parts = reinterpret_cast<const std::uint32_t*>(at(header.merge_parts));
  view.page_entries = args.page_entries;
  view.kv_lens = args.kv_lens;
  view.mask_bits = args.mask_bits;
  AttentionParams params;
  std::memcpy(&params, args.variant_params, sizeof params);
  TensorView q = cpu_tensor(args.q, DType::kBF16, rows, heads, head_dim);
  q.strides[0] = args.q_row_stride;
  q.strides[1] = args.q_head_stride;
  const TensorView out = cpu_tensor(args.out, DType::kBF16, rows, heads, head_dim);
  cpu::AttentionWorkspace workspace;
  const Status status =
      cpu::run_attention(view, params, VariantId::kPlain, q, &args.pool, 1, out, args.lse, workspace, threads());
  ASSERT_TRUE(status.ok()) << status.to_string();
}

constexpr int kHeads = 8, kKvHeads = 2, kDim = 64, kPage = 16, kPages = 64;

class CudaAttentionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake::state() = {};
    fake::state().memory_bytes = std::size_t{1} << 28;
    fake::state().kernels["fovea_attention"] = [this](void** parameters) {
      const auto args = std::make_shared<abi::AttentionArgs>(*static_cast<abi::AttentionArgs*>(parameters[0]));
      return [args, this] { execute(*args, rows_, kHeads, kDim); };
    };
    fake::state().kernels["fovea_recut"] = [this](void** parameters) {
      return [args = *static_cast<abi::RecutArgs*>(parameters[0]), this] {
        ++recuts_;
        recut_args_ = args;
        recut_on_host(args, random_);
      };
    };
    auto device = cuda::Device::open(0);
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    device_ = std::move(*device);
    context_.emplace(*device_);
    options_.device = "cuda:0";
    options_.num_qo_heads = kHeads;
    options_.num_kv_heads = kKvHeads;
    options_.head_dim = kDim;
    options_.page_tokens = kPage;
    options_.max_requests = 8;
    options_.max_rows = 64;
    options_.max_pages_per_request = kPages;
    options_.max_cascade_levels = 2;
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<std::uint16_t>& to, std::size_t size) {
      to.resize(size + 8);
      for (std::uint16_t& x : to) x = float_to_bf16(normal(random));
    };
    fill(k_, std::size_t{kPages} * kPage * kKvHeads * kDim);
    fill(v_, k_.size());
    fill(q_, std::size_t{64} * kHeads * kDim);
    pages_.resize(kPages);
    for (int i = 0; i < kPages; ++i) pages_[i] = (i * 37 + 5) % kPages;
  }

  Attention make() {
    Result<Attention> made = Attention::create(options_);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(*made);
  }
  Attention make_on_cpu() {
    AttentionOptions o = options_;
    o.device = "cpu";
    return std::move(*Attention::create(o));
  }
  // Host memory is the fake device's memory, at 16 bytes or more.
  static TensorView place(TensorView view, bool on_device) {
    if (on_device) view.device = DeviceKind::kCuda;
    return view;
  }
  PagedKv kv(bool on_device) {
    PagedKv kv;
    kv.k = place(cpu_tensor(k_.data(), DType::kBF16, kPages, kPage, kKvHeads, kDim), on_device);
    kv.v = place(cpu_tensor(v_.data(), DType::kBF16, kPages, kPage, kKvHeads, kDim), on_device);
    return kv;
  }
  TensorView q(bool on_device) { return place(cpu_tensor(q_.data(), DType::kBF16, rows_, kHeads, kDim), on_device); }

  RequestBatch batch(const std::vector<std::int32_t>& q_lens, const std::vector<std::int32_t>& kv_lens) {
    RequestBatch b;
    b.num_requests = static_cast<std::int32_t>(q_lens.size());
    b.q_lens = q_lens.data();
    b.kv_lens = kv_lens.data();
    b.page_indices = pages_.data();
    b.page_stride = kPages / 8;
    rows_ = std::accumulate(q_lens.begin(), q_lens.end(), std::int64_t{0});
    return b;
  }

  struct Output {
    std::vector<std::uint16_t> out;
    std::vector<float> lse;
  };
  Output run(Attention& attention, bool on_device, Stream stream = {}) {
    Output o;
    o.out.assign(static_cast<std::size_t>(rows_) * kHeads * kDim, 0x7fc0);
    o.lse.assign(static_cast<std::size_t>(rows_) * kHeads, std::nanf(""));
    const Status status = attention.run(q(on_device), kv(on_device),
                                        place(cpu_tensor(o.out.data(), DType::kBF16, rows_, kHeads, kDim), on_device),
                                        place(cpu_tensor(o.lse.data(), DType::kF32, rows_, kHeads), on_device), stream);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return o;
  }
  // Plans differ between the devices, so the last bits may.
  void expect_equal(const Output& a, const Output& b) {
    for (std::size_t i = 0; i < a.out.size(); ++i) {
      ASSERT_NEAR(bf16_to_float(a.out[i]), bf16_to_float(b.out[i]), 0.02) << "output " << i;
    }
    for (std::size_t i = 0; i < a.lse.size(); ++i) {
      ASSERT_TRUE(a.lse[i] == b.lse[i] || std::abs(a.lse[i] - b.lse[i]) < 1e-3) << "log-sum-exp " << i;
    }
  }
  void check(Attention& on_device, Attention& on_cpu, const RequestBatch& b) {
    RequestBatch host = b;
    host.page_indices_device = DeviceKind::kCpu;
    ASSERT_TRUE(on_cpu.plan(host).ok());
    const Status planned = on_device.plan(b);
    ASSERT_TRUE(planned.ok()) << planned.to_string();
    expect_equal(run(on_device, true), run(on_cpu, false));
  }

  std::optional<cuda::Device> device_;
  std::optional<cuda::ScopedContext> context_;
  AttentionOptions options_;
  std::int64_t rows_ = 0;
  int recuts_ = 0;               // plans cut again on the device
  abi::RecutArgs recut_args_{};  // of the last of them
  std::mt19937_64 random_{3};
  std::vector<std::uint16_t> k_, v_, q_;
  std::vector<std::int32_t> pages_;
};

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
  options_.decode_kernel = DecodeKernel::kWarps;
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
  b = batch(more, kv_lens);
  check(attention, reference, b);
  EXPECT_EQ(attention.stats().num_workers, ctas);
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
  options_.decode_kernel = DecodeKernel::kCtas;
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
  EXPECT_THAT(attention.plan(three_rows).message(), HasSubstr("a graph recorded run() for 3 requests"));

  // Steps over chosen pages go to it too, recorded or not; cascades do not.
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
  EXPECT_THAT(attention.plan_cascade(3, {&level, 1}).message(), HasSubstr("a graph recorded run() for 3 requests"));
}

TEST_F(CudaAttentionTest, SharedPrefixesAndCascades) {
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
    EXPECT_THAT(refused.message(), HasSubstr("recording a graph"));
    EXPECT_FALSE(attention.run(q(true), kv(true), to, {}, {stream->handle()}).ok());  // the plan is gone
    return ok_status();
  });
  ASSERT_TRUE(graph.ok());
  ASSERT_TRUE(attention.plan(batch(q_lens, kv_lens), {stream->handle()}).ok());
  const auto recorded = cuda::Graph::capture(
      *device_, stream->handle(), [&] { return attention.run(q(true), kv(true), to, {}, {stream->handle()}); });
  ASSERT_TRUE(recorded.ok()) << recorded.status().to_string();
  for (int step = 0; step < 20; ++step) {
    for (std::size_t i = 0; i < kv_lens.size(); ++i) kv_lens[i] = 1 + (step * 31 + static_cast<int>(i) * 17) % 128;
    ASSERT_TRUE(attention.plan(batch(q_lens, kv_lens), {stream->handle()}).ok());
    ASSERT_TRUE(recorded->launch(stream->handle()).ok());
    ASSERT_TRUE(eager.plan(batch(q_lens, kv_lens)).ok());
    ASSERT_EQ(run(eager, true).out, out) << step;
    for (std::int32_t& n : kv_lens) n = std::min(n + 20 * step, 128);  // beyond the room of packed lists too
    ASSERT_TRUE(attention.grow(kv_lens, {stream->handle()}).ok());
    ASSERT_TRUE(recorded->launch(stream->handle()).ok());
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
  EXPECT_EQ(recuts_, 100);
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
  recuts_ = 0;
  options_.device_growth = false;
  Attention by_host = make();
  kv_lens = grown;
  ASSERT_TRUE(by_host.plan(b).ok());
  ++kv_lens[0];
  ASSERT_TRUE(by_host.grow(kv_lens).ok());
  EXPECT_EQ(recuts_, 0);
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
  EXPECT_EQ(recuts_, 0);
  const auto expect_plan_of_now = [&] {
    const Output grown = run(attention, true);
    ASSERT_TRUE(reference.plan(b).ok());
    EXPECT_EQ(run(reference, true).out, grown.out);
  };
  kv_lens = {128, 77};
  ASSERT_TRUE(graph->launch(stream->handle()).ok());
  EXPECT_EQ(recuts_, 1);
  expect_plan_of_now();
  ASSERT_TRUE(graph->launch(stream->handle()).ok());
  run(attention, true);
  EXPECT_FALSE(fake::state().launch.programmatic) << "a replay may write the plan that the kernel reads";
  // The host does not know how far replays went, so it makes the whole plan.
  kv_lens = {101, 40};
  ASSERT_TRUE(attention.grow(kv_lens, {stream->handle()}).ok());
  EXPECT_EQ(recuts_, 2);
  expect_plan_of_now();

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
  const abi::RecutArgs of_few = recut_args_;
  ASSERT_TRUE(plan(many).ok());
  ASSERT_TRUE(attention.grow_on_device(lengths(many), {stream->handle()}).ok());
  abi::DevicePlanHeader header;
  std::memcpy(&header, recut_args_.plan, sizeof header);
  EXPECT_NE(header.counts.flags & abi::kPlanWarpStarts, 0u);
  EXPECT_EQ(recut_args_.scratch, of_few.scratch);
  EXPECT_EQ(recut_args_.smem_bytes, of_few.smem_bytes);
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
  ASSERT_TRUE(attention.plan(host, {stream->handle()}).ok());  // nothing recorded them yet
  ASSERT_TRUE(attention.plan(device, {stream->handle()}).ok());
  std::vector<std::uint16_t> out(static_cast<std::size_t>(rows_) * kHeads * kDim);
  const TensorView to = place(cpu_tensor(out.data(), DType::kBF16, rows_, kHeads, kDim), true);
  ASSERT_TRUE(cuda::Graph::capture(*device_, stream->handle(), [&] {
                return attention.run(q(true), kv(true), to, {}, {stream->handle()});
              }).ok());
  ASSERT_TRUE(attention.plan(device, {stream->handle()}).ok());
  const Status refused = attention.plan(host, {stream->handle()});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("a graph recorded run()"));
  RequestBatch elsewhere = device;
  elsewhere.page_indices += 4;
  EXPECT_EQ(attention.plan(elsewhere, {stream->handle()}).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(attention.run(q(true), kv(true), to, {}, {stream->handle()}).ok());  // the plan is gone
  EXPECT_TRUE(attention.plan(device, {stream->handle()}).ok());
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
      auto recorded = cuda::Graph::capture(
          *device_, stream->handle(), [&] { return attention.run(q(true), kv(true), to, {}, {stream->handle()}); });
      ASSERT_TRUE(recorded.ok()) << recorded.status().to_string();
      graph.emplace(std::move(*recorded));
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
  options_.decode_kernel = DecodeKernel::kCtas;
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
  options_.q_dtype = DType::kF32;
  expect(Attention::create(options_).status(), StatusCode::kUnsupported, "f16 or bf16");
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
  // Attention of all plans, of those that share, by warps and for few requests; append, merge, what cuts plans again.
  EXPECT_EQ(sources->size(), 7u);
  EXPECT_EQ(attention_kernels(options, "sm_75").status().code(), StatusCode::kUnsupported);
  options.device_growth = false;
  EXPECT_EQ(attention_kernels(options, "sm_90a")->size(), 6u);
  options.max_requests = 1;  // nobody to share with, and too little for the warps' kernel
  EXPECT_EQ(attention_kernels(options, "sm_90a")->size(), 4u);
  options.q_dtype = DType::kF32;
  EXPECT_EQ(attention_kernels(options, "sm_90a").status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace fovea
