// CudaRanks: how the GPUs of tensor parallelism exchange what they computed: small sums through memory that they reach
// in each other, in one kernel; others, and logits, by NCCL. Owned by a CUDA device that has a group; all in its
// stream, so that graphs record it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "abi/ranks_args.h"
#include "cuda/memory.h"
#include "cuda/module.h"
#include "cuda/nccl.h"
#include "cuda/peer_memory.h"
#include "device/group/process_group.h"
#include "fovea/dtype.h"
#include "fovea/status.h"

namespace fovea {

class CudaRanks {
 public:
  // Returns when all ranks have called it.
  static Result<std::unique_ptr<CudaRanks>> create(const cuda::Device& device, cuda::StreamHandle stream, DType dtype,
                                                   std::shared_ptr<ProcessGroup> group);
  ~CudaRanks();

  ProcessGroup& group() const { return *group_; }
  // x [elements] of the activations' type = the sum over ranks.
  Status all_reduce(void* x, std::int64_t elements);
  // Device::all_gather.
  Status all_gather(float* rows, std::int64_t num_rows, std::int64_t row_stride, std::int64_t width, std::int64_t step);
  // "NCCL 2.28.9, peer memory up to 512 KiB"
  std::string description() const;

 private:
  // What the group's end reaches from a thread of its own.
  struct Shared {
    std::mutex mutex;
    std::unique_ptr<cuda::NcclComm> comm;
  };
  // Larger sums are NCCL's.
  static constexpr std::uint64_t kPeerBytes = std::uint64_t{512} << 10;

  CudaRanks(cuda::Device device, cuda::StreamHandle stream, DType dtype, std::shared_ptr<ProcessGroup> group)
      : device_(std::move(device)), stream_(stream), dtype_(dtype), group_(std::move(group)) {}
  Status connect();
  // The others' regions, where all ranks reach all; and whether sums through them are right.
  Status reach_peers();
  Result<bool> peers_add_up();
  Status launch_reduce(void* x, std::int64_t elements);

  cuda::Device device_;
  cuda::StreamHandle stream_;
  DType dtype_;
  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  cuda::DeviceBuffer region_;
  std::vector<void*> opened_;  // others' regions
  abi::AllReduceArgs args_{};
  cuda::Function reduce_;
  bool reaches_peers_ = false;
  std::vector<cuda::DeviceBuffer> gathered_;  // the last is in use; graphs may have the others
};

}  // namespace fovea
