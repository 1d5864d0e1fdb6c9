// What the tests of an Attention on a CUDA device share: a driver without a GPU, whose attention kernel is the CPU's
// executor over the plan as it lies in device memory.
#pragma once

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
#include "abi/reschedule_args.h"
#include "attention/cuda_executor.h"
#include "base/half.h"
#include "cpu/attention/attention.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "cuda/testing/fake_driver.h"
#include "testing/attention_case.h"
#include "testing/device_plan_view.h"
#include "testing/host_reschedule.h"

namespace fovea {

namespace fake = cuda::fake;

// Before anything asks for the driver or for kernels.
inline const bool kPrepared = fake::name_driver_and_cache();

inline ThreadPool& threads() {
  static ThreadPool pool(1);
  return pool;
}

// The packed plan as the executor of the CPU reads it.
inline void execute(const abi::AttentionArgs& args, std::int64_t rows, std::int64_t heads, std::int64_t head_dim) {
  const DevicePlanView plan(args.plan);
  abi::PlanView view = plan.view;
  view.page_entries = args.page_entries;
  view.kv_lens = args.kv_lens;
  view.mask_bits = args.mask_bits;
  const auto& params = *reinterpret_cast<const AttentionParams*>(args.variant_params);
  TensorView q = cpu_tensor(args.q, DType::kBF16, rows, heads, head_dim);
  q.strides[0] = args.q_row_stride;
  q.strides[1] = args.q_head_stride;
  const TensorView out = cpu_tensor(args.out, DType::kBF16, rows, heads, head_dim);
  cpu::AttentionWorkspace workspace;
  const Status status =
      cpu::run_attention(view, params, VariantId::kPlain, q, &args.pool, 1, out, args.lse, workspace, threads());
  ASSERT_TRUE(status.ok()) << status.to_string();
}

inline constexpr int kHeads = 8, kKvHeads = 2, kDim = 64, kPage = 16, kPages = 64;

class CudaAttentionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake::state() = {};
    fake::state().memory_bytes = std::size_t{1} << 28;
    fake::state().kernels["fovea_attention"] = [this](void** parameters) {
      const auto args = std::make_shared<abi::AttentionArgs>(*static_cast<abi::AttentionArgs*>(parameters[0]));
      return [args, this] { execute(*args, rows_, kHeads, kDim); };
    };
    fake::state().kernels["fovea_reschedule"] = [this](void** parameters) {
      return [args = *static_cast<abi::RescheduleArgs*>(parameters[0]), this] {
        ++reschedules_;
        reschedule_args_ = args;
        reschedule_on_host(args, random_);
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
  int reschedules_ = 0;                    // plans cut again on the device
  abi::RescheduleArgs reschedule_args_{};  // of the last of them
  std::mt19937_64 random_{3};
  std::vector<std::uint16_t> k_, v_, q_;
  std::vector<std::int32_t> pages_;
};

}  // namespace fovea
