// NVIDIA's NCCL, loaded when first needed: collectives between GPUs. Used by device/cuda where several ranks compute a
// model together.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cuda/device.h"
#include "cuda/stream.h"
#include "fovea/status.h"

namespace fovea::cuda {

struct NcclFunctions;

// What rank 0 makes, and all ranks of a communicator need.
using NcclId = std::array<std::int32_t, 32>;

enum class NcclType : int { kF16 = 6, kF32 = 7, kBF16 = 9 };

// A rank of a communicator. Its calls are enqueued, and can be captured in graphs, which must go before it.
class NcclComm {
 public:
  static Result<NcclId> make_id();
  // Returns when all ranks have called it. The device's context must be current, here and below.
  static Result<std::unique_ptr<NcclComm>> create(const NcclId& id, int rank, int size);
  ~NcclComm();

  // x = the sum over ranks.
  Status all_reduce(void* x, std::size_t count, NcclType type, StreamHandle stream);
  // to: `count` elements of every rank, one after the other.
  Status all_gather(const void* from, void* to, std::size_t count, NcclType type, StreamHandle stream);
  // Ends what waits for ranks that are gone. From any thread; nothing else may follow.
  void abort();
  std::string version() const;

 private:
  NcclComm(const NcclFunctions& functions, void* comm) : functions_(functions), comm_(comm) {}
  Status status(int code, const char* what) const;

  const NcclFunctions& functions_;
  std::atomic<void*> comm_;  // null: aborted
};

}  // namespace fovea::cuda
