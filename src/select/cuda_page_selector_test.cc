// PageSelector on a CUDA driver without a GPU: what reaches the kernels, what is remembered, and what callers get
// wrong. The kernels are tested on the host and on a GPU (tests/kernels).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "abi/select_args.h"
#include "cuda/device.h"
#include "cuda/graph.h"
#include "cuda/stream.h"
#include "cuda/testing/fake_driver.h"
#include "fovea/page_selector.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;
namespace fake = cuda::fake;

// Before anything asks for the driver or for kernels.
const bool kPrepared = fake::name_driver_and_cache();

class CudaPageSelectorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake::state() = {};
    fake::state().kernels["fovea_select"] = [this](void** parameters) {
      selected_.push_back(*static_cast<abi::SelectArgs*>(parameters[0]));
      return [] {};
    };
    fake::state().kernels["fovea_key_codes"] = [this](void** parameters) {
      appended_.push_back(*static_cast<abi::CodesArgs*>(parameters[0]));
      return [] {};
    };
    auto device = cuda::Device::open(0);
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    device_ = std::move(*device);
    options_.device = "cuda:0";
    options_.num_qo_heads = 8;
    options_.num_kv_heads = 2;
    options_.head_dim = 64;
    options_.budget_tokens = 256;
    options_.interval = 4;
    options_.num_layers = 3;
    options_.num_pages = 50;
    options_.max_requests = 4;
    options_.max_pages_per_request = 40;
    KeyCode code{};
    for (int i = 0; i < kKeyCodeChannels; ++i) code.channel[i] = static_cast<std::uint8_t>(2 * i), code.step[i] = 0.5f;
    options_.key_codes.assign(6, code);
    options_.key_codes[4].mean[7] = 3.0f;
    memory_.resize(4096);
  }

  // Host memory is the fake device's memory.
  template <typename... Dims>
  TensorView at(std::size_t word, DType dtype, Dims... dims) {
    TensorView view = cpu_tensor(memory_.data() + word, dtype, dims...);
    view.device = DeviceKind::kCuda;
    return view;
  }
  SelectStep step() {
    return {at(0, DType::kI32, 3), at(8, DType::kI32, 3, 30), at(100, DType::kI32, 3, 2, 20), at(300, DType::kI32, 3),
            at(304, DType::kI32, 3)};
  }
  TensorView q() { return at(512, DType::kBF16, 3, 8, 64); }

  std::optional<cuda::Device> device_;
  PageSelectorOptions options_;
  std::vector<abi::SelectArgs> selected_;
  std::vector<abi::CodesArgs> appended_;
  std::vector<std::int32_t> memory_;
};

TEST_F(CudaPageSelectorTest, WhatReachesTheKernels) {
  Result<PageSelector> made = PageSelector::create(options_);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  PageSelector& selector = *made;
  EXPECT_EQ(selector.statistics_bytes_per_page(), 2 * 256u);
  const std::size_t expected = 3 * 50 * 512 + 3 * 4 * 2 * (64 * 4 + 8) + 6 * sizeof(abi::KeyCode);
  EXPECT_EQ(selector.workspace_bytes(), expected);
  auto stream = cuda::Stream::create(*device_);
  const auto graph = cuda::Graph::capture(*device_, stream->handle(), [&]() -> Status {
    AppendPlaces places;
    places.slots = at(400, DType::kI32, 5);
    const Status appended = selector.append(2, at(1024, DType::kF16, 5, 2, 64), places, {}, {stream->handle()});
    return appended.ok() ? selector.select(2, q(), step(), {stream->handle()}) : appended;
  });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  ASSERT_EQ(selected_.size(), 1u);
  ASSERT_EQ(appended_.size(), 1u);
  const TensorView statistics = *selector.statistics(2);
  const abi::CodesArgs& codes = appended_[0];
  EXPECT_EQ(codes.rows.slots, &memory_[400]);
  EXPECT_EQ(codes.rows.rows, 5u);
  EXPECT_EQ(codes.rows.k_row_stride, 128);
  EXPECT_EQ(codes.rows.pool.num_pages, 50);
  EXPECT_EQ(codes.stats.data, statistics.data);
  const abi::SelectArgs& args = selected_[0];
  EXPECT_EQ(args.stats.data, statistics.data);
  EXPECT_EQ(args.stats.page_stride, 512);
  EXPECT_EQ(args.stats.codes[0].mean[7], 3.0f);  // of layer 2
  EXPECT_EQ(args.stats.codes[0].channel[31], 62);
  EXPECT_EQ(args.page_entries, &memory_[8]);
  EXPECT_EQ(args.page_stride, 30);
  EXPECT_EQ(args.max_units, 30u);  // that the table has
  EXPECT_EQ(args.lists, &memory_[100]);
  EXPECT_EQ(args.list_stride, 20);
  EXPECT_EQ(args.list_tokens, &memory_[300]);
  EXPECT_EQ(static_cast<const void*>(args.phases), &memory_[304]);
  EXPECT_EQ(args.requests, 3u);
  EXPECT_EQ(args.group, 4u);
  EXPECT_EQ(args.budget_units, 16u);
  EXPECT_EQ(args.num_candidates, 64u);
  EXPECT_EQ(args.sm_scale, 0.125f);
  EXPECT_EQ(fake::state().launch.cluster[0], args.splits);
}

