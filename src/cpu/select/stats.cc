// See stats.h.
#include "cpu/select/stats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "abi/select_args.h"
#include "base/status.h"
#include "cpu/attention/convert.h"
#include "cpu/attention/item.h"
#include "cpu/select/key_row.h"
#include "cpu/select/outward.h"

namespace fovea::cpu {
namespace {

constexpr std::int32_t kTokens = abi::kSubPageTokens;

// A sub-page that was written to, and how many of its tokens hold keys.
struct Touched {
  std::int64_t sub;
  std::int32_t tokens;
};

// Each sub-page once. As a rule the slots of one stand together; where they do not, all of them count still.
std::vector<Touched> touched_subs(const std::int32_t* slots, std::int64_t rows) {
  std::vector<Touched> touched;
  for (std::int64_t i = 0; i < rows; ++i) {
    if (slots[i] < 0) continue;
    const std::int64_t sub = slots[i] / kTokens;
    const std::int32_t tokens = slots[i] % kTokens + 1;
    if (!touched.empty() && touched.back().sub == sub) {
      touched.back().tokens = std::max(touched.back().tokens, tokens);
    } else {
      touched.push_back({sub, tokens});
    }
  }
  std::sort(touched.begin(), touched.end(),
            [](const Touched& a, const Touched& b) { return a.sub != b.sub ? a.sub < b.sub : a.tokens > b.tokens; });
  const auto same = [](const Touched& a, const Touched& b) { return a.sub == b.sub; };
  touched.erase(std::unique(touched.begin(), touched.end(), same), touched.end());
  return touched;
}

void min_and_max(const float* keys, std::int32_t tokens, std::int32_t head_dim, float* low, float* high) {
  std::fill(low, low + head_dim, kLargestF16);
  std::fill(high, high + head_dim, -kLargestF16);
  for (std::int32_t t = 0; t < tokens; ++t, keys += head_dim) {
    for (std::int32_t d = 0; d < head_dim; ++d) {
      low[d] = keys[d] < low[d] ? keys[d] : low[d];
      high[d] = keys[d] > high[d] ? keys[d] : high[d];
    }
  }
  for (std::int32_t d = 0; d < head_dim; ++d) {
    if (low[d] > high[d]) low[d] = high[d] = 0.0f;  // nothing but NaN
    low[d] = std::max(low[d], -kLargestF16);
    high[d] = std::min(high[d], kLargestF16);
  }
}

void write_min_max_f8(const float* low, const float* high, std::int32_t head_dim, std::uint8_t* to) {
  float largest = 0.0f;
  for (std::int32_t d = 0; d < head_dim; ++d) largest = std::max({largest, -low[d], high[d]});
  const float scale = largest > 0.0f ? std::exp2(std::ceil(std::log2(largest / kLargestE4M3))) : 1.0f;
  for (std::int32_t d = 0; d < head_dim; ++d) {
    to[d] = e4m3_down(low[d] / scale);
    to[head_dim + d] = e4m3_up(high[d] / scale);
  }
  std::memcpy(to + 2 * head_dim, &scale, sizeof(scale));
}

void write_mean_dev(const float* keys, std::int32_t tokens, std::int32_t head_dim, std::uint16_t* to) {
  for (std::int32_t d = 0; d < head_dim; ++d) {
    float sum = 0.0f;
    std::int32_t count = 0;
    for (std::int32_t t = 0; t < tokens; ++t) {
      const float key = keys[t * head_dim + d];
      if (std::isnan(key)) continue;
      sum += std::clamp(key, -kLargestF16, kLargestF16);
      ++count;
    }
    const float mean = count > 0 ? sum / static_cast<float>(count) : 0.0f;
    float squares = 0.0f;
    for (std::int32_t t = 0; t < tokens; ++t) {
      if (std::isnan(keys[t * head_dim + d])) continue;
      const float away = std::clamp(keys[t * head_dim + d], -kLargestF16, kLargestF16) - mean;
      squares += away * away;
    }
    to[d] = f16_of(mean);
    to[head_dim + d] = f16_of(std::min(count > 0 ? std::sqrt(squares / static_cast<float>(count)) : 0.0f, kLargestF16));
  }
}

constexpr std::int32_t kCodes = abi::kCodeChannels;

// Element `channel` of token t, of the last one where there is none.
float key_at(const float* keys, std::int32_t tokens, std::int32_t head_dim, std::int32_t t, std::int32_t channel) {
  const float x = keys[std::min(t, tokens - 1) * head_dim + channel];
  return std::isnan(x) ? 0.0f : std::clamp(x, -kLargestF16, kLargestF16);
}

void put_code(std::uint8_t* codes, std::int32_t i, std::int32_t t, float level) {
  const auto code = static_cast<std::uint8_t>(std::clamp(level, 0.0f, 15.0f));
  codes[i / 2 * kTokens + t] |= static_cast<std::uint8_t>(code << (i % 2 * 4));
}

void write_codes(const abi::KeyCode& code, const float* keys, std::int32_t tokens, std::int32_t head_dim,
                 std::uint8_t* to) {
  std::fill(to, to + kCodes / 2 * kTokens, std::uint8_t{0});
  for (std::int32_t i = 0; i < kCodes; ++i) {
    const float per_step = 1.0f / code.step[i];
    for (std::int32_t t = 0; t < kTokens; ++t) {
      put_code(to, i, t, (key_at(keys, tokens, head_dim, t, code.channel[i]) - code.mean[i]) * per_step + 8.0f);
    }
  }
}

// A channel's 16 levels span what its keys span here.
void write_local_codes(const float* keys, std::int32_t tokens, std::int32_t head_dim, std::int32_t rotary_dim,
                       std::uint8_t* to) {
  float low[kCodes];
  float high[kCodes];
  float largest = 0.0f;
  for (std::int32_t i = 0; i < kCodes; ++i) {
    low[i] = kLargestF16;
    high[i] = -kLargestF16;
    for (std::int32_t t = 0; t < tokens; ++t) {
      const float x = key_at(keys, tokens, head_dim, t, abi::local_channel(i, head_dim, rotary_dim));
      low[i] = std::min(low[i], x);
      high[i] = std::max(high[i], x);
    }
    largest = std::max({largest, -low[i], high[i]});
  }
  const float scale = largest > 0.0f ? std::exp2(std::ceil(std::log2(largest / kLargestE4M3))) : 1.0f;
  std::uint8_t* lows = to + kCodes / 2 * kTokens;
  std::uint8_t* steps = lows + kCodes;
  std::fill(to, lows, std::uint8_t{0});
  for (std::int32_t i = 0; i < kCodes; ++i) {
    lows[i] = e4m3_down(low[i] / scale);
    const float base = float_of_e4m3(lows[i]) * scale;
    steps[i] = e4m3_up(std::min((high[i] - base) / 15.0f / scale, kLargestE4M3));
    const float step = float_of_e4m3(steps[i]) * scale;
    const float per_step = step > 0.0f ? 1.0f / step : 0.0f;
    for (std::int32_t t = 0; t < kTokens; ++t) {
      const float x = key_at(keys, tokens, head_dim, t, abi::local_channel(i, head_dim, rotary_dim));
      put_code(to, i, t, (x - base) * per_step + 0.5f);
    }
  }
  std::memcpy(steps + kCodes, &scale, sizeof(scale));
}

float element_of(const TensorView& tensor, std::int64_t at) {
  if (tensor.dtype == DType::kF32) return static_cast<const float*>(tensor.data)[at];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(tensor.data)[at];
  return tensor.dtype == DType::kF16 ? float_of_f16(bits) : float_of_bf16(bits);
}

Status check_fits(const abi::KvPoolView& pool, const abi::PageStatsView& stats) {
  if (pool.page_tokens != stats.subs_per_page * kTokens || pool.num_pages != stats.num_pages) {
    return invalid_argument("statistics of {} pages of {} tokens beside a KV pool of {} pages of {}", stats.num_pages,
                            stats.subs_per_page * kTokens, pool.num_pages, pool.page_tokens);
  }
  if (stats.head_dim < 1 || stats.head_dim > kMaxHeadDim) {
    return invalid_argument("statistics of head_dim {}, expected 1..{}", stats.head_dim, kMaxHeadDim);
  }
  const bool codes = stats.kind == abi::StatKind::kCodes || stats.kind == abi::StatKind::kLocalCodes;
  if (codes && stats.head_dim < kCodes) {
    return unsupported("codes of {} channels for keys of {}", kCodes, stats.head_dim);
  }
  if (stats.kind == abi::StatKind::kCodes && stats.codes == nullptr) {
    return invalid_argument("statistics of learned codes without what was learned");
  }
  if (stats.rotary_dim < 0 || stats.rotary_dim > stats.head_dim || stats.rotary_dim % 2 != 0) {
    return invalid_argument("statistics of {} channels, {} of them rotary; expected an even number up to all",
                            stats.head_dim, stats.rotary_dim);
  }
  return check_keys_readable(pool, stats.head_dim);
}

}  // namespace

void write_record(const abi::PageStatsView& stats, std::int32_t head, const float* keys, std::int32_t tokens,
                  std::uint8_t* to) {
  const std::int32_t head_dim = stats.head_dim;
  switch (stats.kind) {
    case abi::StatKind::kCodes: return write_codes(stats.codes[head], keys, tokens, head_dim, to);
    case abi::StatKind::kLocalCodes: return write_local_codes(keys, tokens, head_dim, stats.rotary_dim, to);
    case abi::StatKind::kMeanDevF16:
      return write_mean_dev(keys, tokens, head_dim, reinterpret_cast<std::uint16_t*>(to));
    default: break;
  }
  float low[kMaxHeadDim];
  float high[kMaxHeadDim];
  min_and_max(keys, tokens, head_dim, low, high);
  if (stats.kind == abi::StatKind::kMinMaxF8) return write_min_max_f8(low, high, head_dim, to);
  auto* halves = reinterpret_cast<std::uint16_t*>(to);
  for (std::int32_t d = 0; d < head_dim; ++d) {
    halves[d] = f16_down(low[d]);
    halves[head_dim + d] = f16_up(high[d]);
  }
}

void write_key_codes(const TensorView& k, const std::int32_t* slots, const abi::PageStatsView& stats,
                     ThreadPool& threads) {
  threads.parallel_for(k.shape[0], 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * stats.num_heads; i < end * stats.num_heads; ++i) {
      const std::int32_t slot = slots[i / stats.num_heads];
      if (slot < 0) continue;
      const std::int64_t head = i % stats.num_heads;
      const std::int64_t first = i / stats.num_heads * k.strides[0] + head * k.strides[1];
      const std::int32_t sub = slot / kTokens;
      auto* const record = static_cast<std::uint8_t*>(stats.data) + sub / stats.subs_per_page * stats.page_stride +
                           head * stats.head_stride +
                           sub % stats.subs_per_page * std::int64_t{abi::stat_bytes(stats.kind, stats.head_dim)};
      const abi::KeyCode& code = stats.codes[head];
      std::uint32_t levels[kCodes];
      for (std::int32_t c = 0; c < kCodes; ++c) {
        const float x = abi::key_element(element_of(k, first + code.channel[c]));
        levels[c] = abi::key_code((x - code.mean[c]) * (1.0f / code.step[c]) + 8.0f);
      }
      for (std::int32_t c = 0; c < kCodes; c += 2) {
        record[c / 2 * kTokens + slot % kTokens] = static_cast<std::uint8_t>(levels[c] | levels[c + 1] << 4);
      }
    }
  });
}

