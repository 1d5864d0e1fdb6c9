// Writes the statistics of pages (abi/page_stats.h) from the keys that stand in them. Called by the CPU backend after
// append.
#pragma once

#include <cstdint>

#include "abi/kv_pool.h"
#include "abi/page_stats.h"
#include "base/thread_pool.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea::cpu {

// The records of every sub-page that a token of slots [rows] went to (page * page_tokens + offset; negative: none),
// made anew from all keys of the sub-page up to the last of these tokens. Nothing is read of the old record, so a page
// that is used again shows nothing of its past; the same keys give the same record whoever wrote them, so pages may be
// shared and copied. NaN in keys is left out; what is beyond +-65504 counts as that. kInvalidArgument where pool and
// statistics do not fit each other.
Status update_page_stats(const std::int32_t* slots, std::int64_t rows, const abi::KvPoolView& pool,
                         const abi::PageStatsView& stats, ThreadPool& threads);

// The codes of new keys alone (kCodes), which depend on nothing else: rows of k [rows, KV heads, head_dim] (f32, f16,
// bf16; the last dim contiguous) that went to slots [rows], all negative or within the statistics. Other tokens of
// their sub-pages are left as they are. What fovea_key_codes does on a CUDA device, to the bit.
void write_key_codes(const TensorView& k, const std::int32_t* slots, const abi::PageStatsView& stats,
                     ThreadPool& threads);

// One record of KV head `head` over `tokens` keys [tokens, head_dim] (1 to 16).
void write_record(const abi::PageStatsView& stats, std::int32_t head, const float* keys, std::int32_t tokens,
                  std::uint8_t* to);

}  // namespace fovea::cpu
