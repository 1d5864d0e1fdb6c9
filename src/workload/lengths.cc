#include "workload/lengths.h"

#include <algorithm>
#include <cmath>

#include "base/quote.h"
#include "base/random.h"
#include "base/status.h"

namespace fovea {

std::vector<std::int32_t> constant_lengths(std::int32_t count, std::int32_t length) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(std::max(count, 0)), length);
}

std::vector<std::int32_t> uniform_lengths(std::int32_t count, std::int32_t low, std::int32_t high, std::uint64_t seed) {
  PhiloxRng rng(seed);
  std::vector<std::int32_t> lengths = constant_lengths(count, low);
  for (std::int32_t& length : lengths) {
    length += static_cast<std::int32_t>(rng.next_below(static_cast<std::uint32_t>(high - low) + 1));
  }
  return lengths;
}

std::vector<std::int32_t> zipf_lengths(std::int32_t count, std::int64_t total, double exponent, std::uint64_t seed) {
  std::vector<std::int32_t> lengths = constant_lengths(count, 1);
  double sum = 0.0;
  for (std::int32_t rank = 1; rank <= count; ++rank) sum += std::pow(rank, -exponent);
  std::int64_t left = total;
  for (std::int32_t i = 0; i < count; ++i) {
    const double share = std::pow(i + 1, -exponent) / sum;
    lengths[static_cast<std::size_t>(i)] =
        std::max(1, static_cast<std::int32_t>(std::llround(share * static_cast<double>(total))));
    left -= lengths[static_cast<std::size_t>(i)];
  }
  if (count > 0) lengths[0] = static_cast<std::int32_t>(std::max<std::int64_t>(1, lengths[0] + left));
  PhiloxRng rng(seed);
  for (std::size_t i = lengths.size(); i > 1; --i) {
    std::swap(lengths[i - 1], lengths[rng.next_below(static_cast<std::uint32_t>(i))]);
  }
  return lengths;
}

std::vector<std::int32_t> one_long_lengths(std::int32_t count, std::int64_t total) {
  const std::int64_t half = std::max<std::int64_t>(total / 2, 1);
  std::vector<std::int32_t> lengths = constant_lengths(count, 1);
  if (count == 1) lengths[0] = static_cast<std::int32_t>(total);
  if (count < 2) return lengths;
  std::int64_t left = total - half;
  for (std::int32_t i = 0; i < count; ++i) {
    const bool is_long = i == (count - 1) / 2;
    const std::int32_t others = count - i - (i < (count - 1) / 2 ? 1 : 0);
    const std::int64_t length = is_long ? half : std::max<std::int64_t>(left / others, 1);
    lengths[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(length);
    if (!is_long) left -= length;
  }
  return lengths;
}

Result<std::vector<std::int32_t>> named_lengths(std::string_view name, std::int32_t count, std::int32_t average,
                                                std::uint64_t seed) {
  if (count < 1 || average < 1) {
    return invalid_argument("{} lengths of {} tokens on average, expected 1 or more of both", count, average);
  }
  const std::int64_t total = std::int64_t{count} * average;
  if (total > (std::int64_t{1} << 30)) return invalid_argument("{} tokens in all are more than 2^30", total);
  if (name == "constant") return constant_lengths(count, average);
  if (name == "uniform") return uniform_lengths(count, (average + 1) / 2, average + average / 2, seed);
  if (name == "zipf") return zipf_lengths(count, total, 1.2, seed);
  if (name == "one_long") return one_long_lengths(count, total);
  return invalid_argument("unknown distribution of lengths {}, expected constant, uniform, zipf or one_long",
                          quote(name));
}

}  // namespace fovea
