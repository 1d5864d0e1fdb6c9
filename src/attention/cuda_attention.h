// The public attention API on a CUDA device: plans with core/plan, packs the plan into one buffer, runs it with one
// launch. Made by Attention::create.
#pragma once

#include <memory>

#include "attention/attention_checks.h"
#include "attention/attention_impl.h"

namespace fovea {

Result<std::unique_ptr<Attention::Impl>> create_cuda_paged_attention(const AttentionOptions& options,
                                                                     DevicePlace place);

}  // namespace fovea
