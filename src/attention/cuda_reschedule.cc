#include "attention/cuda_reschedule.h"

#include <algorithm>

#include "attention/cuda_kernels.h"
#include "base/check.h"
#include "base/status.h"
#include "jit/cache_spec.h"

namespace fovea {

// Scratch: shared memory where the plan at hand fits, else device memory.
Result<CudaReschedule> CudaReschedule::create(const cuda::Device& device, std::size_t scratch_bytes,
                                              std::int32_t max_requests, void* plan) {
  constexpr std::size_t kMostSmem = 160 << 10;
  CudaReschedule made;
  FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::reschedule_source(device.info().arch()));
  FOVEA_ASSIGN_OR_RETURN(made.function_, cuda_kernel(device, source, "fovea_reschedule"));
  const std::size_t most = std::min(kMostSmem, static_cast<std::size_t>(device.info().smem_optin_bytes) - (1 << 10));
  made.args_.smem_bytes = static_cast<std::uint32_t>(std::min(scratch_bytes, most));
  // The process has one such function: every object may launch it with as much as any other.
  FOVEA_RETURN_IF_ERROR(made.function_.set_max_smem(most));
  FOVEA_ASSIGN_OR_RETURN(made.scratch_, cuda::DeviceBuffer::create(device, scratch_bytes));
  made.args_.plan = static_cast<std::uint8_t*>(plan);
  made.args_.scratch = made.scratch_.as<std::uint8_t>();
  made.slot_lengths_ = static_cast<std::size_t>(std::max(max_requests, 1));
  FOVEA_ASSIGN_OR_RETURN(made.slots_,
                         cuda::PinnedBuffer::create(device, kSlots * made.slot_lengths_ * sizeof(std::int32_t)));
  for (cuda::Event& event : made.read_) {
    FOVEA_ASSIGN_OR_RETURN(event, cuda::Event::create(device));
  }
  return made;
}

Status CudaReschedule::launch(const std::int32_t* kv_lens, cuda::StreamHandle stream) {
  args_.kv_lens = kv_lens;
  cuda::LaunchConfig config;
  config.block[0] = abi::kRescheduleThreads;
  config.smem_bytes = args_.smem_bytes;
  config.stream = stream;
  void* const parameters[] = {&args_};
  return cuda::launch(function_, config, parameters);
}

Status CudaReschedule::launch(std::span<const std::int32_t> kv_lens, cuda::StreamHandle stream) {
  FOVEA_CHECK(kv_lens.size() <= slot_lengths_);
  const int slot = next_slot_;
  const cuda::Event& read = read_[slot / kHalf];
  if (slot % kHalf == 0) FOVEA_RETURN_IF_ERROR(read.synchronize());
  auto* const lens = reinterpret_cast<std::int32_t*>(slots_.data()) + static_cast<std::size_t>(slot) * slot_lengths_;
  std::copy(kv_lens.begin(), kv_lens.end(), lens);
  FOVEA_RETURN_IF_ERROR(launch(lens, stream));
  next_slot_ = (slot + 1) % kSlots;
  return slot % kHalf == kHalf - 1 ? read.record(stream) : ok_status();
}

}  // namespace fovea
