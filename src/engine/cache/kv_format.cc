// Sizes and addresses of stored tokens.
#include "engine/cache/kv_format.h"

#include <bit>

#include "base/status.h"

namespace fovea {

Status check_kv_format(const KvFormat& format, std::int32_t head_dim) {
  if (!format.quantized() && format.dtype != DType::kF32 && format.dtype != DType::kF16 &&
      format.dtype != DType::kBF16) {
    return unsupported("KV cache of {}; expected f32, f16, bf16, fp8_e4m3, int8 or int4", dtype_name(format.dtype));
  }
  if (format.rotated && format.dtype != DType::kI8 && format.dtype != DType::kI4) {
    return unsupported("a rotated KV cache of {}; int8 and int4 are rotated", dtype_name(format.dtype));
  }
  if (format.rotated && !std::has_single_bit(static_cast<std::uint32_t>(head_dim))) {
    return unsupported("a rotated KV cache needs a head_dim that is a power of two, this model's is {}", head_dim);
  }
  return ok_status();
}

std::int64_t kv_token_bytes(const KvFormat& format, std::int32_t head_dim) {
  const std::int64_t row = std::int64_t{head_dim} * dtype_bits(format.dtype) / 8;
  return 2 * (row + (format.quantized() ? static_cast<std::int64_t>(sizeof(abi::KvScale)) : 0));
}

void place_kv(const KvFormat& format, std::int32_t heads, std::int32_t head_dim, std::byte* memory,
              abi::KvPoolView& view) {
  const std::int64_t page_rows = std::int64_t{view.page_tokens} * heads;
  const std::int64_t bytes = view.num_pages * page_rows * head_dim * dtype_bits(format.dtype) / 8;
  view.k = memory;
  view.v = memory + bytes;
  view.page_stride = page_rows * head_dim;
  view.token_stride = head_dim;
  view.head_stride = std::int64_t{view.page_tokens} * head_dim;
  view.entry_tokens = view.page_tokens;
  view.entries_per_page = 1;
  view.dtype = static_cast<abi::KvDType>(format.dtype);
  view.granularity = abi::ScaleGranularity::kNone;
  view.rotated = format.rotated;
  if (!format.quantized()) return;
  view.granularity = abi::ScaleGranularity::kTokenHead;
  view.k_scale = memory + 2 * bytes;
  view.v_scale = memory + 2 * bytes + view.num_pages * page_rows * static_cast<std::int64_t>(sizeof(abi::KvScale));
  view.scale_page_stride = page_rows;
  view.scale_head_stride = view.page_tokens;
}

Status copy_kv_page(Device& device, const abi::KvPoolView& view, std::int32_t from, std::int32_t to) {
  return for_each_piece(view, from, [&](std::byte* piece, std::size_t bytes) {
    return device.copy(piece + (std::int64_t{to} - from) * static_cast<std::int64_t>(bytes), piece, bytes);
  });
}

}  // namespace fovea
