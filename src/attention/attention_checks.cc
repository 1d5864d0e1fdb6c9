#include "attention/attention_checks.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <utility>

#include "base/quote.h"
#include "base/status.h"

namespace fovea {

std::string device_name(DevicePlace place) {
  return place.kind == DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", place.index);
}

std::string describe(const TensorView& tensor) {
  const int rank = std::clamp(tensor.rank, 0, TensorView::kMaxRank);
  return fmt::format("{} [{}] on {}", dtype_name(tensor.dtype),
                     fmt::join(tensor.shape.begin(), tensor.shape.begin() + rank, ", "),
                     device_name({tensor.device, tensor.device_index}));
}

Result<DevicePlace> parse_device(const std::string& text) {
  if (text == "cpu") return DevicePlace{};
  if (text == "cuda") return DevicePlace{DeviceKind::kCuda, 0};
  if (text.starts_with("cuda:")) {
    DevicePlace place{DeviceKind::kCuda, 0};
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + 5, end, place.index);
    if (error == std::errc() && stop == end && place.index >= 0) return place;
  }
  return invalid_argument("device is {}, expected \"cpu\", \"cuda\" or \"cuda:N\"", quote(text));
}

Status check_place(const char* name, const TensorView& tensor, DevicePlace place) {
  if (tensor.rank < 0 || tensor.rank > TensorView::kMaxRank) {
    return invalid_argument("{} has rank {}, expected 0..{}", name, tensor.rank, TensorView::kMaxRank);
  }
  const bool same =
      tensor.device == place.kind && (place.kind == DeviceKind::kCpu || tensor.device_index == place.index);
  if (!same) return invalid_argument("{} is {}, expected it on {}", name, describe(tensor), device_name(place));
  if (tensor.data == nullptr && tensor.num_elements() != 0) {
    return invalid_argument("{} is {} without memory", name, describe(tensor));
  }
  return ok_status();
}

Status check_rows(const char* name, const TensorView& tensor, std::int64_t rows, std::int64_t heads,
                  std::int64_t head_dim, DType dtype, DevicePlace place) {
  FOVEA_RETURN_IF_ERROR(check_place(name, tensor, place));
  if (tensor.rank != 3 || tensor.dtype != dtype || tensor.shape[0] < rows || tensor.shape[1] != heads ||
      tensor.shape[2] != head_dim) {
    return invalid_argument("{} is {}, expected {} [{}, {}, {}]", name, describe(tensor), dtype_name(dtype), rows,
                            heads, head_dim);
  }
  if (tensor.strides[2] != 1) {
    return invalid_argument("{} has stride {} in its last dim, expected 1; make it contiguous", name,
                            tensor.strides[2]);
  }
  return ok_status();
}

Status check_aligned(const char* name, const TensorView& tensor) {
  const std::int64_t bytes = dtype_bits(tensor.dtype) / 8;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0) {
    return invalid_argument("{} starts at {}, expected a multiple of 16 bytes", name, tensor.data);
  }
  for (const int d : {0, 1}) {
    if (tensor.shape[d] > 1 && tensor.strides[d] * bytes % 16 != 0) {
      return invalid_argument("{} has stride {} in dim {}, expected a multiple of 16 bytes", name, tensor.strides[d],
                              d);
    }
  }
  return ok_status();
}

Status check_contiguous(const char* name, const TensorView& tensor, DType dtype, DevicePlace place) {
  FOVEA_RETURN_IF_ERROR(check_place(name, tensor, place));
  if (tensor.dtype != dtype)
    return invalid_argument("{} is {}, expected {}", name, describe(tensor), dtype_name(dtype));
  if (std::count(tensor.shape.begin(), tensor.shape.begin() + tensor.rank, 0) > 0) return ok_status();
  std::int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride) {
      return invalid_argument("{} is {} with stride {} in dim {}, expected {}; make it contiguous", name,
                              describe(tensor), tensor.strides[i], i, stride);
    }
    stride *= tensor.shape[i];
  }
  return ok_status();
}

