// What `fovea doctor` found: one row a thing. The rows about GPUs are made by doctor_cuda.cc, the others by doctor.cc.
#pragma once

#include <string>
#include <vector>

namespace fovea::app {

struct Finding {
  std::string what, state, advice;  // state: "yes", "no", or a value
};

// The CUDA driver, each device, NVRTC and cuBLASLt.
std::vector<Finding> cuda_findings();

}  // namespace fovea::app
