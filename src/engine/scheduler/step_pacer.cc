#include "engine/scheduler/step_pacer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

namespace fovea {
namespace {

constexpr double kForget = 0.07;     // of what was measured, with each measurement: the latest 15 or so count
constexpr double kInertia = 1e-3;    // of what was measured: how much rates resist, so that the idle ones stay
constexpr int kSweeps = 10;          // over the rates, to solve for them
constexpr double kMostError = 1.0;   // of what was foretold
constexpr double kMostExcess = 1.0;  // beyond it the machine is too unsteady for a bound
constexpr double kLeastExcess = 0.02;
// In balance when one step of 30 is over, and in proportion: a steady machine loses little of a stretch's room.
constexpr double kExcessUp = 1.3;
constexpr double kExcessDown = 0.99099;  // kExcessUp to the power of -1/29
// Small beside a first chunk's tokens, which take nearly all of its time until another size says otherwise: the next
// chunk is not too long then.
constexpr double kFixedAmount = 0.05;
constexpr double kFirstChunk = 16.0;  // what rates from other sizes of chunks foretell is believed step by step
constexpr double kGrowth = 2.0;
constexpr double kTrustKept = 0.9;  // a step later: the short end of a prompt does not begin it all again
// Steps with prompts until one without, where one is needed: once the number of streams has changed, then ever rarer.
constexpr std::int64_t kMeasureFirst = 4;
constexpr std::int64_t kMeasureLast = 128;
// Of chunks that are left: longer ones save nothing, and shorter ones cost too much.
constexpr std::int32_t kMostChunk = 512;
constexpr std::int32_t kLeastChunk = 128;
// Of the time between two tokens at the client: the rest is their way there, past the next step's threads.
constexpr double kOfTarget = 0.85;
constexpr double kChunkSteps = 12.0;  // steps that such a chunk takes, at most

// What is learned of a time: what was waited for something else is not.
double capped(double seconds, double foretold) { return std::min(seconds, (1.0 + kMostError) * foretold); }

// Amounts near 1 where each part matters, so that errors are spread over the rates in proportion.
RateFit::Amounts decode_amounts(const StepWork& work) {
  return {1.0, static_cast<double>(work.decode_rows) / 32, static_cast<double>(work.decode_kv) / 32768};
}
RateFit::Amounts prompt_amounts(double fixed, double tokens, double pairs) {
  return {fixed * kFixedAmount, tokens / 128, pairs / (128 * 8192)};
}
RateFit::Amounts prompt_amounts(const StepWork& work, double fixed) {
  return prompt_amounts(fixed, static_cast<double>(work.prompt_tokens), static_cast<double>(work.prompt_pairs));
}
// A step without decodes, or one that holds none of a prompt, has no fixed part of its own.
RateFit::Amounts prompt_amounts(const StepWork& work) {
  return prompt_amounts(work, work.prompt_tokens > 0 && work.decode_rows > 0 ? 1.0 : 0.0);
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

double RateFit::predict(const Amounts& amounts) const {
  return std::inner_product(amounts.begin(), amounts.end(), rates_.begin(), 0.0);
}

void RateFit::observe(const Amounts& amounts, double value, double scale) {
  if (!(scale > 0.0)) return;  // a time of nothing says nothing, and would be of infinite weight
  const double weight = 1.0 / (scale * scale);
  double inertia = std::numeric_limits<double>::min();
  for (std::size_t i = 0; i < amounts.size(); ++i) {
    values_[i] += weight * amounts[i] * value - kForget * values_[i];
    for (std::size_t j = 0; j < amounts.size(); ++j) {
      products_[i][j] += weight * amounts[i] * amounts[j] - kForget * products_[i][j];
    }
    inertia += kInertia * products_[i][i];
  }
  // Coordinate descent: with one rate after the other at its best, none below zero.
  const Amounts before = rates_;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (std::size_t i = 0; i < amounts.size(); ++i) {
      const double others =
          std::inner_product(rates_.begin(), rates_.end(), products_[i].begin(), 0.0) - rates_[i] * products_[i][i];
      rates_[i] = std::max(0.0, (values_[i] - others + inertia * before[i]) / (products_[i][i] + inertia));
    }
  }
  measured_ = true;
}

double StepPacer::predict(const StepWork& work) const {
  return decode_.predict(decode_amounts(work)) + prompt_.predict(prompt_amounts(work));
}

void StepPacer::observe(const StepWork& work, double seconds) {
  const double foretold = predict(work);
  // Noise is a share of the whole step, not of its prompts: a few tokens' time is known badly.
  const bool known = work.prompt_tokens > 0 ? prompt_.measured() : decode_.measured();
  const double scale = known ? foretold : seconds;
  const double learned = known ? capped(seconds, foretold) : seconds;
  if (work.prompt_tokens == 0) {
    decode_.observe(decode_amounts(work), learned, scale);
    measure_after_ = other_streams(work) ? kMeasureFirst : std::min(2 * measure_after_, kMeasureLast);
    alone_rows_ = work.decode_rows;
    since_alone_ = 0;
    return;
  }
  if (work.decode_rows > 0) {
    ++since_alone_;
    trust(work.prompt_tokens);
    excess_ = std::clamp(excess_ * (seconds > (1.0 + excess_) * foretold ? kExcessUp : kExcessDown), kLeastExcess,
                         kMostExcess);
  } else if (trusted_ > 0.0) {
    return;  // long chunks alone run at other rates than those beside decodes
  }
  prompt_.observe(prompt_amounts(work), std::max(learned - decode_.predict(decode_amounts(work)), 0.0), scale);
}

void StepPacer::trust(std::int64_t prompt_tokens) {
  trusted_ = std::max(static_cast<double>(prompt_tokens), kTrustKept * trusted_);
}

bool StepPacer::other_streams(const StepWork& decodes) const {
  return 4 * std::abs(decodes.decode_rows - alone_rows_) > alone_rows_;
}

bool StepPacer::must_measure(const StepWork& decodes) const {
  if (!decode_.measured()) return true;
  return since_alone_ >= (other_streams(decodes) ? kMeasureFirst : measure_after_);
}

std::int32_t StepPacer::prompt_tokens(const StepWork& decodes, std::int64_t position, std::int32_t most) const {
  if (target_ <= 0.0 && stretch_ <= 0.0) return most;
  if (stretch_ > 0.0 && must_measure(decodes)) return 0;
  const double limit = std::min(static_cast<double>(most), std::max(kGrowth * trusted_, kFirstChunk));
  const double alone = decode_.predict(decode_amounts(decodes));
  double time = std::numeric_limits<double>::infinity();
  if (target_ > 0.0) time = std::max(target_ / (1.0 + excess_) - alone, alone);
  if (stretch_ > 0.0) time = std::min(time, std::max(stretch_ / (1.0 + excess_) - 1.0, kLeastShare) * alone);
  return std::max(1, static_cast<std::int32_t>(tokens_in(time, 1.0, static_cast<double>(position), limit)));
}

double StepPacer::tokens_in(double seconds, double fixed, double position, double limit) const {
  const double left = std::max(0.0, seconds - prompt_.predict(prompt_amounts(fixed, 0.0, 0.0)));
  const auto tokens_at = [&](double seen) {
    const double each = prompt_.predict(prompt_amounts(0.0, 1.0, seen));
    return each * limit > left ? left / each : limit;
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
                                            : tokens_in(kChunkSteps * step_seconds, 0.0, static_cast<double>(position),
                                                        static_cast<double>(kMostChunk));
  return std::min(most, std::max(kLeastChunk, static_cast<std::int32_t>(tokens)));
}

void StepPacer::observe_chunk(const StepWork& work, double seconds) {
  trust(work.prompt_tokens);
  const auto amounts = prompt_amounts(work, 0.0);
  const double foretold = prompt_.predict(amounts);
  const bool known = foretold > 0.0;
  prompt_.observe(amounts, known ? capped(seconds, foretold) : seconds, known ? foretold : seconds);
}

}  // namespace fovea
