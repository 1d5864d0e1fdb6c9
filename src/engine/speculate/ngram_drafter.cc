#include "engine/speculate/ngram_drafter.h"

#include <algorithm>

namespace fovea {
namespace {

constexpr std::size_t kMinMatch = 2;
constexpr std::size_t kLongMatch = 16;  // no longer one is looked for
constexpr std::size_t kSureMatch = 6;   // what follows so long a one is taken to be a quotation
constexpr std::int32_t kFailures = 3;
constexpr std::int32_t kMostPause = 256;

}  // namespace

std::vector<std::int32_t> lookup_draft(std::span<const std::int32_t> tokens, std::int32_t most, std::int32_t sure) {
  std::vector<std::int32_t> guesses;
  if (most <= 0 || tokens.size() <= kMinMatch) return guesses;
  const std::size_t end = tokens.size() - 1;
  const std::int32_t last = tokens[end];
  const std::int32_t before = tokens[end - 1];
  std::size_t longest = 0;
  std::size_t found = 0;
  for (std::size_t i = end - 1; i >= 1 && longest < kLongMatch; --i) {
    if (tokens[i] != last || tokens[i - 1] != before) continue;
    std::size_t length = kMinMatch;
    while (length < kLongMatch && length <= i && tokens[i - length] == tokens[end - length]) ++length;
    if (length > longest) {
      longest = length;
      found = i;
    }
  }
  if (longest == 0) return guesses;
  const std::size_t period = end - found;
  if (longest >= kSureMatch) most = std::max(most, sure);
  for (std::size_t k = 0; k < static_cast<std::size_t>(most); ++k) {
    guesses.push_back(k < period ? tokens[found + 1 + k] : guesses[k - period]);
  }
  return guesses;
}

std::vector<std::int32_t> NgramDrafter::draft(std::span<const std::int32_t> tokens, std::int32_t most,
                                              std::span<const std::int32_t> sure) {
  if (pause_ > 0) {
    --pause_;
    return {};
  }
  if (!sure.empty() && most > 0) {
    const auto count = std::min(sure.size(), static_cast<std::size_t>(std::min(most, kMostTokens)));
    return {sure.begin(), sure.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  return lookup_draft(tokens, std::min(most, length_), std::min(most, kMostTokens));
}

void NgramDrafter::verified(std::int32_t drafted, std::int32_t accepted) {
  if (drafted == 0) return;
  if (accepted > 0) {
    failures_ = 0;
    next_pause_ = kFirstPause;
    length_ = accepted == drafted ? std::min(2 * length_, kMostTokens) : std::max(accepted, 2);
    return;
  }
  length_ = 2;
  if (++failures_ < kFailures) return;
  failures_ = 0;
  pause_ = next_pause_;
  next_pause_ = std::min(2 * next_pause_, kMostPause);
}

}  // namespace fovea
