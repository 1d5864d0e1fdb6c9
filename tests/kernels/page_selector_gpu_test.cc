// The public PageSelector on a GPU beside the one on the CPU: the same codes, and the same lists at every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/half.h"
#include "cuda/memory.h"
#include "fovea/page_selector.h"
#include "tests/kernels/gpu.h"

namespace fovea::kernel_test {
namespace {

class PageSelectorGpuTest : public GpuTest {};

// So that all memory of a case, which both devices see, fits the fixture's.
struct Sizes {
  std::int32_t requests, heads, group, dim, pages_each, budget, divisor, interval;
};

template <typename T, typename... Dims>
TensorView view(std::pmr::vector<T>& data, DType dtype, DeviceKind device, Dims... dims) {
  TensorView made = cpu_tensor(data.data(), dtype, dims...);
  made.device = device;
  return made;
}

TEST_F(PageSelectorGpuTest, CodesAndListsAreThoseOfTheCpu) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (const Sizes& s : {Sizes{1, 4, 4, 128, 700, 1024, 0, 4}, Sizes{3, 2, 8, 64, 100, 256, 0, 1},
                         Sizes{20, 2, 1, 128, 60, 512, 3, 3}, Sizes{2, 1, 5, 256, 1500, 4096, 0, 4}}) {
    const std::int32_t pages = s.requests * s.pages_each, budget = s.budget / 16;
    PageSelectorOptions o;
    o.num_kv_heads = s.heads;
    o.num_qo_heads = s.heads * s.group;
    o.head_dim = s.dim;
    o.budget_tokens = s.budget;
    o.budget_divisor = s.divisor;
    o.interval = s.interval;
    o.num_layers = 2;
    o.num_pages = pages;
    o.max_requests = s.requests;
    o.max_pages_per_request = s.pages_each;
    for (std::int32_t i = 0; i < 2 * s.heads; ++i) {
      KeyCode code{};
      for (std::int32_t c = 0; c < kKeyCodeChannels; ++c) {
        code.channel[c] = static_cast<std::uint8_t>((7 * c + i) % s.dim);
        code.mean[c] = 0.1f * normal(random);
        code.step[c] = 0.2f + 0.1f * std::abs(normal(random));
      }
      o.key_codes.push_back(code);
    }
    auto cpu = PageSelector::create(o);
    o.device = "cuda:0";
    auto cuda = PageSelector::create(o);
    ASSERT_TRUE(cpu.ok() && cuda.ok()) << cpu.status().to_string() << cuda.status().to_string();
    PageSelector* const selectors[2] = {&*cpu, &*cuda};

    std::pmr::vector<std::int32_t> table(static_cast<std::size_t>(pages)), lens(static_cast<std::size_t>(s.requests));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), random);
    std::pmr::vector<std::int32_t> lists[2], list_tokens[2], phases(lens.size());
    for (int d = 0; d < 2; ++d) {
      lists[d].assign(static_cast<std::size_t>(s.requests * s.heads * budget), -1);
      list_tokens[d].assign(lens.size(), -1);
    }
    const auto append = [&](std::int32_t request, std::int32_t tokens) {
      std::pmr::vector<std::uint16_t> k(static_cast<std::size_t>(tokens) * s.heads * s.dim);
      std::pmr::vector<std::int32_t> slots;
      for (std::uint16_t& x : k) x = float_to_bf16(normal(random));
      std::int32_t& length = lens[static_cast<std::size_t>(request)];
      for (std::int32_t t = 0; t < tokens; ++t, ++length) {
        slots.push_back(table[static_cast<std::size_t>(request * s.pages_each + length / 16)] * 16 + length % 16);
      }
      for (int d = 0; d < 2; ++d) {
        const auto device = static_cast<DeviceKind>(d);
        AppendPlaces places;
        places.slots = view(slots, DType::kI32, device, tokens);
        const Status status = selectors[d]->append(1, view(k, DType::kBF16, device, tokens, s.heads, s.dim), places, {},
                                                   {stream_.handle()});
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
      wait();
    };
    for (std::int32_t r = 0; r < s.requests; ++r) {
      phases[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(random() % 100);
      append(r, r % 4 == 3 ? s.budget : s.pages_each * 16 - 40 - r);
    }
    std::pmr::vector<std::uint16_t> q(static_cast<std::size_t>(s.requests * s.heads * s.group * s.dim));
    for (int n = 0; n < 6 && !HasFatalFailure(); ++n) {
      for (std::uint16_t& x : q) x = float_to_bf16(2.0f * normal(random));
      for (int d = 0; d < 2; ++d) {
        const auto device = static_cast<DeviceKind>(d);
        SelectStep step;
        step.kv_lens = view(lens, DType::kI32, device, s.requests);
        step.page_table = view(table, DType::kI32, device, s.requests, s.pages_each);
        step.lists = view(lists[d], DType::kI32, device, s.requests, s.heads, budget);
        step.list_tokens = view(list_tokens[d], DType::kI32, device, s.requests);
        step.phases = view(phases, DType::kI32, device, s.requests);
        const Status status = selectors[d]->select(
            1, view(q, DType::kBF16, device, s.requests, s.heads * s.group, s.dim), step, {stream_.handle()});
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
      wait();
      ASSERT_EQ(list_tokens[0], list_tokens[1]) << "step " << n;
      ASSERT_EQ(lists[0], lists[1]) << "step " << n << " of " << s.requests << " requests";
      for (std::int32_t r = 0; r < s.requests; ++r) append(r, 1);
    }
  }
}

}  // namespace
}  // namespace fovea::kernel_test
