// Random attention batches.
#include "testing/attention_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>

namespace fovea::testing {
namespace {

void store(std::byte* base, DType dtype, std::int64_t index, float x) {
  if (dtype == DType::kF32) {
    std::memcpy(base + index * 4, &x, 4);
    return;
  }
  if (dtype == DType::kF8E4M3) {
    base[index] = static_cast<std::byte>(e4m3_of(x));
    return;
  }
  if (dtype == DType::kI8) {
    base[index] = static_cast<std::byte>(static_cast<int>(x) + abi::kI8Bias);
    return;
  }
  if (dtype == DType::kI4) {
    const int shift = static_cast<int>(index % 2 * 4);
    const int code = (static_cast<int>(x) + abi::kI4Bias) << shift;
    base[index / 2] = (base[index / 2] & static_cast<std::byte>(0xf0 >> shift)) | static_cast<std::byte>(code);
    return;
  }
  const std::uint16_t half = dtype == DType::kBF16 ? bf16_of(x) : f16_of(x);
  std::memcpy(base + index * 2, &half, 2);
}

bool has_token_scales(const CaseSpec& spec) {
  return spec.kv_dtype == DType::kI8 || spec.kv_dtype == DType::kI4 || spec.token_scales;
}

// Stores a row of numbers about as append would, with a scale of its own; what it then stands for is what counts.
abi::KvScale store_scaled(std::byte* base, DType dtype, std::int64_t index, const std::vector<float>& x) {
  const auto [min, max] = std::minmax_element(x.begin(), x.end());
  const float levels = dtype == DType::kI4 ? 15.0f : dtype == DType::kI8 ? 255.0f : 896.0f;
  const float low = dtype == DType::kI4 ? -8.0f : -128.0f;
  const auto scale = static_cast<std::uint16_t>(f16_of(std::max(1e-3f, 1.01f * (*max - *min) / levels)) & ~7u);
  const std::uint16_t zero = dtype == DType::kF8E4M3 ? 0 : f16_of(*min - low * float_of_f16(scale));
  for (std::size_t d = 0; d < x.size(); ++d) {
    const float stored = (x[d] - float_of_f16(zero)) / float_of_f16(scale);
    const bool exact = dtype == DType::kF8E4M3;
    store(base, dtype, index + static_cast<std::int64_t>(d),
          exact ? stored : std::clamp(std::nearbyint(stored), low, -low - 1.0f));
  }
  return {scale, zero};
}

float load(const std::byte* base, DType dtype, std::int64_t index) {
  if (dtype == DType::kF32) {
    float x;
    std::memcpy(&x, base + index * 4, 4);
    return x;
  }
  if (dtype == DType::kF8E4M3) return float_of_e4m3(static_cast<std::uint8_t>(base[index]));
  if (dtype == DType::kI8) return static_cast<float>(static_cast<int>(base[index]) - abi::kI8Bias);
  if (dtype == DType::kI4) {
    return static_cast<float>((static_cast<int>(base[index / 2]) >> (index % 2 * 4) & 15) - abi::kI4Bias);
  }
  std::uint16_t half;
  std::memcpy(&half, base + index * 2, 2);
  return dtype == DType::kBF16 ? float_of_bf16(half) : float_of_f16(half);
}

abi::KvDType pool_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32: return abi::KvDType::kF32;
    case DType::kF16: return abi::KvDType::kF16;
    case DType::kF8E4M3: return abi::KvDType::kF8E4M3;
    case DType::kI8: return abi::KvDType::kI8;
    case DType::kI4: return abi::KvDType::kI4;
    default: return abi::KvDType::kBF16;
  }
}

std::int64_t element_index(const abi::KvPoolView& pool, std::int64_t page, std::int64_t offset, int head) {
  return page * pool.page_stride + offset * pool.token_stride + head * pool.head_stride;
}

// Tokens of requests one behind the other; those that no request has hold what must not be read.
int assign_tokens(AttentionCase& c, std::mt19937_64& random) {
  int tokens = static_cast<int>(random() % 5);
  c.page_table_stride = std::max(1, *std::max_element(c.spec.kv_lens.begin(), c.spec.kv_lens.end()));
  c.page_table.assign(static_cast<std::size_t>(c.num_requests()) * c.page_table_stride, -1);
  for (int r = 0; r < c.num_requests(); ++r) {
    for (int t = 0; t < c.spec.kv_lens[r]; ++t) {
      c.page_table[static_cast<std::size_t>(r) * c.page_table_stride + t] = tokens++;
    }
    tokens += static_cast<int>(random() % 3);
  }
  return std::max(tokens, 1);
}

