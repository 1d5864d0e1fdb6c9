// See bench/read_rate.h.
#include "bench/read_rate.h"

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "cpu/limits.h"

namespace fovea::app {

Result<double> measure_read_rate(double size) {
  ThreadPool threads;
  const auto bytes = static_cast<std::int64_t>(size);
  std::vector<std::byte> buffer;
  try {
    buffer.assign(static_cast<std::size_t>(bytes), std::byte{1});
  } catch (const std::bad_alloc&) {
    return resource_exhausted("no memory for a read of {} bytes; say the rate with --read-rate", bytes);
  }
  return cpu::measure_read(buffer.data(), bytes, 5, threads).bytes_per_second;
}

}  // namespace fovea::app
