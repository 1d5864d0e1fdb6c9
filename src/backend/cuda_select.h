// Page selection on a CUDA device: launches of the kernels that write key codes and make lists of them
// (kernels/any/codes.cuh, select.cuh). Called by whoever plans with Attention::plan_selected(): the bench, engines.
#pragma once

#include "abi/select_args.h"
#include "cuda/device.h"
#include "cuda/stream.h"
#include "fovea/dtype.h"
#include "fovea/status.h"

namespace fovea {

// CTAs a list, a power of two, that fill the device once as far as clusters go.
std::uint32_t select_splits(const cuda::Device& device, std::uint32_t requests, std::uint32_t num_heads);

// One launch; a graph may record it. args.cached_keys is set here, everything else is the caller's. q_dtype: f32, f16,
// bf16. kInvalidArgument and kOutOfRange: sizes that the kernel does not take.
Status cuda_select(const cuda::Device& device, abi::SelectArgs args, DType q_dtype, cuda::StreamHandle stream);

// The same for the codes of new keys; dtype is that of the keys.
Status cuda_key_codes(const cuda::Device& device, abi::CodesArgs args, DType dtype, cuda::StreamHandle stream);

}  // namespace fovea
