// Instantiations of the kernels between a model's matrix products (kernels/model). Their arguments and grids are in
// abi/op_args.h. Called by device/cuda and `fovea warmup`.
#pragma once

#include <cstdint>
#include <string>

#include "abi/kv_pool.h"
#include "fovea/status.h"
#include "jit/kernel_source.h"

namespace fovea::jit {

// Entry point fovea_rms_norm. dtype: kF32, kF16, kBF16; vec: elements an access, runs: accesses a thread, up to
// abi::kMostNormRuns. kUnsupported, kInvalidArgument.
Result<KernelSource> norm_source(const std::string& arch, abi::KvDType dtype, std::uint32_t vec, std::uint32_t runs);

// Entry points fovea_embed, fovea_gate, fovea_add, fovea_softcap.
Result<KernelSource> elementwise_source(const std::string& arch, abi::KvDType dtype, std::uint32_t vec);

// Entry point fovea_rope_append. vec: rope_vec().
Result<KernelSource> rope_append_source(const std::string& arch, abi::KvDType dtype, int head_dim, std::uint32_t vec);

// Entry points fovea_fp8_rows, fovea_fp8_expand and fovea_fp8_finish.
Result<KernelSource> fp8_rows_source(const std::string& arch, abi::KvDType dtype, std::uint32_t vec);

// Entry point fovea_argmax, of f32.
Result<KernelSource> argmax_source(const std::string& arch, std::uint32_t vec);

// Entry point fovea_draw.
Result<KernelSource> draw_source(const std::string& arch, std::uint32_t vec);

// Entry point fovea_all_reduce (abi/ranks_args.h).
Result<KernelSource> all_reduce_source(const std::string& arch, abi::KvDType dtype);

// The elements an access of fovea_rope_append for heads of which rotary_dim leading elements rotate; 0 where there is
// none: head_dim is beyond 256 or odd.
std::uint32_t rope_vec(int head_dim, int rotary_dim);

}  // namespace fovea::jit