Status update_page_stats(const std::int32_t* slots, std::int64_t rows, const abi::KvPoolView& pool,
                         const abi::PageStatsView& stats, ThreadPool& threads) {
  if (stats.kind == abi::StatKind::kNone) return ok_status();
  FOVEA_RETURN_IF_ERROR(check_fits(pool, stats));
  const std::vector<Touched> touched = touched_subs(slots, rows);
  const std::int64_t bytes = abi::stat_bytes(stats.kind, stats.head_dim);
  const auto pieces = static_cast<std::int64_t>(touched.size()) * stats.num_heads;
  threads.parallel_for(pieces, 4, [&](std::int64_t begin, std::int64_t end) {
    float keys[kTokens * kMaxHeadDim];
    for (std::int64_t i = begin; i < end; ++i) {
      const Touched& sub = touched[static_cast<std::size_t>(i / stats.num_heads)];
      const auto head = static_cast<std::int32_t>(i % stats.num_heads);
      const std::int64_t page = sub.sub / stats.subs_per_page;
      const auto in_page = static_cast<std::int32_t>(sub.sub % stats.subs_per_page);
      for (std::int32_t t = 0; t < sub.tokens; ++t) {
        read_key(pool, page, in_page * kTokens + t, head, stats.head_dim, keys + t * stats.head_dim);
      }
      write_record(stats, head, keys, sub.tokens,
                   static_cast<std::uint8_t*>(stats.data) + page * stats.page_stride + head * stats.head_stride +
                       in_page * bytes);
    }
  });
  return ok_status();
}

}  // namespace fovea::cpu