// Pages of request r in random physical order; requests share the pages that lie wholly in the shared prefix.
int assign_pages(AttentionCase& c, std::mt19937_64& random) {
  const CaseSpec& spec = c.spec;
  const int requests = c.num_requests();
  int pages = 0;
  c.page_table_stride = 1;
  for (int r = 0; r < requests; ++r) {
    c.page_table_stride = std::max(c.page_table_stride, (spec.kv_lens[r] + spec.page_tokens - 1) / spec.page_tokens);
  }
  c.page_table.assign(static_cast<std::size_t>(requests) * c.page_table_stride, -1);
  for (int r = 0; r < requests; ++r) {
    const int shared = std::min(spec.shared_tokens, spec.kv_lens[r]) / spec.page_tokens;
    const int used = (spec.kv_lens[r] + spec.page_tokens - 1) / spec.page_tokens;
    for (int p = 0; p < used; ++p) {
      int owner = -1;
      for (int other = 0; other < r && p < shared && owner < 0; ++other) {
        if (p < std::min(spec.shared_tokens, spec.kv_lens[other]) / spec.page_tokens) owner = other;
      }
      std::int32_t& entry = c.page_table[static_cast<std::size_t>(r) * c.page_table_stride + p];
      entry = owner >= 0 ? c.page_table[static_cast<std::size_t>(owner) * c.page_table_stride + p] : pages++;
    }
  }
  const int unused = 3;
  std::vector<std::int32_t> physical(pages + unused);
  for (std::size_t i = 0; i < physical.size(); ++i) physical[i] = static_cast<std::int32_t>(i);
  std::shuffle(physical.begin(), physical.end(), random);
  for (std::int32_t& entry : c.page_table) {
    if (entry >= 0) entry = physical[entry];
  }
  return pages + unused;
}

void fill_mask(AttentionCase& c, std::mt19937_64& random) {
  const CaseSpec& spec = c.spec;
  std::uint64_t bits = 3;  // so that offsets are not byte-aligned
  for (int r = 0; r < c.num_requests(); ++r) {
    const int tail = spec.mask_tail > 0 ? std::min(spec.mask_tail, spec.kv_lens[r]) : spec.kv_lens[r];
    c.mask_tails.push_back(tail);
    c.mask_offsets.push_back(bits);
    c.mask_strides.push_back(static_cast<std::uint32_t>(tail) + 5);
    bits += static_cast<std::uint64_t>(c.mask_strides.back()) * static_cast<std::uint64_t>(spec.q_lens[r]);
  }
  c.mask_bits.resize(bits / 8 + 9);
  for (std::uint8_t& byte : c.mask_bits) byte = static_cast<std::uint8_t>(random() & random());
  // Every seventh row sees nothing.
  for (int r = 0; r < c.num_requests(); ++r) {
    for (int row = 0; row < spec.q_lens[r]; row += 7) {
      for (std::uint32_t t = 0; t < c.mask_strides[r]; ++t) {
        const std::uint64_t bit = c.mask_offsets[r] + static_cast<std::uint64_t>(row) * c.mask_strides[r] + t;
        c.mask_bits[bit / 8] &= static_cast<std::uint8_t>(~(1u << (bit % 8)));
      }
    }
  }
}

}  // namespace

std::uint16_t bf16_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float float_of_bf16(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

std::uint16_t f16_of(float x) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000u : 0u);
  if (std::isnan(x)) return static_cast<std::uint16_t>(sign | 0x7e00u);
  const double size = std::abs(static_cast<double>(x));
  if (size >= 65520.0) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (size == 0.0) return sign;
  // Units of the last place: 2^-24 below 2^-14, else 2^(exponent - 10). nearbyint rounds to even.
  const int exponent = std::max(std::ilogb(size), -14);
  auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  if (units >= 2048) return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>((exponent + 16) << 10));
  if (units < 1024) return static_cast<std::uint16_t>(sign | units);
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>((exponent + 15) << 10) | (units - 1024));
}

float float_of_f16(std::uint16_t x) {
  const float sign = (x & 0x8000u) ? -1.0f : 1.0f;
  const int exponent = (x >> 10) & 31;
  const int mantissa = x & 1023;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

std::uint8_t e4m3_of(float x) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(x) ? 0x80u : 0u);
  if (!std::isfinite(x)) return static_cast<std::uint8_t>(sign | 0x7fu);  // there is no infinity
  const double size = std::min(std::abs(static_cast<double>(x)), 448.0);
  if (size == 0.0) return sign;
  // Units of the last place: 2^-9 below 2^-6, else 2^(exponent - 3).
  const int exponent = std::max(std::ilogb(size), -6);
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  if (units >= 16) return static_cast<std::uint8_t>(sign | static_cast<std::uint32_t>((exponent + 8) << 3));
  if (units < 8) return static_cast<std::uint8_t>(sign | units);
  return static_cast<std::uint8_t>(sign | static_cast<std::uint32_t>((exponent + 7) << 3) | (units - 8));
}