TEST_F(CudaPageSelectorTest, WhatIsForgottenAndCopied) {
  PageSelector selector = std::move(*PageSelector::create(options_));
  for (int layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(selector.select(layer, q(), step()).ok());
    std::memset(selected_.back().states, 1, 8 * sizeof(abi::SelectState));
    std::memset(selected_.back().candidates, 1, 8 * 64 * sizeof(std::int32_t));
  }
  ASSERT_TRUE(selector.forget(1, 3).ok());
  for (const abi::SelectArgs& args : selected_) {
    for (int list = 0; list < 8; ++list) {
      EXPECT_EQ(args.states[list].scanned_tokens, list < 2 || list >= 6 ? 0x01010101u : 0u);
    }
  }
  for (int layer = 0; layer < 3; ++layer) {
    auto* const data = static_cast<std::uint8_t*>(selector.statistics(layer)->data);
    std::memset(data, 7, 50 * 512);
    std::memset(data + 3 * 512, 9, 512);
  }
  ASSERT_TRUE(selector.copy_page(3, 49).ok());
  for (int layer = 0; layer < 3; ++layer) {
    const auto* const data = static_cast<const std::uint8_t*>(selector.statistics(layer)->data);
    EXPECT_EQ(data[49 * 512 - 1], 7);
    EXPECT_EQ(data[49 * 512], 9);
    EXPECT_EQ(data[50 * 512 - 1], 9);
  }
}

TEST_F(CudaPageSelectorTest, WhatIsRefused) {
  const auto expect = [](const PageSelectorOptions& o, StatusCode code, const char* text) {
    const Status status = PageSelector::create(o).status();
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  PageSelectorOptions o = options_;
  o.policy = "quest";
  expect(o, StatusCode::kUnsupported, "policy quest on CUDA");
  o = options_;
  o.num_qo_heads = 18;
  expect(o, StatusCode::kUnsupported, "9 query heads a KV head");
  o = options_;
  o.budget_tokens = 1 << 19;
  o.interval = 1;
  o.max_pages_per_request = 40000;
  expect(o, StatusCode::kOk, "");
  o = options_;
  o.num_pages = 1 << 28;
  expect(o, StatusCode::kOutOfRange, "2^28");
  o = options_;
  o.device = "cuda:9";
  expect(o, StatusCode::kNotFound, "cuda:9");
  o = options_;
  o.num_pages = 1 << 20;
  expect(o, StatusCode::kResourceExhausted, "bytes on cuda:0");
  PageSelector selector = std::move(*PageSelector::create(options_));
  SelectStep on_host = step();
  on_host.lists.device = DeviceKind::kCpu;
  EXPECT_THAT(selector.select(0, q(), on_host).message(), HasSubstr("expected it on cuda:0"));
  EXPECT_TRUE(selected_.empty());
}

}  // namespace
}  // namespace fovea
