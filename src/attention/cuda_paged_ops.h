// Append and merge of the public API on a CUDA device. Arguments are checked already (paged_ops.cc); they are enqueued
// on the stream.
#pragma once

#include <string>
#include <vector>

#include "abi/append_args.h"
#include "abi/kv_pool.h"
#include "attention/attention_checks.h"
#include "attention/cpu_paged_ops.h"
#include "fovea/attention.h"
#include "jit/kernel_source.h"

namespace fovea {

// Places of new rows into the arguments of a kernel.
void set_places(const AppendPlaces& places, abi::AppendArgs& args);

// Rows whose place lies outside of the pool are skipped.
Status cuda_append_paged_kv(const TensorView& k, const TensorView& v, const AppendPlaces& places,
                            const abi::KvPoolView& pool, Stream stream);

// pair: the two states of merge_state; else any number of them, at equal distances in memory.
Status cuda_merge_states(const MergeStates& merge, bool pair, DevicePlace place, Stream stream);

// The kernels that append and merge of these types take for tensors as aligned as allocators leave them: what `fovea
// warmup` compiles.
Result<std::vector<jit::KernelSource>> paged_op_sources(const std::string& arch, int head_dim, DType dtype,
                                                        DType kv_dtype);

}  // namespace fovea
