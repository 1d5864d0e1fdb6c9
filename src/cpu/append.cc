// Conversion and scattering behind append_kv().
#include "cpu/append.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "cpu/attention/convert.h"

namespace fovea::cpu {
namespace {

bool convertible(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

DType storage_type(abi::KvDType dtype) {
  switch (dtype) {
    case abi::KvDType::kF32: return DType::kF32;
    case abi::KvDType::kF16: return DType::kF16;
    case abi::KvDType::kBF16: return DType::kBF16;
    default: return DType::kU8;
  }
}

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

// `count` contiguous elements from one type to another.
void convert(const void* from, DType from_type, void* to, DType to_type, std::int64_t count) {
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<std::size_t>(count * dtype_bits(to_type) / 8));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float x = from_type == DType::kF32    ? static_cast<const float*>(from)[i]
                    : from_type == DType::kBF16 ? float_of_bf16(static_cast<const std::uint16_t*>(from)[i])
                                                : float_of_f16(static_cast<const std::uint16_t*>(from)[i]);
    if (to_type == DType::kF32) {
      static_cast<float*>(to)[i] = x;
    } else {
      static_cast<std::uint16_t*>(to)[i] = to_type == DType::kBF16 ? bf16_of(x) : f16_of(x);
    }
  }
}

}  // namespace

Status append_kv(const TensorView& k, const TensorView& v, const std::int32_t* slots, const abi::KvPoolView& pool,
                 ThreadPool& threads) {
  if (Status s = check_rows("k", k, k); !s.ok()) return s;
  if (Status s = check_rows("v", v, k); !s.ok()) return s;
  const DType stored = storage_type(pool.dtype);
  if (!convertible(stored)) {
    return unsupported("the KV pool has storage type {}, the CPU appends to f32, f16 and bf16",
                       static_cast<int>(pool.dtype));
  }
  const std::int64_t capacity = std::int64_t{pool.num_pages} * pool.page_tokens;
  for (std::int64_t i = 0; i < k.shape[0]; ++i) {
    if (slots[i] >= capacity) {
      return out_of_range("slot {} of row {} lies outside the pool's {} pages of {} tokens", slots[i], i,
                          pool.num_pages, pool.page_tokens);
    }
  }
  const std::int64_t heads = k.shape[1];
  const std::int64_t head_dim = k.shape[2];
  const std::int64_t bytes = dtype_bits(stored) / 8;
  constexpr std::int64_t kRowsPerPiece = 32;
  threads.parallel_for(k.shape[0], kRowsPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (slots[i] < 0) continue;
      const std::int64_t token =
          slots[i] / pool.page_tokens * pool.page_stride + slots[i] % pool.page_tokens * pool.token_stride;
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t to = (token + h * pool.head_stride) * bytes;
        for (const bool keys : {true, false}) {
          const TensorView& rows = keys ? k : v;
          const char* from = static_cast<const char*>(rows.data) +
                             (i * rows.strides[0] + h * rows.strides[1]) * (dtype_bits(rows.dtype) / 8);
          convert(from, rows.dtype, static_cast<char*>(keys ? pool.k : pool.v) + to, stored, head_dim);
        }
      }
    }
  });
  return ok_status();
}

}  // namespace fovea::cpu
