// Converts into page-locked memory, and copies from there.
#include "device/cuda/cuda_copies.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "base/status.h"

namespace fovea {
namespace {

float widen(const void* from, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::kF32: return static_cast<const float*>(from)[i];
    case DType::kF16: return f16_to_float(static_cast<const std::uint16_t*>(from)[i]);
    default: return bf16_to_float(static_cast<const std::uint16_t*>(from)[i]);
  }
}

void convert(void* to, DType dtype, const void* from, DType from_dtype, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const float x = widen(from, from_dtype, i);
    if (dtype == DType::kF32) {
      static_cast<float*>(to)[i] = x;
    } else {
      static_cast<std::uint16_t*>(to)[i] = dtype == DType::kF16 ? float_to_f16(x) : float_to_bf16(x);
    }
  }
}

std::int64_t element_bytes(DType dtype) { return dtype_bits(dtype) / 8; }

}  // namespace

Result<WeightCopies> WeightCopies::create(const cuda::Device& device, cuda::StreamHandle stream, int num_threads) {
  WeightCopies copies(device, stream, num_threads);
  copies.slots_.resize(4);
  for (cuda::CopySlot& slot : copies.slots_) {
    FOVEA_ASSIGN_OR_RETURN(slot, cuda::CopySlot::create(device, kSlotBytes));
  }
  return copies;
}

Status WeightCopies::copy(void* to, DType dtype, const void* from, DType from_dtype, std::int64_t elements) {
  const std::int64_t most = static_cast<std::int64_t>(kSlotBytes) / element_bytes(dtype);
  constexpr std::int64_t kGrain = 1 << 18;
  for (std::int64_t done = 0; done < elements; done += most) {
    const std::int64_t count = std::min(most, elements - done);
    cuda::CopySlot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    FOVEA_RETURN_IF_ERROR(slot.copied.synchronize());
    const auto* source = static_cast<const std::byte*>(from) + done * element_bytes(from_dtype);
    pool_->parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
      if (dtype == from_dtype) {
        std::memcpy(slot.memory.data() + begin * element_bytes(dtype), source + begin * element_bytes(dtype),
                    static_cast<std::size_t>((end - begin) * element_bytes(dtype)));
      } else {
        convert(slot.memory.data(), dtype, source, from_dtype, begin, end);
      }
    });
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(device_, static_cast<std::byte*>(to) + done * element_bytes(dtype),
                                               slot.memory.data(),
                                               static_cast<std::size_t>(count * element_bytes(dtype)), stream_));
    FOVEA_RETURN_IF_ERROR(slot.copied.record(stream_));
  }
  return ok_status();
}

Status ArrayCopies::reserve(std::size_t bytes) {
  if (bytes <= memory_.size_bytes()) return ok_status();
  FOVEA_RETURN_IF_ERROR(cuda::synchronize(device_, stream_));
  FOVEA_ASSIGN_OR_RETURN(cuda::DeviceBuffer memory, cuda::DeviceBuffer::create(device_, bytes));
  for (cuda::CopySlot& slot : slots_) {
    FOVEA_ASSIGN_OR_RETURN(slot, cuda::CopySlot::create(device_, bytes));
  }
  memory_ = std::move(memory);
  return ok_status();
}

Status ArrayCopies::copy(std::span<const std::span<const std::int32_t>> arrays,
                         std::vector<const std::int32_t*>& places) {
  std::vector<std::size_t> begins;
  std::size_t bytes = 0;
  for (const std::span<const std::int32_t> array : arrays) {
    begins.push_back(bytes);
    bytes += (array.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  FOVEA_RETURN_IF_ERROR(reserve(bytes));
  cuda::CopySlot& slot = slots_[next_];
  next_ = (next_ + 1) % kSlots;
  FOVEA_RETURN_IF_ERROR(slot.copied.synchronize());
  places.clear();
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (!arrays[i].empty()) std::memcpy(slot.memory.data() + begins[i], arrays[i].data(), arrays[i].size_bytes());
    places.push_back(reinterpret_cast<const std::int32_t*>(memory_.as<std::byte>() + begins[i]));
  }
  FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(device_, memory_.data(), slot.memory.data(), bytes, stream_));
  return slot.copied.record(stream_);
}

}  // namespace fovea
