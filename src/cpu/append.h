// Writes new keys and values to paged KV. Called by the CPU backend.
#pragma once

#include <cstdint>

#include "abi/kv_pool.h"
#include "base/thread_pool.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea::cpu {

// Scatters rows of k and v [rows, kv_heads, head_dim] (f32, f16 or bf16; last dim contiguous) into the pool, converting
// to its storage type (rounding to nearest even; quantized types as abi/kv_pool.h says, rotated first where the pool
// is). slots[i] = page * page_tokens + offset of row i; negative: the row is skipped. kOutOfRange names the first slot
// that lies outside the pool; then nothing was written.
Status append_kv(const TensorView& k, const TensorView& v, const std::int32_t* slots, const abi::KvPoolView& pool,
                 ThreadPool& threads);

}  // namespace fovea::cpu
