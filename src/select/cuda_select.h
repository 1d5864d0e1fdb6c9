// Page selection on a CUDA device: the kernels that write key codes and make lists of them (kernels/cache/codes.cuh,
// select.cuh), and what lists remember between steps. Held by the public selector (cuda_page_selector.cc) and by the
// engine's (cuda_page_lists.cc), which have checked what is asked for.
#pragma once

#include <span>

#include "abi/select_args.h"
#include "cuda/device.h"
#include "cuda/memory.h"
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

// What is fixed for the life of a selector.
struct CudaSelectorOptions {
  DType q_dtype = DType::kBF16;
  float sm_scale = 1.0f;
  std::int32_t num_layers = 1;
  std::int32_t num_kv_heads = 1;  // of a layer
  std::int32_t group = 1;         // query heads a KV head
  std::int32_t max_lists = 1;     // requests, or rows, of a call
  std::int32_t memories = 1;      // that a layer and KV head may remember at a time
  std::int32_t max_units = 1;     // of a request
  std::int32_t budget_units = 1;  // of a list
  std::int32_t budget_divisor = 0;
  std::int32_t sink_tokens = 0;
  std::int32_t recent_tokens = 1;
  std::int32_t interval = 1;
  std::int32_t candidate_factor = 4;
};

class CudaSelector {
 public:
  static Result<CudaSelector> create(const cuda::Device& device, const CudaSelectorOptions& options,
                                     std::span<const abi::KeyCode> codes);

  const abi::KeyCode* codes() const { return codes_.as<abi::KeyCode>(); }  // on the device
  // One launch, which a graph may record: lists of KV heads [head_begin, head_begin + args.num_heads) of a layer. The
  // caller gives q, statistics, pages, lengths or rows, lists, and counts of requests, heads and units.
  Status select(std::int32_t layer, std::int32_t head_begin, abi::SelectArgs args, cuda::StreamHandle stream) const;
  // Memories [begin, end) of all layers remember nothing.
  Status forget(std::int32_t begin, std::int32_t end, cuda::StreamHandle stream) const;
  std::size_t memory_bytes() const;

 private:
  CudaSelector(cuda::Device device, const CudaSelectorOptions& options, cuda::Function kernel)
      : device_(std::move(device)), options_(options), kernel_(std::move(kernel)) {}
  Status allocate(std::span<const abi::KeyCode> codes);
  std::size_t num_candidates() const {
    return static_cast<std::size_t>(options_.candidate_factor) * static_cast<std::size_t>(options_.budget_units);
  }

  cuda::Device device_;
  CudaSelectorOptions options_;
  cuda::Function kernel_;
  // Memories of a launch's heads stand together: [layers][heads of a launch][memories].
  cuda::DeviceBuffer states_, candidates_, keys_, codes_;
};

// Codes of new keys, in one launch.
Status cuda_key_codes(const cuda::Device& device, const cuda::Function& kernel, abi::CodesArgs args,
                      cuda::StreamHandle stream);

}  // namespace fovea
