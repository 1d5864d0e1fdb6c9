#include "cuda/tensor_map.h"

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fovea::cuda {
namespace {

// Values of CUtensorMapDataType.
int data_type(TensorMapType type) {
  switch (type) {
    case TensorMapType::kU8: return 0;
    case TensorMapType::kF16: return 6;
    case TensorMapType::kF32: return 7;
    case TensorMapType::kBF16: return 9;
  }
  return 0;
}

constexpr int kPromoteTo256 = 3;  // CU_TENSOR_MAP_L2_PROMOTION_L2_256B

}  // namespace

Result<abi::TensorMap> encode_tensor_map(const Driver& driver, const TensorMapSpec& spec) {
  abi::TensorMap map{};
  const std::uint32_t ones[5] = {1, 1, 1, 1, 1};
  const int code =
      driver.api().tensor_map_encode(&map, data_type(spec.type), spec.rank, spec.address, spec.dims, spec.strides + 1,
                                     spec.box, ones, 0, static_cast<int>(spec.swizzle), kPromoteTo256, 0);
  if (code == 0) return map;
  std::string dims;
  for (std::uint32_t i = 0; i < spec.rank && i < 5; ++i) {
    dims += fmt::format("{}{} (stride {}, box {})", i == 0 ? "" : ", ", spec.dims[i], spec.strides[i], spec.box[i]);
  }
  return invalid_argument("no tensor map over {} with dims {} and swizzle {}: {}", spec.address, dims,
                          static_cast<int>(spec.swizzle), driver.status(code, "cuTensorMapEncodeTiled").message());
}

}  // namespace fovea::cuda
