// Memory and timing of bench/cuda.h.
#include "bench/cuda.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
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

namespace {

// A graph of calls and the time of its replays.
class Replays {
 public:
  static Result<Replays> create(const cuda::Device& device, const cuda::Stream& stream, int calls,
                                const std::function<Status(int call)>& enqueue) {
    // Once before capturing: what is loaded or allocated at first use must not be part of the graph.
    FOVEA_RETURN_IF_ERROR(enqueue(0));
    FOVEA_RETURN_IF_ERROR(stream.synchronize());
    FOVEA_ASSIGN_OR_RETURN(cuda::Graph graph, cuda::Graph::capture(device, stream.handle(), [&] {
                             for (int i = 0; i < calls; ++i) FOVEA_RETURN_IF_ERROR(enqueue(i));
                             return ok_status();
                           }));
    FOVEA_ASSIGN_OR_RETURN(cuda::Event begin, cuda::Event::create(device, true));
    FOVEA_ASSIGN_OR_RETURN(cuda::Event end, cuda::Event::create(device, true));
    return Replays(stream, calls, std::move(graph), std::move(begin), std::move(end));
  }

  // Microseconds a call of the next replay.
  Result<double> next_us() {
    FOVEA_RETURN_IF_ERROR(begin_.record(stream_.handle()));
    FOVEA_RETURN_IF_ERROR(graph_.launch(stream_.handle()));
    FOVEA_RETURN_IF_ERROR(end_.record(stream_.handle()));
    FOVEA_RETURN_IF_ERROR(end_.synchronize());
    FOVEA_ASSIGN_OR_RETURN(const float ms, begin_.elapsed_ms(end_));
    return static_cast<double>(ms) * 1e3 / calls_;
  }
  // The median of `count` replays, and of more while they took less than `least_us` together.
  Result<double> median_us(int count, double least_us = 0.0) {
    std::vector<double> times;
    for (double sum = 0.0; static_cast<int>(times.size()) < count || sum < least_us;) {
      FOVEA_ASSIGN_OR_RETURN(const double us, next_us());
      times.push_back(us);
      sum += us * calls_;
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  Replays(const cuda::Stream& stream, int calls, cuda::Graph graph, cuda::Event begin, cuda::Event end)
      : stream_(stream), calls_(calls), graph_(std::move(graph)), begin_(std::move(begin)), end_(std::move(end)) {}
  const cuda::Stream& stream_;
  int calls_;
  cuda::Graph graph_;
  cuda::Event begin_, end_;
};

// As bench/gpu/timing.py.
constexpr auto kRest = std::chrono::milliseconds(100), kSoak = std::chrono::milliseconds(300);
constexpr double kBurstUs = 20000.0;
constexpr int kSoakedReplays = 15;

}  // namespace

Result<double> CudaBench::replay_us(int calls, const std::function<Status(int call)>& enqueue) const {
  const cuda::ScopedContext context(device_);
  FOVEA_ASSIGN_OR_RETURN(Replays replays, Replays::create(device_, stream_, calls, enqueue));
  for (int i = 0; i < kWarmUps; ++i) FOVEA_RETURN_IF_ERROR(replays.next_us().status());
  return replays.median_us(std::max(repeats_, 1));
}

Result<CudaBench::BurstAndSoaked> CudaBench::burst_and_soaked_us(int calls,
                                                                 const std::function<Status(int call)>& enqueue) const {
  const cuda::ScopedContext context(device_);
  FOVEA_ASSIGN_OR_RETURN(Replays replays, Replays::create(device_, stream_, calls, enqueue));
  FOVEA_RETURN_IF_ERROR(replays.next_us().status());
  std::this_thread::sleep_for(kRest);
  BurstAndSoaked times;
  FOVEA_ASSIGN_OR_RETURN(times.burst_us, replays.median_us(3, kBurstUs));
  const auto until = std::chrono::steady_clock::now() + kSoak;
  while (std::chrono::steady_clock::now() < until) FOVEA_RETURN_IF_ERROR(replays.next_us().status());
  FOVEA_ASSIGN_OR_RETURN(times.soaked_us, replays.median_us(kSoakedReplays));
  return times;
}

}  // namespace fovea::app
