// Lengths of the requests of a batch, by the distributions that the field measures with. Used by bench, tests and
// `fovea plan explain`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/status.h"

namespace fovea {

// All `length`.
std::vector<std::int32_t> constant_lengths(std::int32_t count, std::int32_t length);
// Uniform in [low, high].
std::vector<std::int32_t> uniform_lengths(std::int32_t count, std::int32_t low, std::int32_t high, std::uint64_t seed);
// Proportional to rank^-exponent with the given sum (each at least 1), in random order. Exponent 1.2, 64 requests and
// 262144 tokens is the skewed set of the measurements.
std::vector<std::int32_t> zipf_lengths(std::int32_t count, std::int64_t total, double exponent, std::uint64_t seed);
// One request of half of all tokens in the middle of count - 1 short ones.
std::vector<std::int32_t> one_long_lengths(std::int32_t count, std::int64_t total);

// "constant", "uniform" (half to one and a half times the average), "zipf" or "one_long", with `average` tokens.
Result<std::vector<std::int32_t>> named_lengths(std::string_view name, std::int32_t count, std::int32_t average,
                                                std::uint64_t seed);

}  // namespace fovea
