// Kernels on a device: compiled by jit (or taken from its cache), loaded, and kept for the life of the process. Called
// when backends make their objects and, for append and merge, at each call; a hit costs a lock and a look-up.
#pragma once

#include <string>

#include "cuda/module.h"
#include "jit/kernel_source.h"

namespace fovea {

// The kernel `entry` of a source. source.arch must be the device's. Errors of the compiler and of the driver.
Result<cuda::Function> cuda_kernel(const cuda::Device& device, const jit::KernelSource& source,
                                   const std::string& entry);

// The device, opened once a process.
Result<cuda::Device> cuda_device(int index);

}  // namespace fovea
