// Memory and timing of bench/cuda.h.
#include "bench/cuda.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "base/quote.h"
#include "base/random.h"
#include "base/status.h"
#include "cuda/graph.h"

namespace fovea::app {
namespace {

constexpr int kWarmUps = 5;
constexpr std::size_t kPatternBytes = std::size_t{16} << 20;

}  // namespace

Result<CudaBench> CudaBench::open(const std::string& device, int repeats) {
  int index = 0;
  const bool plain = device == "cuda";
  if (!plain) {
    const char* end = device.data() + device.size();
    if (!device.starts_with("cuda:") || std::from_chars(device.data() + 5, end, index).ptr != end ||
        device.size() == 5) {
      return invalid_argument("--device is {}, expected cpu, cuda or cuda:N", quote(device));
    }
  }
  FOVEA_ASSIGN_OR_RETURN(cuda::Device opened, cuda::Device::open(index));
  CudaBench bench(std::move(opened), repeats);
  const cuda::ScopedContext context(bench.device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_ASSIGN_OR_RETURN(bench.stream_, cuda::Stream::create(bench.device_));
  return bench;
}

Result<cuda::DeviceBuffer> CudaBench::random(std::size_t bytes, std::uint16_t keep, std::uint16_t set) const {
  const cuda::ScopedContext context(device_);
  FOVEA_ASSIGN_OR_RETURN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::create(device_, bytes));
  static const std::vector<std::uint64_t> words = [] {
    std::vector<std::uint64_t> made(kPatternBytes / 8 + 1);
    PhiloxRng rng(1, 1);
    for (std::uint64_t& word : made) word = rng.next_u64();
    return made;
  }();
  std::vector<std::uint64_t> pattern(std::min(bytes, kPatternBytes) / 8 + 1);
  const std::uint64_t keeps = 0x0001000100010001u * keep, sets = 0x0001000100010001u * set;
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = (words[i] & keeps) | sets;
  auto* data = buffer.as<std::byte>();
  std::size_t done = std::min(bytes, kPatternBytes);
  FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(device_, data, pattern.data(), done, stream()));
  for (std::size_t more = 0; done < bytes; done += more) {
    more = std::min(done, bytes - done);
    FOVEA_RETURN_IF_ERROR(cuda::copy_on_device(device_, data + done, data, more, stream()));
  }
  FOVEA_RETURN_IF_ERROR(stream_.synchronize());
  return buffer;
}

Result<double> CudaBench::replay_us(int calls, const std::function<Status(int call)>& enqueue) const {
  const cuda::ScopedContext context(device_);
  // Once before recording: what is loaded or allocated at first use must not be part of the graph.
  FOVEA_RETURN_IF_ERROR(enqueue(0));
  FOVEA_RETURN_IF_ERROR(stream_.synchronize());
  FOVEA_ASSIGN_OR_RETURN(const cuda::Graph graph, cuda::Graph::capture(device_, stream(), [&] {
                           for (int i = 0; i < calls; ++i) FOVEA_RETURN_IF_ERROR(enqueue(i));
                           return ok_status();
                         }));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Event begin, cuda::Event::create(device_, true));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Event end, cuda::Event::create(device_, true));
  std::vector<double> times;
  for (int i = 0; i < kWarmUps + repeats_; ++i) {
    FOVEA_RETURN_IF_ERROR(begin.record(stream()));
    FOVEA_RETURN_IF_ERROR(graph.launch(stream()));
    FOVEA_RETURN_IF_ERROR(end.record(stream()));
    FOVEA_RETURN_IF_ERROR(end.synchronize());
    FOVEA_ASSIGN_OR_RETURN(const float ms, begin.elapsed_ms(end));
    if (i >= kWarmUps) times.push_back(static_cast<double>(ms) * 1e3 / calls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace fovea::app