Status check_array(const char* name, const TensorView& tensor, std::initializer_list<std::int64_t> shape, DType dtype,
                   DevicePlace place) {
  FOVEA_RETURN_IF_ERROR(check_place(name, tensor, place));
  bool fits = tensor.dtype == dtype && tensor.rank == static_cast<std::int32_t>(shape.size());
  for (int i = 0; fits && i < tensor.rank; ++i) {
    const std::int64_t wanted = shape.begin()[i];
    fits = i == 0 ? tensor.shape[0] >= wanted : tensor.shape[i] == wanted;
  }
  if (!fits) {
    return invalid_argument("{} is {}, expected {} [{}]", name, describe(tensor), dtype_name(dtype),
                            fmt::join(shape, ", "));
  }
  return check_contiguous(name, tensor, dtype, place);
}

Status check_places(const AppendPlaces& places, std::int64_t rows, DevicePlace place) {
  if (!is_empty(places.slots)) {
    for (const auto& [name, tensor] :
         std::initializer_list<std::pair<const char*, const TensorView&>>{{"batch_indices", places.batch_indices},
                                                                          {"positions", places.positions},
                                                                          {"page_indices", places.page_indices},
                                                                          {"page_indptr", places.page_indptr}}) {
      if (is_empty(tensor)) continue;
      return invalid_argument("slots and {} are given; give slots alone, or batch_indices, positions and page lists",
                              name);
    }
    return check_array("slots", places.slots, {rows}, DType::kI32, place);
  }
  if (is_empty(places.batch_indices)) {
    return invalid_argument("nothing says where rows go; give slots, or batch_indices, positions and page lists");
  }
  FOVEA_RETURN_IF_ERROR(check_array("batch_indices", places.batch_indices, {rows}, DType::kI32, place));
  FOVEA_RETURN_IF_ERROR(check_array("positions", places.positions, {rows}, DType::kI32, place));
  FOVEA_RETURN_IF_ERROR(check_array("page_indices", places.page_indices, {0}, DType::kI32, place));
  return check_array("page_indptr", places.page_indptr, {1}, DType::kI32, place);
}

