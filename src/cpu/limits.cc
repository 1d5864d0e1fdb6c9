// Readers and multiply-add loops for every SIMD target.
#include "cpu/limits.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/limits.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DU = hn::CappedTag<uint32_t, 16>;
using DF = hn::CappedTag<float, 16>;
inline constexpr size_t kLine = 64;

// XOR of a range read as kStreams parallel sequential streams; prefetch lines ahead, 0 for none.
template <int kStreams, int kAhead>
uint32_t read_streams(const uint8_t* data, size_t bytes) {
  const DU d;
  const size_t step = kLine;
  const size_t part = bytes / kStreams / step * step;
  auto x = hn::Zero(d), y = hn::Zero(d);
  for (size_t i = 0; i < part; i += step) {
    for (int s = 0; s < kStreams; ++s) {
      const uint8_t* p = data + static_cast<size_t>(s) * part + i;
      if (kAhead > 0) __builtin_prefetch(p + kAhead * kLine, 0, 3);
      for (size_t j = 0; j < kLine; j += 2 * hn::Lanes(d) * sizeof(uint32_t)) {
        x = hn::Xor(x, hn::LoadU(d, reinterpret_cast<const uint32_t*>(p + j)));
        if (j + hn::Lanes(d) * sizeof(uint32_t) < kLine) {
          y = hn::Xor(y, hn::LoadU(d, reinterpret_cast<const uint32_t*>(p + j) + hn::Lanes(d)));
        }
      }
    }
  }
  return hn::GetLane(hn::Xor(x, y));
}

uint32_t read_range(int reader, const uint8_t* data, size_t bytes) {
  switch (reader) {
    case 0: return read_streams<1, 0>(data, bytes);
    case 1: return read_streams<2, 0>(data, bytes);
    case 2: return read_streams<4, 0>(data, bytes);
    case 3: return read_streams<8, 0>(data, bytes);
    case 4: return read_streams<1, 16>(data, bytes);
    case 5: return read_streams<1, 64>(data, bytes);
    default: return read_streams<4, 16>(data, bytes);
  }
}

// 12 independent chains; returns a value so that nothing is optimized away.
float multiply_add(int64_t rounds, float x) {
  const DF d;
  const auto a = hn::Set(d, x);
  const auto b = hn::Set(d, 0.5f);
  // Different starts, or the compiler would keep one chain.
  const auto start = [&](int i) { return hn::Set(d, x + static_cast<float>(i)); };
  auto c0 = start(0), c1 = start(1), c2 = start(2), c3 = start(3), c4 = start(4), c5 = start(5);
  auto c6 = start(6), c7 = start(7), c8 = start(8), c9 = start(9), c10 = start(10), c11 = start(11);
  for (int64_t i = 0; i < rounds; ++i) {
    c0 = hn::MulAdd(c0, b, a);
    c1 = hn::MulAdd(c1, b, a);
    c2 = hn::MulAdd(c2, b, a);
    c3 = hn::MulAdd(c3, b, a);
    c4 = hn::MulAdd(c4, b, a);
    c5 = hn::MulAdd(c5, b, a);
    c6 = hn::MulAdd(c6, b, a);
    c7 = hn::MulAdd(c7, b, a);
    c8 = hn::MulAdd(c8, b, a);
    c9 = hn::MulAdd(c9, b, a);
    c10 = hn::MulAdd(c10, b, a);
    c11 = hn::MulAdd(c11, b, a);
  }
  const auto s0 = hn::Add(hn::Add(c0, c1), hn::Add(c2, c3));
  const auto s1 = hn::Add(hn::Add(c4, c5), hn::Add(c6, c7));
  const auto s2 = hn::Add(hn::Add(c8, c9), hn::Add(c10, c11));
  return hn::GetLane(hn::Add(s0, hn::Add(s1, s2)));
}
int64_t flops_a_round() { return static_cast<int64_t>(12 * 2 * hn::Lanes(DF())); }

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {
namespace {

HWY_EXPORT(read_range);
HWY_EXPORT(multiply_add);
HWY_EXPORT(flops_a_round);

constexpr const char* kReaders[] = {"1 stream",
                                    "2 streams",
                                    "4 streams",
                                    "8 streams",
                                    "1 stream, prefetch 16 lines",
                                    "1 stream, prefetch 64 lines",
                                    "4 streams, prefetch 16 lines"};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

ReadLimit measure_read(const void* data, std::int64_t bytes, int repeats, ThreadPool& threads) {
  const std::int64_t share = bytes / threads.size() / 4096 * 4096;
  std::vector<std::uint32_t> sums(static_cast<std::size_t>(threads.size()) * 16);
  ReadLimit limit;
  for (int reader = 0; reader < static_cast<int>(std::size(kReaders)); ++reader) {
    for (int i = 0; i < repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      threads.run([&](int thread) {
        sums[static_cast<std::size_t>(thread) * 16] ^= HWY_DYNAMIC_DISPATCH(read_range)(
            reader, static_cast<const std::uint8_t*>(data) + share * thread, static_cast<std::size_t>(share));
      });
      const double rate = static_cast<double>(share) * threads.size() / seconds_since(start);
      if (rate > limit.bytes_per_second) limit = {rate, kReaders[reader]};
    }
  }
  return limit;
}

double measure_fma_flops(ThreadPool& threads) {
  constexpr std::int64_t kRounds = 20'000'000;
  std::vector<float> sums(static_cast<std::size_t>(threads.size()) * 16);
  double best = 0.0;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    threads.run([&](int thread) {
      sums[static_cast<std::size_t>(thread) * 16] = HWY_DYNAMIC_DISPATCH(multiply_add)(kRounds, 1.0f + sums[0] * 0.0f);
    });
    const double flops = static_cast<double>(kRounds * HWY_DYNAMIC_DISPATCH(flops_a_round)()) * threads.size();
    best = std::max(best, flops / seconds_since(start));
  }
  return best;
}

}  // namespace fovea::cpu
#endif
