// Memory of a layer in every format: sizes, places and copies of pages.
#include "engine/cache/kv_format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "engine/cache/kv_pool.h"

namespace fovea {
namespace {

constexpr KvFormat kFormats[] = {{DType::kF32}, {DType::kF16}, {DType::kBF16},    {DType::kF8E4M3},
                                 {DType::kI8},  {DType::kI4},  {DType::kI4, true}};

TEST(KvFormatTest, BytesOfATokenCountItsScales) {
  EXPECT_EQ(kv_token_bytes({DType::kBF16}, 128), 512);
  EXPECT_EQ(kv_token_bytes({DType::kI8}, 128), 256 + 8);
  EXPECT_EQ(kv_token_bytes({DType::kF8E4M3}, 64), 128 + 8);
  EXPECT_EQ(kv_token_bytes({DType::kI4}, 128), 128 + 8);
}

TEST(KvFormatTest, ArraysFillTheMemoryAndDoNotOverlap) {
  for (const KvFormat& format : kFormats) {
    abi::KvPoolView view{};
    view.num_pages = 5;
    view.page_tokens = 16;
    const std::int64_t bytes = 5 * 16 * 3 * kv_token_bytes(format, 32);
    std::vector<std::byte> memory(static_cast<std::size_t>(bytes));
    place_kv(format, 3, 32, memory.data(), view);
    const auto at = [&](const void* p) { return static_cast<const std::byte*>(p) - memory.data(); };
    const std::int64_t tensor = 5 * view.page_stride * dtype_bits(format.dtype) / 8;
    EXPECT_EQ(at(view.k), 0);
    EXPECT_EQ(at(view.v), tensor);
    if (!format.quantized()) {
      EXPECT_EQ(2 * tensor, bytes);
      continue;
    }
    const std::int64_t scales = 5 * view.scale_page_stride * static_cast<std::int64_t>(sizeof(abi::KvScale));
    EXPECT_EQ(at(view.k_scale), 2 * tensor);
    EXPECT_EQ(at(view.v_scale), 2 * tensor + scales);
    EXPECT_EQ(2 * (tensor + scales), bytes);
  }
}

TEST(KvFormatTest, CopiedPagesAreTheSameAndTheOthersStay) {
  std::mt19937 random(1);
  const auto device = std::move(*create_device("cpu", {}));
  for (const KvFormat& format : kFormats) {
    abi::KvPoolView view{};
    view.num_pages = 4;
    view.page_tokens = 8;
    std::vector<std::byte> memory(static_cast<std::size_t>(4 * 8 * 2 * kv_token_bytes(format, 16)));
    for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
    place_kv(format, 2, 16, memory.data(), view);
    const std::vector<std::byte> before = memory;
    ASSERT_TRUE(copy_kv_page(*device, view, 1, 3).ok());
    const auto check = [&](const void* base, std::int64_t page_bytes) {
      const auto first = static_cast<const std::byte*>(base) - memory.data();
      for (int page = 0; page < 4; ++page) {
        const int source = page == 3 ? 1 : page;
        EXPECT_EQ(std::memcmp(memory.data() + first + page * page_bytes, before.data() + first + source * page_bytes,
                              static_cast<std::size_t>(page_bytes)),
                  0);
      }
    };
    check(view.k, view.page_stride * dtype_bits(format.dtype) / 8);
    check(view.v, view.page_stride * dtype_bits(format.dtype) / 8);
    if (format.quantized()) {
      check(view.k_scale, view.scale_page_stride * 4);
      check(view.v_scale, view.scale_page_stride * 4);
    }
  }
}

TEST(KvFormatTest, WhatThereIsNotIsRefused) {
  EXPECT_TRUE(check_kv_format({DType::kI4, true}, 128).ok());
  EXPECT_EQ(check_kv_format({DType::kI4, true}, 96).code(), StatusCode::kUnsupported);
  EXPECT_EQ(check_kv_format({DType::kBF16, true}, 128).code(), StatusCode::kUnsupported);
  EXPECT_EQ(check_kv_format({DType::kI64}, 128).code(), StatusCode::kUnsupported);
}

TEST(KvFormatTest, GroupsWithAWindowStayInBf16) {
  KvGroupSpec window;
  window.window_tokens = 64;
  EXPECT_EQ(KvPool::format_of(window, {DType::kI4, true}).dtype, DType::kBF16);
  EXPECT_FALSE(KvPool::format_of(window, {DType::kI4, true}).rotated);
  EXPECT_EQ(KvPool::format_of(window, {DType::kF32}).dtype, DType::kF32);
  EXPECT_EQ(KvPool::format_of({}, {DType::kI8}).dtype, DType::kI8);
}

}  // namespace
}  // namespace fovea
