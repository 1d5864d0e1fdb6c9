// Copies between the host and a CUDA device through page-locked memory: the weights at load, the arrays of each
// forward, and results back. Owned by the CUDA device; all in its stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "cuda/copy_slot.h"
#include "cuda/memory.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea {

// From tensors of the host to memory of the device, converted on the way. For loading: keeps a pool of threads, whose
// copies into page-locked memory run beside those to the device.
class WeightCopies {
 public:
  static Result<WeightCopies> create(const cuda::Device& device, cuda::StreamHandle stream, int num_threads);

  // `elements` contiguous elements of `from` (f32, f16, bf16) as `dtype` (the same ones) at `to`. What `from` points to
  // is read before this returns; the copies are enqueued.
  Status copy(void* to, DType dtype, const void* from, DType from_dtype, std::int64_t elements);

 private:
  static constexpr std::size_t kSlotBytes = std::size_t{16} << 20;

  WeightCopies(cuda::Device device, cuda::StreamHandle stream, int num_threads)
      : device_(std::move(device)), stream_(stream), pool_(std::make_unique<ThreadPool>(num_threads)) {}

  cuda::Device device_;
  cuda::StreamHandle stream_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<cuda::CopySlot> slots_;
  std::size_t next_ = 0;
};

// The arrays of a forward, packed and copied at once to one place of the device. Where each array lies depends on the
// arrays' sizes alone, so that a graph that read them finds those of later forwards.
class ArrayCopies {
 public:
  ArrayCopies(cuda::Device device, cuda::StreamHandle stream) : device_(std::move(device)), stream_(stream) {}

  // Room for so many bytes. Waits for the stream where it must move; graphs that read arrays are wrong then.
  Status reserve(std::size_t bytes);
  Status copy(std::span<const std::span<const std::int32_t>> arrays, std::vector<const std::int32_t*>& places);

 private:
  static constexpr std::size_t kSlots = 4;
  static constexpr std::size_t kAlignment = 64;

  cuda::Device device_;
  cuda::StreamHandle stream_;
  cuda::DeviceBuffer memory_;
  cuda::CopySlot slots_[kSlots];
  std::size_t next_ = 0;
};

}  // namespace fovea
