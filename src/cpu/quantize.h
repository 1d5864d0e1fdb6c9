// Rows of keys and values to the quantized storage types, as abi/kv_pool.h defines them. Called by append_kv();
// attention checks pools by it.
#pragma once

#include <cstdint>

#include "abi/kv_pool.h"
#include "fovea/status.h"

namespace fovea::cpu {

// Whether the pool's scales and rotation are what its storage type needs; kInvalidArgument says what is not.
Status check_kv_scales(const abi::KvPoolView& pool, int head_dim);

// Quantizes x[head_dim] (changed on the way: sanitized) to kI8, kI4 or kF8E4M3 with a scale of its own: head_dim bytes,
// or half as many for kI4. head_dim is even.
abi::KvScale quantize_row(abi::KvDType dtype, float* x, int head_dim, std::uint8_t* to);

// What a row written by quantize_row() stands for; not rotated back.
void dequantize_row(abi::KvDType dtype, const std::uint8_t* from, abi::KvScale scale, int head_dim, float* x);

}  // namespace fovea::cpu
