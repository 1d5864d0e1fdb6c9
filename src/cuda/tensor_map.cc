// Checks and encodes tensor maps.
#include "cuda/tensor_map.h"

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fovea::cuda {
namespace {

// What TMA can address.
constexpr std::uint32_t kMaxRank = 5;
constexpr std::uint32_t kMaxBox = 256;
constexpr std::uint64_t kMaxDim = std::uint64_t{1} << 32;
constexpr std::uint64_t kMaxStride = std::uint64_t{1} << 40;
constexpr std::uint64_t kAlignment = 16;

constexpr int kNotInterleaved = 0;
// CU_TENSOR_MAP_L2_PROMOTION_NONE: boxes have rows of 128 bytes at most, and 256 fetched for each cost the attention
// kernel 8 % of its bandwidth.
constexpr int kNoPromotion = 0;
constexpr int kZerosOutside = 0;  // CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE

// Value of CUtensorMapDataType, and bytes of an element.
struct ElementType {
  int value;
  std::uint32_t bytes;
};

ElementType element_type(TensorMapType type) {
  switch (type) {
    case TensorMapType::kU8: return {0, 1};
    case TensorMapType::kF16: return {6, 2};
    case TensorMapType::kF32: return {7, 4};
    case TensorMapType::kBF16: return {9, 2};
  }
  return {-1, 0};
}

std::uint32_t swizzle_bytes(Swizzle swizzle) {
  return swizzle == Swizzle::kNone ? 0 : 16u << static_cast<int>(swizzle);
}

Status check(const TensorMapSpec& spec, const ElementType& type) {
  if (type.bytes == 0) return invalid_argument("a tensor map has an unknown type {}", static_cast<int>(spec.type));
  if (spec.swizzle > Swizzle::k128) {
    return invalid_argument("a tensor map has an unknown swizzle {}", static_cast<int>(spec.swizzle));
  }
  if (spec.rank < 1 || spec.rank > kMaxRank) {
    return invalid_argument("a tensor map has {} dims, expected 1 to {}", spec.rank, kMaxRank);
  }
  if (spec.address == nullptr || reinterpret_cast<std::uintptr_t>(spec.address) % kAlignment != 0) {
    return invalid_argument("a tensor map is over {}, expected device memory aligned to {} bytes", spec.address,
                            kAlignment);
  }
  for (std::uint32_t i = 0; i < spec.rank; ++i) {
    if (spec.dims[i] < 1 || spec.dims[i] > kMaxDim) {
      return invalid_argument("dim {} of a tensor map has {} elements, expected 1 to {}", i, spec.dims[i], kMaxDim);
    }
    if (spec.box[i] < 1 || spec.box[i] > kMaxBox) {
      return invalid_argument("the box of a tensor map has {} elements in dim {}, expected 1 to {}", spec.box[i], i,
                              kMaxBox);
    }
    if (i > 0 && (spec.strides[i] % kAlignment != 0 || spec.strides[i] >= kMaxStride)) {
      return invalid_argument("dim {} of a tensor map has a stride of {} bytes, expected a multiple of {} below 2^40",
                              i, spec.strides[i], kAlignment);
    }
  }
  const std::uint32_t row_bytes = spec.box[0] * type.bytes;
  if (row_bytes % kAlignment != 0) {
    return invalid_argument("rows of a tensor map's box have {} bytes, expected a multiple of {}", row_bytes,
                            kAlignment);
  }
  if (spec.swizzle != Swizzle::kNone && row_bytes > swizzle_bytes(spec.swizzle)) {
    return invalid_argument("rows of a tensor map's box have {} bytes, its swizzle takes {} at most", row_bytes,
                            swizzle_bytes(spec.swizzle));
  }
  return ok_status();
}

}  // namespace

Result<abi::TensorMap> encode_tensor_map(const Driver& driver, const TensorMapSpec& spec) {
  const ElementType type = element_type(spec.type);
  FOVEA_RETURN_IF_ERROR(check(spec, type));
  abi::TensorMap map{};
  const std::uint32_t ones[kMaxRank] = {1, 1, 1, 1, 1};
  const int code = driver.api().tensor_map_encode(&map, type.value, spec.rank, spec.address, spec.dims,
                                                  spec.strides + 1, spec.box, ones, kNotInterleaved,
                                                  static_cast<int>(spec.swizzle), kNoPromotion, kZerosOutside);
  if (code == 0) return map;
  std::string dims;
  for (std::uint32_t i = 0; i < spec.rank; ++i) {
    dims += fmt::format("{}{} (stride {}, box {})", i == 0 ? "" : ", ", spec.dims[i], spec.strides[i], spec.box[i]);
  }
  return invalid_argument("no tensor map over {} with dims {} and swizzle {}: {}", spec.address, dims,
                          static_cast<int>(spec.swizzle), driver.status(code, "cuTensorMapEncodeTiled").message());
}

}  // namespace fovea::cuda
