// What `fovea doctor` found: one row a thing. The rows about GPUs are made by doctor_cuda.cc, those about a server by
// doctor_server.cc, the others by doctor.cc.
#pragma once

#include <string>
#include <vector>

#include "fovea/status.h"

namespace fovea::app {

struct Finding {
  std::string what, state, advice;  // state: "yes", "no", or a value
};

// The CUDA driver, each device, NVRTC and cuBLASLt.
std::vector<Finding> cuda_findings();

// A server that runs; *well: it is healthy and gave a token. ca_file: of server::Url. An error: nobody answers at the
// URL.
Result<std::vector<Finding>> server_findings(const std::string& url, const std::string& api_key,
                                             const std::string& ca_file, bool* well);

}  // namespace fovea::app