namespace {

constexpr std::int64_t kOnePage = -1;  // as page_tokens: of all tokens there are

// Places, types, shapes and strides of a pool's K and V.
Status check_pool_tensors(const PagedKv& kv, std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t page_tokens,
                          DevicePlace place) {
  FOVEA_RETURN_IF_ERROR(check_place("k", kv.k, place));
  FOVEA_RETURN_IF_ERROR(check_place("v", kv.v, place));
  const bool heads_first = kv.layout == KvLayout::kHND;
  const int head = heads_first ? 1 : 2;
  const int token = heads_first ? 2 : 1;
  for (const auto* tensor : {&kv.k, &kv.v}) {
    const bool fits = tensor->rank == 4 && tensor->shape[head] == num_kv_heads && tensor->shape[3] == head_dim &&
                      tensor->shape[token] >= 1 && (page_tokens <= 0 || tensor->shape[token] == page_tokens);
    if (!fits) {
      const std::string tokens = page_tokens <= 0 ? "page_tokens" : fmt::format("{}", page_tokens);
      return invalid_argument("{} is {}, expected [pages, {}, {}, {}] ({} layout)", tensor == &kv.k ? "k" : "v",
                              describe(*tensor), heads_first ? fmt::format("{}", num_kv_heads) : tokens,
                              heads_first ? tokens : fmt::format("{}", num_kv_heads), head_dim,
                              heads_first ? "HND" : "NHD");
    }
    if (tensor->strides[3] != 1) {
      return invalid_argument("{} has stride {} in its last dim, expected 1", tensor == &kv.k ? "k" : "v",
                              tensor->strides[3]);
    }
  }
  if (kv.k.dtype != kv.v.dtype || kv.k.shape != kv.v.shape || kv.k.strides != kv.v.strides) {
    return invalid_argument("k is {} and v {}; expected the same type, shape and strides", describe(kv.k),
                            describe(kv.v));
  }
  const std::int64_t most = page_tokens == kOnePage ? std::numeric_limits<std::int32_t>::max() : 65536;
  if (kv.k.shape[0] > std::numeric_limits<std::int32_t>::max() || kv.k.shape[token] > most) {
    return out_of_range("k is {}, expected fewer than 2^31 pages of at most 65536 tokens", describe(kv.k));
  }
  return ok_status();
}

Result<abi::KvDType> stored_type(const TensorView& k) {
  switch (k.dtype) {
    case DType::kF32: return abi::KvDType::kF32;
    case DType::kF16: return abi::KvDType::kF16;
    case DType::kBF16: return abi::KvDType::kBF16;
    case DType::kF8E4M3: return abi::KvDType::kF8E4M3;
    case DType::kI8: return abi::KvDType::kI8;
    case DType::kI4: return abi::KvDType::kI4;
    default: return unsupported("k is {}, expected f32, f16, bf16, fp8_e4m3, int8 or int4", describe(k));
  }
}

// A scale and zero for each token and head.
Status set_token_scales(const PagedKv& kv, std::int64_t num_kv_heads, DevicePlace place, abi::KvPoolView& pool) {
  if (pool.dtype == abi::KvDType::kI4 && (pool.page_stride | pool.token_stride | pool.head_stride) % 2 != 0) {
    return invalid_argument("k is {} with odd strides; rows of int4 start at whole bytes", describe(kv.k));
  }
  for (const bool keys : {true, false}) {
    const TensorView& scale = keys ? kv.k_scale : kv.v_scale;
    if (is_empty(scale)) {
      return invalid_argument("{} is missing; {} pools need scales and zeros, f16 [{}, {}, {}, 2]",
                              keys ? "k_scale" : "v_scale", dtype_name(kv.k.dtype), pool.num_pages, num_kv_heads,
                              pool.page_tokens);
    }
    FOVEA_RETURN_IF_ERROR(check_array(keys ? "k_scale" : "v_scale", scale,
                                      {pool.num_pages, num_kv_heads, pool.page_tokens, 2}, DType::kF16, place));
    (keys ? pool.k_scale : pool.v_scale) = scale.data;
  }
  pool.granularity = abi::ScaleGranularity::kTokenHead;
  pool.scale_head_stride = pool.page_tokens;
  pool.scale_page_stride = num_kv_heads * pool.page_tokens;
  return ok_status();
}

// A scale for each head, where there are any.
Status set_head_scales(const PagedKv& kv, std::int64_t num_kv_heads, DevicePlace place, abi::KvPoolView& pool) {
  for (const bool keys : {true, false}) {
    const TensorView& scale = keys ? kv.k_scale : kv.v_scale;
    if (is_empty(scale)) continue;
    if (pool.dtype != abi::KvDType::kF8E4M3) {
      return unsupported("{} is for fp8_e4m3 pools, this one is {}", keys ? "k_scale" : "v_scale",
                         dtype_name(kv.k.dtype));
    }
    FOVEA_RETURN_IF_ERROR(check_array(keys ? "k_scale" : "v_scale", scale, {num_kv_heads}, DType::kF32, place));
    (keys ? pool.k_scale : pool.v_scale) = scale.data;
    pool.granularity = abi::ScaleGranularity::kHead;
  }
  if ((pool.k_scale == nullptr) != (pool.v_scale == nullptr)) {
    return invalid_argument("k_scale and v_scale come together, one of them is empty");
  }
  return ok_status();
}

}  // namespace

