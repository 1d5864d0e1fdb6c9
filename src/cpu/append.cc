// Conversion and scattering behind append_kv().
#include "cpu/append.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "cpu/attention/convert.h"
#include "cpu/attention/quantized.h"
#include "cpu/quantize.h"

namespace fovea::cpu {
namespace {

bool convertible(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

Status check_rows(const char* name, const TensorView& tensor, const TensorView& like) {
  if (tensor.rank != 3 || tensor.strides[2] != 1) {
    return invalid_argument("{} must have rank 3 and a contiguous last dim, it has rank {} and stride {}", name,
                            tensor.rank, tensor.strides[2]);
  }
  if (!convertible(tensor.dtype)) {
    return unsupported("{} is {}, expected f32, f16 or bf16", name, dtype_name(tensor.dtype));
  }
  for (int i = 0; i < 3; ++i) {
    if (tensor.shape[i] != like.shape[i]) {
      return invalid_argument("k has shape [{}, {}, {}], {} has [{}, {}, {}]", like.shape[0], like.shape[1],
                              like.shape[2], name, tensor.shape[0], tensor.shape[1], tensor.shape[2]);
    }
  }
  return ok_status();
}

float load(const void* from, DType type, std::int64_t i) {
  if (type == DType::kF32) return static_cast<const float*>(from)[i];
  const std::uint16_t half = static_cast<const std::uint16_t*>(from)[i];
  return type == DType::kBF16 ? float_of_bf16(half) : float_of_f16(half);
}

// `count` contiguous elements from one type to another; e4m3 after a product with `by`.
void convert(const void* from, DType from_type, void* to, DType to_type, float by, std::int64_t count) {
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<std::size_t>(count * dtype_bits(to_type) / 8));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = load(from, from_type, i);
    if (to_type == DType::kF32) {
      static_cast<float*>(to)[i] = x;
    } else if (to_type == DType::kF8E4M3) {
      static_cast<std::uint8_t*>(to)[i] = e4m3_of(x * by);
    } else {
      static_cast<std::uint16_t*>(to)[i] = to_type == DType::kBF16 ? bf16_of(x) : f16_of(x);
    }
  }
}

// One head of one token, to byte `to` and, where the pool has one a token and head, scale number `scale` of `scales`.
void write_row(const abi::KvPoolView& pool, const void* from, DType from_type, int head_dim, std::int64_t head,
               void* to, void* scales, std::int64_t scale) {
  if (pool.granularity != abi::ScaleGranularity::kTokenHead) {
    const bool scaled = pool.granularity == abi::ScaleGranularity::kHead && scales != nullptr;
    const float by = scaled ? 1.0f / static_cast<const float*>(scales)[head] : 1.0f;
    convert(from, from_type, to, static_cast<DType>(pool.dtype), by, head_dim);
    return;
  }
  alignas(64) float x[kMaxHeadDim];
  for (int d = 0; d < head_dim; ++d) x[d] = load(from, from_type, d);
  if (pool.rotated != 0) hadamard(x, head_dim);
  static_cast<abi::KvScale*>(scales)[scale] = quantize_row(pool.dtype, x, head_dim, static_cast<std::uint8_t*>(to));
}

}  // namespace

Status append_kv(const TensorView& k, const TensorView& v, const std::int32_t* slots, const abi::KvPoolView& pool,
                 ThreadPool& threads) {
  if (Status s = check_rows("k", k, k); !s.ok()) return s;
  if (Status s = check_rows("v", v, k); !s.ok()) return s;
  if (pool.dtype > abi::KvDType::kI4) {
    return invalid_argument("the KV pool has storage type {}, which is none", static_cast<int>(pool.dtype));
  }
  const std::int64_t heads = k.shape[1];
  const auto head_dim = static_cast<int>(k.shape[2]);
  if (Status s = check_kv_scales(pool, head_dim); !s.ok()) return s;
  const bool token_scales = pool.granularity == abi::ScaleGranularity::kTokenHead;
  if (token_scales && (head_dim > kMaxHeadDim || head_dim % 2 != 0)) {
    return unsupported("head_dim is {}, pools with a scale a token take even ones up to {}", head_dim, kMaxHeadDim);
  }
  const std::int64_t capacity = std::int64_t{pool.num_pages} * pool.page_tokens;
  for (std::int64_t i = 0; i < k.shape[0]; ++i) {
    if (slots[i] >= capacity) {
      return out_of_range("slot {} of row {} lies outside the pool's {} pages of {} tokens", slots[i], i,
                          pool.num_pages, pool.page_tokens);
    }
  }
  const std::int64_t bits = dtype_bits(static_cast<DType>(pool.dtype));
  constexpr std::int64_t kRowsPerPiece = 32;
  threads.parallel_for(k.shape[0], kRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (slots[i] < 0) continue;
      const std::int64_t page = slots[i] / pool.page_tokens;
      const std::int64_t in_page = slots[i] % pool.page_tokens;
      const std::int64_t token = page * pool.page_stride + in_page * pool.token_stride;
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t to = (token + h * pool.head_stride) * bits / 8;
        const std::int64_t scale = page * pool.scale_page_stride + h * pool.scale_head_stride + in_page;
        for (const bool keys : {true, false}) {
          const TensorView& rows = keys ? k : v;
          const char* from = static_cast<const char*>(rows.data) +
                             (i * rows.strides[0] + h * rows.strides[1]) * (dtype_bits(rows.dtype) / 8);
          write_row(pool, from, rows.dtype, head_dim, h, static_cast<char*>(keys ? pool.k : pool.v) + to,
                    keys ? pool.k_scale : pool.v_scale, scale);
        }
      }
    }
  });
  return ok_status();
}

}  // namespace fovea::cpu
