// Append and merge of the public API on the CPU. Arguments are checked already (paged_ops.cc).
#pragma once

#include <vector>

#include "abi/kv_pool.h"
#include "base/thread_pool.h"
#include "cpu/merge_states.h"
#include "fovea/attention.h"

namespace fovea {

using cpu::MergeStates;

// One pool for every object that asks for no number of threads of its own, and for append and merge.
ThreadPool& process_threads();

// Where each of `rows` rows goes: page * page_tokens + token, or negative. kOutOfRange: the first place outside of a
// pool of num_pages pages.
Result<std::vector<std::int32_t>> slots_of(const AppendPlaces& places, std::int64_t rows, std::int32_t page_tokens,
                                           std::int32_t num_pages);

// kOutOfRange names the first place outside of the pool; then nothing was written.
Status cpu_append_paged_kv(const TensorView& k, const TensorView& v, const AppendPlaces& places,
                           const abi::KvPoolView& pool);
Status cpu_merge_states(const MergeStates& merge);

}  // namespace fovea
