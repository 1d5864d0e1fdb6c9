// Tensor maps: what TMA needs to know of a tensor in device memory. Encoded by the driver without a device; filled by
// backends when a KV pool changes.
#pragma once

#include <cstdint>

#include "abi/attention_args.h"
#include "cuda/driver.h"

namespace fovea::cuda {

enum class TensorMapType : std::uint8_t { kU8, kF16, kBF16, kF32 };
enum class Swizzle : std::uint8_t { kNone = 0, k32 = 1, k64 = 2, k128 = 3 };  // bytes of a row of the box

// Dims innermost first; the innermost has stride 1.
struct TensorMapSpec {
  void* address = nullptr;  // 16-byte aligned
  TensorMapType type = TensorMapType::kBF16;
  std::uint32_t rank = 0;            // 1..5
  std::uint64_t dims[5] = {};        // elements
  std::uint64_t strides[5] = {};     // bytes, multiples of 16; strides[0] is not read
  std::uint32_t box[5] = {};         // elements, 1..256
  Swizzle swizzle = Swizzle::kNone;  // box[0] rows of at most so many bytes
};

// kInvalidArgument, with the spec, for what the hardware cannot address.
Result<abi::TensorMap> encode_tensor_map(const Driver& driver, const TensorMapSpec& spec);

}  // namespace fovea::cuda
