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
  // Every key in 4 bits of 32 channels: codes[16][16 tokens] bytes, code 2j in the low half and 2j + 1 in the high half
  // of byte (j, t); on CUDA codes[16 tokens][16] (code_place()). Tokens that are not there repeat one that is.
  //   kCodes       channels that matter to the model's queries, scaled alike everywhere (KeyCode): 16 bytes a token
  //   kLocalCodes  for models of which nothing was learned: the channels of lowest RoPE frequency (local_channel),
  //   which
  //                say what a key is more than where it stands; behind the codes low[32] and step[32] as e4m3 and a
  //                power of two (float): channel i of a token is (low[i] + code * step[i]) * that; 20 bytes a token
  kCodes = 4,
  kLocalCodes = 5,
};

inline constexpr int32_t kCodeChannels = 32;

// What kCodes keep of the keys of one layer and KV head: code i of a token stands for
// mean[i] + (code - 7.5) * step[i] in channel[i], and is the nearest that 0..15 allow.
struct KeyCode {
  uint8_t channel[kCodeChannels];
  float mean[kCodeChannels];
  float step[kCodeChannels];
};

// The channel of local code i. RoPE turns channels c and c + rotary_dim / 2 together, the slower the greater c; those
// from rotary_dim on do not turn at all.
constexpr int32_t local_channel(int32_t i, int32_t head_dim, int32_t rotary_dim) {
  const int32_t half = kCodeChannels / 2;
  const int32_t first = half < rotary_dim / 2 ? half : rotary_dim / 2;
  return i < first ? rotary_dim / 2 - first + i : head_dim - kCodeChannels + i;
}

// Bytes of a record, a multiple of 4.
constexpr int32_t stat_bytes(StatKind kind, int32_t head_dim) {
  switch (kind) {
    case StatKind::kNone: return 0;
    case StatKind::kMinMaxF8: return 2 * head_dim + 4;
    case StatKind::kCodes: return kCodeChannels / 2 * kSubPageTokens;
    case StatKind::kLocalCodes: return kCodeChannels / 2 * kSubPageTokens + 2 * kCodeChannels + 4;
    default: return 4 * head_dim;
  }
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
  int32_t rotary_dim;  // leading channels that RoPE turns
  StatKind kind;
  const KeyCode* codes;  // [num_heads]; kCodes only
};

}  // namespace fovea::abi
