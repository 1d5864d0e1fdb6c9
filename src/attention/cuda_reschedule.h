// Plans on a CUDA device cut again there, for lengths that grew (kernels/plan/reschedule.cuh): the kernel, its scratch,
// and lengths from the host. Owned by cuda_attention.cc.
#pragma once

#include <cstdint>
#include <span>

#include "abi/reschedule_args.h"
#include "cuda/memory.h"
#include "cuda/module.h"
#include "cuda/stream.h"

namespace fovea {

class CudaReschedule {
 public:
  CudaReschedule() = default;
  // For plans at `plan` on the device that take up to scratch_bytes, of any of the object's planners: a captured launch
  // meets the plans of all of them.
  static Result<CudaReschedule> create(const cuda::Device& device, std::size_t scratch_bytes, std::int32_t max_requests,
                                       void* plan);

  // One launch. kv_lens: by request, on the device; read when the stream gets there.
  Status launch(const std::int32_t* kv_lens, cuda::StreamHandle stream);
  // The same for lengths of the host, read before this returns; max_requests at most. Not
  // while the stream captures a graph.
  Status launch(std::span<const std::int32_t> kv_lens, cuda::StreamHandle stream);

  std::size_t scratch_bytes() const { return scratch_.size_bytes(); }

 private:
  // Lengths wait in pinned memory until the kernel has read them there. An event guards half of the slots: one a call
  // would cost a fourth of the call.
  static constexpr int kSlots = 32, kHalf = kSlots / 2;

  cuda::Function function_;
  cuda::DeviceBuffer scratch_;
  abi::RescheduleArgs args_{};
  cuda::PinnedBuffer slots_;
  cuda::Event read_[2];
  std::size_t slot_lengths_ = 0;
  int next_slot_ = 0;
};

}  // namespace fovea
