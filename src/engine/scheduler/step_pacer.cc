#include "engine/scheduler/step_pacer.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace fovea {
namespace {

constexpr double kGain = 0.3;        // share of an error that a measurement corrects
constexpr double kMostError = 1.0;   // of what was foretold: what was waited for something else is not learned
constexpr double kMostMargin = 2.0;  // beyond it the machine is too unsteady for a bound
constexpr double kMarginUp = 0.1;    // these two are in balance when one step of 30 is over
constexpr double kMarginDown = kMarginUp / 29;
constexpr std::int64_t kFirstChunk = 16;  // what rates from other sizes of chunks foretell is believed step by step
constexpr std::int64_t kGrowth = 4;
// Of chunks that are left: longer ones save nothing, and shorter ones cost too much.
constexpr std::int32_t kMostChunk = 512;
constexpr std::int32_t kLeastChunk = 128;
// Of the time between two tokens at the client: the rest is their way there, past the next step's threads.
constexpr double kOfTarget = 0.85;
constexpr double kChunkSteps = 12.0;  // steps that such a chunk takes, at most

// Amounts near 1 where each part matters, so that errors are spread over the rates in proportion.
std::array<double, 3> decode_amounts(const StepWork& work) {
  return {1.0, static_cast<double>(work.decode_rows) / 8, static_cast<double>(work.decode_kv) / 8192};
}
std::array<double, 2> prompt_amounts(double tokens, double pairs) { return {tokens / 256, pairs / (256 * 8192)}; }
std::array<double, 2> prompt_amounts(const StepWork& work) {
  return prompt_amounts(static_cast<double>(work.prompt_tokens), static_cast<double>(work.prompt_pairs));
}

}  // namespace

void StepWork::add_prompt(std::int64_t begin, std::int64_t count) {
  prompt_tokens += count;
  prompt_pairs += count * begin + count * (count + 1) / 2;
}

void StepWork::add_decode(std::int64_t rows, std::int64_t kv) {
  decode_rows += rows;
  decode_kv += kv;
}

template <std::size_t N>
double RateFit<N>::predict(const Amounts& amounts) const {
  return std::inner_product(amounts.begin(), amounts.end(), rates_.begin(), 0.0);
}

template <std::size_t N>
void RateFit<N>::observe(const Amounts& amounts, double value) {
  const double norm = std::inner_product(amounts.begin(), amounts.end(), amounts.begin(), 0.0);
  const double foretold = predict(amounts);
  double error = value - foretold;
  if (foretold > 0.0) error = std::min(error, kMostError * foretold);
  const double gain = measured_ ? kGain : 1.0;
  for (std::size_t i = 0; i < N; ++i) rates_[i] = std::max(0.0, rates_[i] + gain * error * amounts[i] / norm);
  measured_ = true;
}

double StepPacer::predict(const StepWork& work) const {
  return decode_.predict(decode_amounts(work)) + prompt_.predict(prompt_amounts(work));
}

void StepPacer::observe(const StepWork& work, double seconds) {
  if (work.prompt_tokens == 0) {
    decode_.observe(decode_amounts(work), seconds);
    return;
  }
  if (work.decode_rows > 0) {
    last_prompt_ = work.prompt_tokens;
    margin_ += seconds > margin_ * predict(work) ? kMarginUp : -kMarginDown;
    margin_ = std::clamp(margin_, 1.0, kMostMargin);
  }
  // Where decodes alone were foretold to take longer, prompts still took something.
  prompt_.observe(prompt_amounts(work), std::max(seconds - decode_.predict(decode_amounts(work)), 0.1 * seconds));
}

std::int32_t StepPacer::prompt_tokens(const StepWork& decodes, std::int64_t position, std::int32_t most) const {
  const bool stretches = stretch_ > 0.0 && decode_.measured();
  if (target_ <= 0.0 && !stretches) return most;
  const auto trusted = std::max<std::int64_t>(kGrowth * last_prompt_, kFirstChunk);
  const auto limit = static_cast<double>(std::min<std::int64_t>(most, trusted));
  const double alone = decode_.predict(decode_amounts(decodes));
  double time = std::numeric_limits<double>::infinity();
  if (target_ > 0.0) time = std::max(target_ / margin_ - alone, alone);
  if (stretches) time = std::min(time, std::max(stretch_ / margin_ - 1.0, kLeastShare) * alone);
  return std::max(1, static_cast<std::int32_t>(tokens_in(time, static_cast<double>(position), limit)));
}

double StepPacer::tokens_in(double seconds, double position, double limit) const {
  const auto tokens_at = [&](double seen) {
    const double each = prompt_.predict(prompt_amounts(1.0, seen));
    return each * limit > seconds ? seconds / each : limit;
  };
  // A chunk's tokens see each other too: half of its length more, on average.
  return tokens_at(position + tokens_at(position) / 2);
}

double StepPacer::step_seconds(const StepWork& decodes) const {
  double seconds = target_ > 0.0 ? kOfTarget * target_ : std::numeric_limits<double>::infinity();
  if (stretch_ > 0.0 && decode_.measured()) {
    seconds = std::min(seconds, stretch_ * decode_.predict(decode_amounts(decodes)));
  }
  return seconds;
}

std::int32_t StepPacer::chunk_tokens(double step_seconds, std::int64_t position, std::int32_t most) const {
  // Who comes meanwhile waits for the chunk's end.
  const double tokens = !prompt_.measured() ? 0.0
                                            : tokens_in(kChunkSteps * step_seconds, static_cast<double>(position),
                                                        static_cast<double>(kMostChunk));
  return std::min(most, std::max(kLeastChunk, static_cast<std::int32_t>(tokens)));
}

void StepPacer::observe_chunk(const StepWork& work, double seconds) {
  last_prompt_ = work.prompt_tokens;
  prompt_.observe(prompt_amounts(work), seconds);
}

template class RateFit<2>;
template class RateFit<3>;

}  // namespace fovea
