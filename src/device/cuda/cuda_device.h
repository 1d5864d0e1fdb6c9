// A CUDA device of the engine: activations of 16 bits, products by cuBLASLt, everything between them by the kernels of
// kernels/model, attention by attention/cuda_attention.h; all in one stream. Made by create_device("cuda:N").
#pragma once

#include <memory>

#include "device/device.h"

namespace fovea {

// kUnavailable and kNotFound: no driver, no such device, no cuBLASLt; kUnsupported: options that no CUDA device serves.
Result<std::unique_ptr<Device>> create_cuda_device(int index, const DeviceOptions& options);

}  // namespace fovea
