// Page selection on a CUDA device: launches of the kernels that write key codes and make lists of them
// (kernels/any/codes.cuh, select.cuh). Called by cuda_page_selector.cc, which has checked what is asked for.
#pragma once

#include "abi/select_args.h"
#include "cuda/device.h"
#include "cuda/module.h"
#include "cuda/stream.h"
#include "fovea/dtype.h"
#include "fovea/status.h"

namespace fovea {

// CTAs a list, a power of two, that fill the device once as far as clusters go; more where they need the room for keys.
std::uint32_t select_splits(const cuda::Device& device, std::uint32_t requests, std::uint32_t num_heads,
                            std::uint32_t max_units);
// Keys that a CTA has room for. Where its share of a list (select_share()) is longer, as it may be before sm_90,
// SelectArgs::keys must be there.
std::uint32_t select_cached_keys(const cuda::Device& device);

// The kernels for queries and keys of f32, f16 or bf16, compiled or from the cache. kUnsupported where the device has
// too little shared memory.
Result<cuda::Function> select_kernel(const cuda::Device& device, DType q_dtype);
Result<cuda::Function> key_codes_kernel(const cuda::Device& device, DType dtype);

// One launch; a graph may record it. args.cached_keys and cached_entries are set here, everything else is the caller's.
Status cuda_select(const cuda::Device& device, const cuda::Function& kernel, abi::SelectArgs args,
                   cuda::StreamHandle stream);
// The same for the codes of new keys.
Status cuda_key_codes(const cuda::Device& device, const cuda::Function& kernel, abi::CodesArgs args,
                      cuda::StreamHandle stream);

}  // namespace fovea