Result<abi::KvPoolView> pool_view(const PagedKv& kv, std::int64_t num_kv_heads, std::int64_t head_dim,
                                  std::int64_t page_tokens, DevicePlace place) {
  FOVEA_RETURN_IF_ERROR(check_pool_tensors(kv, num_kv_heads, head_dim, page_tokens, place));
  const bool heads_first = kv.layout == KvLayout::kHND;
  const int head = heads_first ? 1 : 2;
  const int token = heads_first ? 2 : 1;
  abi::KvPoolView pool{};
  FOVEA_ASSIGN_OR_RETURN(pool.dtype, stored_type(kv.k));
  pool.k = kv.k.data;
  pool.v = kv.v.data;
  pool.page_stride = kv.k.strides[0];
  pool.token_stride = kv.k.strides[token];
  pool.head_stride = kv.k.strides[head];
  pool.num_pages = static_cast<std::int32_t>(kv.k.shape[0]);
  pool.page_tokens = static_cast<std::int32_t>(kv.k.shape[token]);
  pool.entry_tokens = pool.page_tokens;
  pool.entries_per_page = 1;
  const bool integers = pool.dtype == abi::KvDType::kI8 || pool.dtype == abi::KvDType::kI4;
  if (kv.rotated && (!integers || !std::has_single_bit(static_cast<std::uint64_t>(head_dim)))) {
    return unsupported("a rotated pool of {} with head_dim {}; int8 and int4 are rotated, with powers of two",
                       dtype_name(kv.k.dtype), head_dim);
  }
  pool.rotated = kv.rotated ? 1 : 0;
  const bool of_tokens = integers || (pool.dtype == abi::KvDType::kF8E4M3 && kv.k_scale.rank == 4);
  FOVEA_RETURN_IF_ERROR(of_tokens ? set_token_scales(kv, num_kv_heads, place, pool)
                                  : set_head_scales(kv, num_kv_heads, place, pool));
  return pool;
}

Result<abi::KvPoolView> contiguous_view(const PagedKv& kv, std::int64_t tokens, std::int64_t num_kv_heads,
                                        std::int64_t head_dim, std::int32_t entry_tokens, DevicePlace place) {
  const bool heads_first = kv.layout == KvLayout::kHND;
  const int token = heads_first ? 1 : 0;
  PagedKv paged = kv;
  for (TensorView* tensor : {&paged.k, &paged.v}) {
    if (tensor->rank != 3 || tensor->shape[token] < tokens || tensor->shape[1 - token] != num_kv_heads ||
        tensor->shape[2] != head_dim) {
      return invalid_argument(
          "{} is {}, expected [{}] ({} layout) with {} tokens or more, and no pages, as the plan has them",
          tensor == &paged.k ? "k" : "v", describe(*tensor),
          heads_first ? fmt::format("{}, tokens, {}", num_kv_heads, head_dim)
                      : fmt::format("tokens, {}, {}", num_kv_heads, head_dim),
          heads_first ? "HND" : "NHD", tokens);
    }
    // One page; its stride is never used, but tensor maps have one.
    const std::int64_t stride = tensor->strides[0] * std::max<std::int64_t>(tensor->shape[0], 1);
    tensor->rank = 4;
    for (int d = 3; d > 0; --d) {
      tensor->shape[d] = tensor->shape[d - 1];
      tensor->strides[d] = tensor->strides[d - 1];
    }
    tensor->shape[0] = tensor->shape[token + 1] == 0 ? 0 : 1;
    tensor->shape[token + 1] = std::max<std::int64_t>(tensor->shape[token + 1], 1);
    tensor->strides[0] = stride;
  }
  FOVEA_ASSIGN_OR_RETURN(abi::KvPoolView pool, pool_view(paged, num_kv_heads, head_dim, kOnePage, place));
  pool.entry_tokens = entry_tokens;
  pool.entries_per_page = std::max((pool.page_tokens + entry_tokens - 1) / entry_tokens, 1);
  return pool;
}

Status check_storage(const AttentionOptions& options, const PagedKv& kv, const abi::KvPoolView& pool) {
  const bool token_scales = pool.granularity == abi::ScaleGranularity::kTokenHead;
  if (options.kv_dtype == DType::kF8E4M3 && token_scales != options.kv_token_scales) {
    return invalid_argument("k_scale holds a scale for each {}, declared was kv_token_scales = {}",
                            token_scales ? "token and head" : "head", options.kv_token_scales);
  }
  if (kv.rotated != options.kv_rotated) {
    return invalid_argument("the pool has rotated = {}, declared was kv_rotated = {}", kv.rotated, options.kv_rotated);
  }
  return ok_status();
}

}  // namespace fovea
