// Cases of the kernel that moves tokens of the KV cache: planes of several groups and what becomes of them on the host.
// Used by the test on a GPU and by that of the emulator.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <random>
#include <vector>

#include "abi/token_moves.h"
#include "cpu/move_tokens.h"

namespace fovea::kernel_test {

class MoveCase {
 public:
  explicit MoveCase(std::uint32_t seed) : random_(seed) {
    page_tokens_ = seed % 4 == 0 ? 1 : 16;
    groups_ = seed % 3 + 1;
    // 256 elements of bf16, 80 of fp8, 32 of int4, the two halves of a scale; and a plane without heads.
    for (const std::uint32_t row_bytes : {512u, 80u, 16u, 4u, 64u}) {
      Plane& plane = planes_.emplace_back();
      plane.row_bytes = row_bytes;
      plane.group = below(groups_);
      plane.heads = row_bytes == 64 ? 0 : 1 + below(5);
      plane.memory.resize(std::size_t{kPages} * page_tokens_ * plane.heads * row_bytes + 16);
      for (std::byte& byte : plane.memory) byte = static_cast<std::byte>(random_());
    }
    make_moves(seed);
    for (Plane& plane : planes_) plane.expected = plane.memory;
    for (Plane& plane : planes_) on_host_.push_back(view(plane, plane.expected.data()));
    for (Plane& plane : planes_) on_device_.push_back(view(plane, plane.memory.data()));
    args_.planes = on_host_.data();
    cpu::move_tokens(args_);
    args_.planes = on_device_.data();
  }

  const abi::MoveTokensArgs& args() const { return args_; }
  // visit(memory) of every plane.
  template <typename Visit>
  void for_each_memory(Visit&& visit) {
    for (Plane& plane : planes_) visit(plane.memory);
  }
  // Behind the launch.
  void check() const {
    for (const Plane& plane : planes_) EXPECT_TRUE(plane.memory == plane.expected) << plane.row_bytes << " bytes a row";
  }

 private:
  static constexpr std::uint32_t kPages = 6;
  struct Plane {
    std::uint32_t group, heads, row_bytes;
    std::pmr::vector<std::byte> memory, expected;
  };

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  // As trees leave them: the m-th place gets what stands behind it, and behind where the one before it came from. More
  // than are read at once, and places that are each other's.
  void make_moves(std::uint32_t seed) {
    const std::uint32_t slots = kPages * page_tokens_, most = std::min(slots - 1, seed % 5 == 0 ? 19u : 6u);
    args_.num_moves = 1 + below(most);
    args_.num_groups = groups_;
    args_.page_tokens = page_tokens_;
    args_.num_planes = static_cast<std::uint32_t>(planes_.size());
    for (std::uint32_t g = 0; g < groups_; ++g) {
      std::vector<std::int32_t> order(slots);
      for (std::uint32_t i = 0; i < slots; ++i) order[i] = static_cast<std::int32_t>(i);
      if (seed % 2 == 0) std::shuffle(order.begin(), order.end(), random_);
      const std::uint32_t step = std::max(1u, (slots - 1) / args_.num_moves);
      std::uint32_t from = 0;
      for (std::uint32_t m = 0; m < args_.num_moves; ++m) {
        from = std::min(from + 1 + below(step), slots - args_.num_moves + m);
        args_.moves[m * groups_ + g] = {order[from], order[m]};
      }
    }
  }
  abi::KvPlane view(const Plane& plane, std::byte* memory) const {
    abi::KvPlane at{};
    at.base = memory;
    at.row_bytes = plane.row_bytes;
    at.head_stride = std::int64_t{page_tokens_} * plane.row_bytes;
    at.page_stride = plane.heads * at.head_stride;
    at.heads = plane.heads;
    at.group = plane.group;
    return at;
  }

  std::mt19937 random_;
  std::uint32_t page_tokens_ = 0, groups_ = 0;
  std::vector<Plane> planes_;
  std::pmr::vector<abi::KvPlane> on_host_, on_device_;
  abi::MoveTokensArgs args_{};
};

}  // namespace fovea::kernel_test
