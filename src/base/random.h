// Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): the
// same seed and counter give the same numbers on every machine, in any order and from any thread. Used for sampling
// seeds, dummy weights and generated workloads.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace fovea {

// Ten rounds over a 128-bit counter with a 64-bit key.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// A sequence of numbers: `stream` gives independent sequences for one seed (a request, a tensor).
class PhiloxRng {
 public:
  using result_type = std::uint32_t;  // a standard UniformRandomBitGenerator

  explicit PhiloxRng(std::uint64_t seed, std::uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return 0xffffffffu; }
  result_type operator()() { return next_u32(); }

  std::uint32_t next_u32() {
    if (used_ == 4) refill();
    return block_[used_++];
  }
  std::uint64_t next_u64() {
    const std::uint64_t low = next_u32();
    return low | (std::uint64_t{next_u32()} << 32);
  }
  // In [0, 1), 24 bits.
  float next_float() { return static_cast<float>(next_u32() >> 8) * 0x1p-24f; }
  // In [0, 1), 53 bits.
  double next_double() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }
  // In [0, bound), without bias (Lemire's method); bound > 0.
  std::uint32_t next_below(std::uint32_t bound) {
    std::uint64_t product = std::uint64_t{next_u32()} * bound;
    if (static_cast<std::uint32_t>(product) < bound) {
      const std::uint32_t threshold = (0u - bound) % bound;
      while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next_u32()} * bound;
    }
    return static_cast<std::uint32_t>(product >> 32);
  }
  // Mean 0, deviation 1 (Box-Muller; takes two numbers each time, so that skipping ahead stays simple).
  float next_normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - static_cast<double>(next_u32()) * 0x1p-32));
    return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * static_cast<double>(next_u32()) * 0x1p-32));
  }
  // The next number is number 4 * block of the sequence.
  void seek(std::uint64_t block) {
    position_ = block;
    used_ = 4;
  }

 private:
  void refill() {
    block_ = philox4x32({static_cast<std::uint32_t>(position_), static_cast<std::uint32_t>(position_ >> 32),
                         static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
                        {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
    ++position_;
    used_ = 0;
  }

  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t position_ = 0;
  std::array<std::uint32_t, 4> block_{};
  int used_ = 4;
};

}  // namespace fovea
