// Append and merge of the public API on the CPU. Arguments are checked already (paged_ops.cc).
#pragma once

#include "abi/kv_pool.h"
#include "cpu/merge_states.h"
#include "fovea/attention.h"

namespace fovea {

using cpu::MergeStates;

// kOutOfRange names the first place outside of the pool; then nothing was written.
Status cpu_append_paged_kv(const TensorView& k, const TensorView& v, const AppendPlaces& places,
                           const abi::KvPoolView& pool);
Status cpu_merge_states(const MergeStates& merge);

}  // namespace fovea