float float_of_e4m3(std::uint8_t x) {
  const float sign = (x & 0x80u) ? -1.0f : 1.0f;
  const int exponent = (x >> 3) & 15;
  const int mantissa = x & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(mantissa + 8), exponent - 10);
}

double AttentionCase::element(bool key, int request, int token, int kv_head, int d) const {
  const std::int64_t page =
      page_table[static_cast<std::size_t>(request) * page_table_stride + token / spec.page_tokens];
  const std::int64_t in_page = token % spec.page_tokens;
  const std::int64_t index = element_index(pool, page, in_page, kv_head);
  const std::byte* base = key ? k.data() : v.data();
  if (!has_token_scales(spec)) return load(base, spec.kv_dtype, index + d);
  const abi::KvScale& scale =
      (key ? k_scales : v_scales)[page * pool.scale_page_stride + kv_head * pool.scale_head_stride + in_page];
  const auto stored = [&](int i) {
    const double by = float_of_f16(scale.scale);
    return by * load(base, spec.kv_dtype, index + i) + float_of_f16(scale.zero);
  };
  if (!spec.rotated) return stored(d);
  double sum = 0.0;  // row d of the Hadamard matrix: signs are parities of common bits
  for (int i = 0; i < spec.head_dim; ++i) {
    sum += std::popcount(static_cast<unsigned>(i & d)) % 2 == 0 ? stored(i) : -stored(i);
  }
  return sum / std::sqrt(static_cast<double>(spec.head_dim));
}

bool AttentionCase::sees(int request, int row, int token, int kv_head) const {
  if (blocks_see) return blocks_see(row, token, kv_head);
  const std::int64_t q_pos = std::int64_t{spec.kv_lens[request]} - spec.q_lens[request] + row;
  switch (spec.mask) {
    case abi::MaskKind::kNone: return true;
    case abi::MaskKind::kCausal: return token <= q_pos;
    case abi::MaskKind::kWindow: return token <= q_pos && (spec.window_left < 0 || q_pos - token <= spec.window_left);
    case abi::MaskKind::kBits: break;
  }
  const int in_tail = token - (spec.kv_lens[request] - mask_tails[request]);
  if (in_tail < 0) return true;
  const std::uint64_t bit = mask_offsets[request] + static_cast<std::uint64_t>(row) * mask_strides[request] +
                            static_cast<std::uint64_t>(in_tail);
  return (mask_bits[bit / 8] >> (bit % 8)) & 1;
}

std::string AttentionCase::describe() const {
  std::ostringstream s;
  s << num_requests() << " requests, " << num_qo_heads() << "/" << spec.kv_heads << " heads, head_dim " << spec.head_dim
    << ", pages of " << spec.page_tokens << ", KV " << dtype_name(spec.kv_dtype) << (spec.token_scales ? " scaled" : "")
    << (spec.rotated ? " rotated" : "") << " offset " << spec.kv_offset << (spec.heads_first ? " HND" : " NHD")
    << (spec.contiguous ? " contiguous" : "") << ", mask " << static_cast<int>(spec.mask) << " window "
    << spec.window_left << " tail " << spec.mask_tail << ", shared " << spec.shared_tokens << ", logit scale "
    << spec.logit_scale << ", seed " << spec.seed << ", q/kv lengths";
  for (int r = 0; r < std::min(num_requests(), 12); ++r) s << " " << spec.q_lens[r] << "/" << spec.kv_lens[r];
  return s.str();
}

