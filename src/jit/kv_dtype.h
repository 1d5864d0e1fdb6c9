// Storage types of the public API (fovea/dtype.h) as kernels' records name them. Used by those who write kernel specs.
#pragma once

#include "abi/kv_pool.h"
#include "fovea/dtype.h"

namespace fovea::jit {

// Of a type that pools, queries and activations may have: those up to kI4.
constexpr abi::KvDType kv_dtype_of(DType dtype) { return static_cast<abi::KvDType>(dtype); }

static_assert(kv_dtype_of(DType::kF32) == abi::KvDType::kF32 && kv_dtype_of(DType::kF16) == abi::KvDType::kF16);
static_assert(kv_dtype_of(DType::kBF16) == abi::KvDType::kBF16 && kv_dtype_of(DType::kF8E4M3) == abi::KvDType::kF8E4M3);
static_assert(kv_dtype_of(DType::kI8) == abi::KvDType::kI8 && kv_dtype_of(DType::kI4) == abi::KvDType::kI4);

}  // namespace fovea::jit
