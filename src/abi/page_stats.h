// What is kept of the keys of a page so that a selector can tell which pages a query needs without reading them. Made
// by engine/cache, written at append and read by the selector of each backend. Compiles under g++ and NVRTC.
#pragma once

#include "abi/plan.h"

namespace fovea::abi {

// Tokens that one record of statistics stands for: a logical sub-page, also the smallest unit that can be selected.
inline constexpr int32_t kSubPageTokens = 16;

// What a record holds, for head_dim channels. The value of a channel bounds or describes that channel's keys.
enum class StatKind : uint8_t {
  kNone = 0,
  kMinMaxF16 = 1,   // min[head_dim], max[head_dim] as fp16, rounded outward
  kMinMaxF8 = 2,    // the same as fp8 e4m3 times a power of two (float), which stands behind them, rounded outward
  kMeanDevF16 = 3,  // mean[head_dim], deviation[head_dim] as fp16
};

// Bytes of a record, a multiple of 4.
constexpr int32_t stat_bytes(StatKind kind, int32_t head_dim) {
  return kind == StatKind::kNone ? 0 : kind == StatKind::kMinMaxF8 ? 2 * head_dim + 4 : 4 * head_dim;
}

// Statistics of one layer, parallel to its KV pool: the record of sub-page s of page p under KV head h starts at byte
//   p * page_stride + h * head_stride + s * stat_bytes.
struct PageStatsView {
  void* data;
  long long page_stride;  // bytes
  long long head_stride;  // bytes
  int32_t num_pages;
  int32_t subs_per_page;  // page tokens / kSubPageTokens
  int32_t num_heads;
  int32_t head_dim;
  StatKind kind;
};

}  // namespace fovea::abi