AttentionCase make_case(const CaseSpec& spec) {
  AttentionCase c;
  c.spec = spec;
  std::mt19937_64 random(spec.seed);
  std::normal_distribution<float> normal;
  for (const std::int32_t len : spec.q_lens) c.num_rows += len;
  const int pages = spec.contiguous ? assign_tokens(c, random) : assign_pages(c, random);
  const std::int64_t row = std::int64_t{spec.kv_heads} * spec.head_dim;

  abi::KvPoolView& pool = c.pool;
  pool.num_pages = pages;
  pool.page_tokens = pool.entry_tokens = spec.page_tokens;
  pool.entries_per_page = 1;
  pool.dtype = pool_dtype(spec.kv_dtype);
  if (spec.heads_first && spec.contiguous) {
    pool.page_stride = pool.token_stride = spec.head_dim;
    pool.head_stride = pages * pool.page_stride;
  } else if (spec.heads_first) {
    pool.token_stride = spec.head_dim;
    pool.head_stride = std::int64_t{spec.page_tokens} * spec.head_dim + spec.pad_elements;
    pool.page_stride = pool.head_stride * spec.kv_heads;
  } else {
    pool.token_stride = row + spec.pad_elements;
    pool.head_stride = spec.head_dim;
    pool.page_stride = pool.token_stride * spec.page_tokens;
  }
  if (has_token_scales(spec)) {
    pool.granularity = abi::ScaleGranularity::kTokenHead;
    pool.rotated = spec.rotated;
    pool.scale_head_stride = spec.page_tokens;
    pool.scale_page_stride = std::int64_t{spec.kv_heads} * spec.page_tokens;
    const std::uint16_t trash = spec.poison ? 0x7e00 : 0;  // NaN
    c.k_scales.assign(static_cast<std::size_t>(pool.scale_page_stride * pages), {trash, trash});
    c.v_scales = c.k_scales;
    pool.k_scale = c.k_scales.data();
    pool.v_scale = c.v_scales.data();
  }
  const std::int64_t elements = std::max(pool.page_stride * pages, pool.head_stride * spec.kv_heads);
  const std::size_t bytes = static_cast<std::size_t>(elements * dtype_bits(spec.kv_dtype) / 8);
  c.k.resize(bytes);
  c.v.resize(bytes);
  pool.k = c.k.data();
  pool.v = c.v.data();
  const bool integers = spec.kv_dtype == DType::kI8 || spec.kv_dtype == DType::kI4;
  for (std::int64_t i = 0; i < elements && !integers; ++i) {
    const float trash = !spec.poison   ? 0.0f
                        : random() % 2 ? std::numeric_limits<float>::quiet_NaN()
                                       : std::numeric_limits<float>::infinity();
    store(c.k.data(), spec.kv_dtype, i, trash);
    store(c.v.data(), spec.kv_dtype, i, trash);
  }
  std::vector<float> common_key(static_cast<std::size_t>(row));
  for (float& x : common_key) x = spec.key_spread < 0.0f ? 0.0f : normal(random);
  for (int r = 0; r < c.num_requests(); ++r) {
    for (int t = 0; t < spec.kv_lens[r]; ++t) {
      const std::int64_t page = c.page_table[static_cast<std::size_t>(r) * c.page_table_stride + t / spec.page_tokens];
      for (int h = 0; h < spec.kv_heads; ++h) {
        const std::int64_t index = element_index(pool, page, t % spec.page_tokens, h);
        std::vector<float> key(static_cast<std::size_t>(spec.head_dim)), value(key.size());
        for (int d = 0; d < spec.head_dim; ++d) {
          const float noise = normal(random);
          const float common =
              spec.key_spread < 0.0f ? 0.0f : common_key[static_cast<std::size_t>(h * spec.head_dim + d)];
          key[d] = spec.key_spread < 0.0f ? noise : common + spec.key_spread * noise;
          value[d] = normal(random);
        }
        if (has_token_scales(spec)) {
          for (int d = 0; d < spec.head_dim && t % 2 == 1; ++d) key[d] += spec.kv_offset, value[d] += spec.kv_offset;
          const std::int64_t scale = page * pool.scale_page_stride + h * pool.scale_head_stride + t % spec.page_tokens;
          c.k_scales[scale] = store_scaled(c.k.data(), spec.kv_dtype, index, key);
          c.v_scales[scale] = store_scaled(c.v.data(), spec.kv_dtype, index, value);
          continue;
        }
        for (int d = 0; d < spec.head_dim; ++d) {
          store(c.k.data(), spec.kv_dtype, index + d, key[d]);
          store(c.v.data(), spec.kv_dtype, index + d, value[d]);
        }
      }
    }
  }
  c.q.resize(static_cast<std::size_t>(c.num_rows) * c.num_qo_heads() * spec.head_dim);
  for (float& x : c.q) {
    x = normal(random) * spec.logit_scale;
    if (spec.q_bf16) x = float_of_bf16(bf16_of(x));
    if (spec.q_f16) x = float_of_f16(f16_of(x));
  }
  if (spec.mask == abi::MaskKind::kBits) fill_mask(c, random);
  return c;
}

}  // namespace fovea::testing
