// What the format of a KV group (KvFormat) means for the memory of a layer in that format: K, V and, for quantized
// formats, their scales, each an array by page. Used by KvPool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/kv_pool.h"
#include "base/status.h"
#include "device/device.h"
#include "fovea/dtype.h"
#include "fovea/status.h"

namespace fovea {

// kUnsupported for types that hold no KV and for rotations that there are not.
Status check_kv_format(const KvFormat& format, std::int32_t head_dim);

// Bytes of one token of one head: K, V and scales.
std::int64_t kv_token_bytes(const KvFormat& format, std::int32_t head_dim);

// Describes a layer of view.num_pages pages of view.page_tokens tokens whose memory (num_pages * page_tokens * heads *
// kv_token_bytes) starts at `memory`: fills in addresses, strides, type and scales. Inside a page: [head, token, dim],
// so that what a head reads of it is one piece; scales are [page, head, token].
void place_kv(const KvFormat& format, std::int32_t heads, std::int32_t head_dim, std::byte* memory,
              abi::KvPoolView& view);

// Where a page of a layer lies: K, V and for some formats their scales. Calls visit(first byte, bytes) for each piece
// until it fails.
template <typename Visit>
Status for_each_piece(const abi::KvPoolView& view, std::int32_t page, const Visit& visit);

// Copies K, V and scales of a layer that place_kv() described, in memory of the device.
Status copy_kv_page(Device& device, const abi::KvPoolView& view, std::int32_t from, std::int32_t to);

template <typename Visit>
Status for_each_piece(const abi::KvPoolView& view, std::int32_t page, const Visit& visit) {
  const auto at = [page](void* base, std::int64_t bytes) { return static_cast<std::byte*>(base) + page * bytes; };
  const std::int64_t bytes = view.page_stride * dtype_bits(static_cast<DType>(view.dtype)) / 8;
  FOVEA_RETURN_IF_ERROR(visit(at(view.k, bytes), static_cast<std::size_t>(bytes)));
  FOVEA_RETURN_IF_ERROR(visit(at(view.v, bytes), static_cast<std::size_t>(bytes)));
  if (view.granularity != abi::ScaleGranularity::kTokenHead) return ok_status();
  const std::int64_t scales = view.scale_page_stride * static_cast<std::int64_t>(sizeof(abi::KvScale));
  FOVEA_RETURN_IF_ERROR(visit(at(view.k_scale, scales), static_cast<std::size_t>(scales)));
  return visit(at(view.v_scale, scales), static_cast<std::size_t>(scales));
}

}  // namespace fovea
