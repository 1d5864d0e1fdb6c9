// AttentionOp of the CPU backend: a planner, and the executor's workspace for what it plans.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "device/device.h"
#include "variant/params.h"

namespace fovea {

// The pool must outlive the op. config.planner.num_workers 0 stands for the pool's threads.
Result<std::unique_ptr<AttentionOp>> create_cpu_attention(const AttentionOpConfig& config, AttentionProducts products,
                                                          ThreadPool& pool);

}  // namespace fovea
