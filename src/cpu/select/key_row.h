// One key as it stands in a KV pool, in fp32, whatever its storage type. Slow and exact: for statistics at append and
// for the oracle policy; attention has kernels of its own.
#pragma once

#include <cstdint>

#include "abi/kv_pool.h"
#include "fovea/status.h"

namespace fovea::cpu {

// Token `offset` of page `page` under KV head `head`, head_dim elements; in rotated pools as it was before the
// rotation.
void read_key(const abi::KvPoolView& pool, std::int64_t page, std::int32_t offset, std::int32_t head,
              std::int32_t head_dim, float* to);

// kUnsupported where read_key cannot read the pool.
Status check_keys_readable(const abi::KvPoolView& pool, std::int32_t head_dim);

}  // namespace fovea::cpu
