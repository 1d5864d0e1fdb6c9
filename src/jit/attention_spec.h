// One instantiation of an attention kernel: the macros that a kernel header of kernels/ reads, and the variant. Filled
// from tune/attention_choice.h by backends and by `fovea warmup`.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "abi/kv_pool.h"
#include "fovea/status.h"
#include "jit/kernel_source.h"
#include "jit/variant_spec.h"

namespace fovea::jit {

// How keys and values come to shared memory.
enum class KvLoader : std::uint8_t { kTma = 0, kGather = 1 };

struct AttentionKernelSpec {
  std::string arch = "sm_90a";  // what it is compiled for; sm_90a takes the Hopper path, all others that of sm_80
  std::string header = "kernels/attention/general/kernel.cuh";
  std::string kind = "attention";               // what the kernel's name begins with
  int head_dim = 128;                           // multiple of 16 from 32 to 256
  abi::KvDType q_dtype = abi::KvDType::kBF16;   // of queries and outputs: kF16, kBF16
  abi::KvDType kv_dtype = abi::KvDType::kBF16;  // kF16, kBF16, kF8E4M3, kI8, kI4
  KvLoader loader = KvLoader::kTma;
  int box_tokens = 16;        // kTma: tokens one box brings, a power of two from 8 to 64
  bool token_scales = false;  // fp8 KV with a scale for each token and head; integers have one in any case
  bool rotated = false;       // int8 and int4 KV of rotated pools (abi/kv_pool.h)
  bool checked = false;       // page entries are compared with the pool's size before they are followed
  VariantSpec variant = shipped_variant(VariantId::kPlain);
  std::vector<std::pair<std::string, int>> tuning;  // further macros: {"FOVEA_STAGES", 4}
};

// FOVEA_ARCH for an architecture: 900 for sm_90a, 800 for every other from sm_80 on. kUnsupported below, and for what
// is no name of an architecture.
Result<int> kernel_arch(const std::string& arch);

// The source of the kernel; its entry point is fovea_attention. kInvalidArgument, kUnsupported.
Result<KernelSource> attention_source(const AttentionKernelSpec& spec);

// The source of a kernel that has no variant: `header` with the macros defined. name is for messages.
Result<KernelSource> kernel_source(const std::string& name, const std::string& arch, const std::string& header,
                                   const std::vector<std::pair<std::string, std::string>>& macros);

}  // namespace fovea::jit
