// Anonymous mappings: zeroed by the kernel on first touch, page aligned, returned to the system when freed.
#include "cpu/ops/aligned_buffer.h"

#include <sys/mman.h>

namespace fovea::cpu {
namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2u << 20;
}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t size_bytes) {
  if (size_bytes == 0 || size_bytes > static_cast<std::size_t>(-1) - kHugePage) return;
  const std::size_t rounded = (size_bytes + kPage - 1) / kPage * kPage;
  // MAP_NORESERVE is left out on purpose: where overcommit is off, running out shows here and not as a crash later.
  void* data = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return;
  if (rounded >= kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
  data_ = data;
  size_bytes_ = rounded;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

}  // namespace fovea::cpu
