// See key_row.h and the formats in abi/kv_pool.h.
#include "cpu/select/key_row.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/status.h"
#include "cpu/attention/convert.h"
#include "cpu/select/outward.h"

namespace fovea::cpu {

namespace {

// x times H / sqrt(size), H the Hadamard matrix in Sylvester's order: its own inverse, so it undoes itself.
void rotate(float* x, std::int32_t size) {
  for (std::int32_t step = 1; step < size; step *= 2) {
    for (std::int32_t i = 0; i < size; i += 2 * step) {
      for (std::int32_t j = i; j < i + step; ++j) {
        const float a = x[j];
        const float b = x[j + step];
        x[j] = a + b;
        x[j + step] = a - b;
      }
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  for (std::int32_t i = 0; i < size; ++i) x[i] *= scale;
}

void read_stored(const abi::KvPoolView& pool, std::int64_t page, std::int32_t offset, std::int32_t head,
                 std::int32_t head_dim, float* to) {
  const std::int64_t first =
      page * pool.page_stride + offset * std::int64_t{pool.token_stride} + head * std::int64_t{pool.head_stride};
  float scale = 1.0f;
  float zero = 0.0f;
  if (pool.granularity == abi::ScaleGranularity::kHead) {
    scale = static_cast<const float*>(pool.k_scale)[head];
  } else if (pool.granularity == abi::ScaleGranularity::kTokenHead) {
    const abi::KvScale& stored = static_cast<const abi::KvScale*>(
        pool.k_scale)[page * pool.scale_page_stride + head * std::int64_t{pool.scale_head_stride} + offset];
    scale = float_of_f16(stored.scale);
    zero = float_of_f16(stored.zero);
  }
  const auto* bytes = static_cast<const std::uint8_t*>(pool.k);
  const auto* halves = static_cast<const std::uint16_t*>(pool.k) + first;
  switch (pool.dtype) {
    case abi::KvDType::kF32:
      std::memcpy(to, static_cast<const float*>(pool.k) + first, sizeof(float) * static_cast<std::size_t>(head_dim));
      return;
    case abi::KvDType::kBF16:
      for (std::int32_t d = 0; d < head_dim; ++d) to[d] = float_of_bf16(halves[d]);
      return;
    case abi::KvDType::kF16:
      for (std::int32_t d = 0; d < head_dim; ++d) to[d] = float_of_f16(halves[d]);
      return;
    case abi::KvDType::kF8E4M3:
      for (std::int32_t d = 0; d < head_dim; ++d) to[d] = scale * float_of_e4m3(bytes[first + d]) + zero;
      return;
    case abi::KvDType::kI8:
      for (std::int32_t d = 0; d < head_dim; ++d) {
        to[d] = scale * static_cast<float>(bytes[first + d] - abi::kI8Bias) + zero;
      }
      return;
    case abi::KvDType::kI4:
      for (std::int32_t d = 0; d < head_dim; ++d) {
        const int nibble = (bytes[(first + d) / 2] >> (d % 2 * 4)) & 15;
        to[d] = scale * static_cast<float>(nibble - abi::kI4Bias) + zero;
      }
      return;
  }
}

}  // namespace

void read_key(const abi::KvPoolView& pool, std::int64_t page, std::int32_t offset, std::int32_t head,
              std::int32_t head_dim, float* to) {
  read_stored(pool, page, offset, head, head_dim, to);
  if (pool.rotated != 0) rotate(to, head_dim);
}

Status check_keys_readable(const abi::KvPoolView& pool, std::int32_t head_dim) {
  if (pool.rotated != 0 && !std::has_single_bit(static_cast<std::uint32_t>(head_dim))) {
    return invalid_argument("a rotated KV pool of head_dim {}, expected a power of two", head_dim);
  }
  if (pool.dtype > abi::KvDType::kI4) {
    return unsupported("selection cannot read keys of storage type {}", static_cast<int>(pool.dtype));
  }
  if (pool.granularity != abi::ScaleGranularity::kNone && pool.k_scale == nullptr) {
    return invalid_argument("the KV pool has scales by granularity {}, but no k_scale",
                            static_cast<int>(pool.granularity));
  }
  return ok_status();
}

}  // namespace fovea::cpu
