// The CPU device: SIMD operators, packed matrix products and the plan executor over one thread pool. Made by
// create_device("cpu").
#pragma once

#include <memory>

#include "device/device.h"

namespace fovea {

Result<std::unique_ptr<Device>> create_cpu_device(const DeviceOptions& options);

}  // namespace fovea
