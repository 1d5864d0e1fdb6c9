// Instantiations of the kernels around attention (kernels/cache, plan, limits): append, merge of states, and the
// readers of the bench. Their arguments and grids are in abi/append_args.h and abi/merge_args.h. Called by backends and
// tests.
#pragma once

#include <cstdint>
#include <string>

#include "abi/kv_pool.h"
#include "fovea/status.h"
#include "jit/kernel_source.h"

namespace fovea::jit {

struct AppendKernelSpec {
  std::string arch = "sm_90a";
  int head_dim = 128;                             // even, up to 512
  abi::KvDType q_dtype = abi::KvDType::kBF16;     // of k, v and q: kF32, kF16, kBF16
  abi::KvDType pool_dtype = abi::KvDType::kBF16;  // kF32, kF16, kBF16, kF8E4M3, kI8, kI4
  std::uint32_t vec = 8;                          // abi::append_vec()
  bool rotate = false;                            // K and queries, by positions
  // Pools with a scale a token and head, which kI8 and kI4 have in any case, and rotated ones (abi/kv_pool.h).
  bool token_scales = false;
  bool rotated = false;
};
// Entry point fovea_append. kUnsupported, kInvalidArgument.
Result<KernelSource> append_source(const AppendKernelSpec& spec);

struct MergeKernelSpec {
  std::string arch = "sm_90a";
  int head_dim = 128;                          // up to 512
  abi::KvDType v_dtype = abi::KvDType::kBF16;  // kF32, kF16, kBF16
  abi::KvDType out_dtype = abi::KvDType::kBF16;
  std::uint32_t vec = 8;  // abi::merge_vec()
};
// Entry points fovea_merge_state (two states) and fovea_merge_states. kUnsupported, kInvalidArgument.
Result<KernelSource> merge_source(const MergeKernelSpec& spec);

// A reader of kernels/limits/read_limit.cuh. Entry points fovea_empty, and fovea_read_bulk where stages is not 0, else
// fovea_read_loads.
struct ReadKernelSpec {
  std::string arch = "sm_90a";
  int threads = 512;       // that read; fovea_read_bulk is launched with 32 more
  int unroll = 8;          // loads: a tile is threads * unroll * 16 bytes
  bool slabs = false;      // loads: neighbouring tiles to a CTA
  int stages = 0;          // bulk copies: dynamic shared memory is stages * tile_bytes
  int tile_bytes = 16384;  // bulk copies: a multiple of threads * 16
};
// kUnsupported: bulk copies below sm_90.
Result<KernelSource> read_source(const ReadKernelSpec& spec);

// Entry point fovea_select (kernels/cache/select.cuh, abi/select_args.h). q_dtype: kF32, kF16, kBF16. kUnsupported.
Result<KernelSource> select_source(const std::string& arch, abi::KvDType q_dtype);
// Entry point fovea_key_codes (kernels/cache/codes.cuh). dtype: of the keys, as above. kUnsupported.
Result<KernelSource> key_codes_source(const std::string& arch, abi::KvDType dtype);

// Entry point fovea_move_tokens (kernels/cache/move_tokens.cuh, abi/token_moves.h).
Result<KernelSource> move_tokens_source(const std::string& arch);

// Entry point fovea_reschedule (kernels/plan/reschedule.cuh, abi/reschedule_args.h): one CTA of abi::kRescheduleThreads
// threads, with any dynamic shared memory. kUnsupported.
Result<KernelSource> reschedule_source(const std::string& arch);

}  // namespace fovea::jit
