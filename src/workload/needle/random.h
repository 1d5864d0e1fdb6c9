// A small integer-only generator (splitmix64), so that a seed gives the same bytes on every platform and compiler.
// Used by the needle documents; no floating point and no standard distribution, whose results vary by library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fovea {

class NeedleRandom {
 public:
  explicit NeedleRandom(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0x632BE59BD9B4E019ull) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, n); 0 when n is 0.
  std::size_t below(std::size_t n) {
    if (n == 0) return 0;
    return static_cast<std::size_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
  }
  // Uniform in [low, high].
  std::size_t between(std::size_t low, std::size_t high) { return low + below(high - low + 1); }
  bool permille(std::uint32_t chance) { return below(1000) < chance; }

  template <typename Container>
  const auto& pick(const Container& items) {
    return items[below(items.size())];
  }
  // Index drawn in proportion to its weight.
  template <typename Weights>
  std::size_t weighted(const Weights& weights) {
    std::size_t total = 0;
    for (auto weight : weights) total += weight;
    std::size_t left = below(total);
    std::size_t index = 0;
    for (auto weight : weights) {
      if (left < static_cast<std::size_t>(weight)) return index;
      left -= weight;
      ++index;
    }
    return 0;
  }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace fovea
