// What an Attention on a CUDA device runs its plans with: the kernels that its options allow (tune/attention_choice.h
// says which, and what their plans are cut by), each with the planner of its plans. Made by cuda_attention.cc, which
// chooses among them with every plan; `fovea warmup` asks for the kernels alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi/attention_args.h"
#include "attention/paged_attention.h"
#include "core/plan/device_plan.h"
#include "core/plan/planner.h"
#include "cuda/module.h"
#include "fovea/attention.h"
#include "jit/kernel_source.h"
#include "tune/attention_choice.h"

namespace fovea {

struct KvMaps {
  abi::TensorMap k{}, v{};
};

struct CudaExecutor {
  DecodeKernel kind;  // kCtas: runs all plans; others: decode alone
  tune::AttentionChoice choice;
  Planner planner;
  cuda::Function function;
  cuda::LaunchConfig launch;
  WorkerStarts starts;
  std::optional<cuda::Function> shared;  // for plans that share runs; launched alike

  // Whether a plan of decode had better go to this one than to that for all plans: of so many (request, KV head) pairs
  // and bytes of keys and values, longest_bytes of them the longest request's. False for kCtas.
  bool pays(const AttentionOptions& options, std::int64_t pairs, std::int64_t kv_bytes,
            std::int64_t longest_bytes) const;
  // The pool's tensor maps, where the kernel loads by them; else zeros.
  Result<KvMaps> maps(const cuda::Device& device, const AttentionOptions& options, const abi::KvPoolView& pool) const;
};

// kUnsupported: types that no kernel takes.
Status check_cuda_types(const AttentionOptions& options);

// Keys and values of one token under one head.
std::int64_t pair_token_bytes(const AttentionOptions& options);

// All that the options may use, that for all plans first. Kernels that the cache has not are compiled, all at once.
Result<std::vector<CudaExecutor>> make_executors(const cuda::Device& device, const AttentionConfig& config,
                                                 const VariantSpec& variant);

// The kernels that an Attention with these options, and append and merge beside it, launch on devices of an
// architecture ("sm_90a"): what `fovea warmup` puts into the cache. Needs no GPU; pointers in the options are not read.
Result<std::vector<jit::KernelSource>> attention_kernels(const AttentionOptions& options, const std::string& arch,
                                                         int num_sms = 132);

}  // namespace fovea
