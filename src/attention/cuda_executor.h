// What an Attention on a CUDA device runs its plans with: the kernels that its options allow (tune/attention_choice.h
// says which, and what their plans are cut by), each with the planner of its plans. Made by cuda_attention.cc, where
// attention/plan_chooser.h chooses among them; `fovea warmup` asks for the kernels alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi/attention_args.h"
#include "attention/paged_attention.h"
#include "attention/plan_chooser.h"
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

// Which records the kernel's workers begin by.
WorkerStarts worker_starts(tune::PlanKernel kernel);

struct CudaExecutor {
  tune::PlanKernel kind;
  tune::AttentionChoice choice;
  Planner planner;
  cuda::Function function;
  cuda::LaunchConfig launch;
  std::optional<cuda::Function> shared;  // for plans that share runs; launched alike

  // The pool's tensor maps, where the kernel loads by them; else zeros.
  Result<KvMaps> maps(const cuda::Device& device, const AttentionOptions& options, const abi::KvPoolView& pool) const;
};

// kUnsupported: types that no kernel takes.
Status check_cuda_types(const AttentionOptions& options);

// The kernels that the options allow, that for all plans first, and the menu that says why there are no others. Looks
// at no memory and no device.
struct AllowedKernel {
  tune::PlanKernel kind;
  tune::AttentionChoice choice;
  jit::KernelSource source;
  std::optional<jit::KernelSource> shared;  // of plans that share runs
};
struct AllowedKernels {
  tune::KernelMenu menu;
  std::vector<AllowedKernel> kernels;
};
Result<AllowedKernels> allowed_kernels(const AttentionOptions& options, const VariantSpec& variant,
                                       const std::string& arch, int num_sms);
// Of the plans that a kernel runs.
PlannerOptions planner_options(const AttentionConfig& config, const tune::AttentionChoice& choice);

// All that the options may use, that for all plans first. Kernels that the cache has not are compiled, all at once.
struct CudaExecutors {
  tune::KernelMenu menu;
  std::vector<CudaExecutor> all;
};
Result<CudaExecutors> make_executors(const cuda::Device& device, const AttentionConfig& config,
                                     const VariantSpec& variant);

// The kernels that an Attention with these options, and append and merge beside it, launch on devices of an
// architecture ("sm_90a"): what `fovea warmup` puts into the cache. Needs no GPU; pointers in the options are not read.
Result<std::vector<jit::KernelSource>> attention_kernels(const AttentionOptions& options, const std::string& arch,
                                                         int num_sms = 132);

}  // namespace fovea
