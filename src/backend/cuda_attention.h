// The public attention API on a CUDA device: plans with core/plan, packs the plan into one buffer, runs it with one
// launch. Made by Attention::create.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/attention_checks.h"
#include "backend/attention_impl.h"
#include "jit/kernel_source.h"

namespace fovea {

Result<std::unique_ptr<Attention::Impl>> create_cuda_paged_attention(const AttentionOptions& options,
                                                                     DevicePlace place);

// The kernels that an Attention with these options, and append and merge beside it, launch on devices of an
// architecture ("sm_90a"): what `fovea warmup` puts into the cache. Needs no GPU; pointers in the options are not read.
Result<std::vector<jit::KernelSource>> attention_kernels(const AttentionOptions& options, const std::string& arch,
                                                         int num_sms = 132);

}  // namespace fovea
