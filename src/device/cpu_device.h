// The CPU backend: SIMD operators, packed matrix products and the plan executor over one thread pool. Made by
// create_backend("cpu").
#pragma once

#include <memory>

#include "device/device.h"

namespace fovea {

Result<std::unique_ptr<Backend>> create_cpu_backend(const BackendOptions& options);

}  // namespace fovea
