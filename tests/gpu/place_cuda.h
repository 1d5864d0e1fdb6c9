// A CUDA device as a place of the tests; see place.h.
#pragma once

#include <memory>

#include "tests/gpu/place.h"

namespace fovea::gpu_test {

// kUnavailable: no driver. kNotFound: no device of this number.
Result<std::unique_ptr<Place>> open_cuda_place(int index);

}  // namespace fovea::gpu_test
