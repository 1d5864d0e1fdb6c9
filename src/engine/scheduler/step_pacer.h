// StepPacer: how many tokens of prompts a step may hold beside streams that decode, so that the time between two tokens
// of a stream stays near a target, or near a multiple of what it is without prompts. It learns what a step costs from
// the steps' measured times; it reads no clock. Owned by the Scheduler.
//
// The cost is a sum of rates: of a step, its decode rows and the tokens that they see (fitted to steps without
// prompts), of prompt tokens and of pairs of them with what they see (fitted to the rest of the time of the others). A
// measurement moves the rates by the least that explains part of its error (normalised least mean squares), so those
// that it says nothing about stay as they are; one that is far too long counts as a little too long.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fovea {

// What the time of a step depends on.
struct StepWork {
  std::int64_t prompt_tokens = 0;
  std::int64_t prompt_pairs = 0;  // sum over them of the tokens that each sees
  std::int64_t decode_rows = 0;
  std::int64_t decode_kv = 0;  // sum over sequences of the tokens that they see

  // `count` tokens of a prompt from position `begin` on.
  void add_prompt(std::int64_t begin, std::int64_t count);
  void add_decode(std::int64_t rows, std::int64_t kv);
};

// Rates, none negative, fitted to sums of rates times amounts.
template <std::size_t N>
class RateFit {
 public:
  using Amounts = std::array<double, N>;
  double predict(const Amounts& amounts) const;
  void observe(const Amounts& amounts, double value);
  bool measured() const { return measured_; }

 private:
  Amounts rates_{};
  bool measured_ = false;
};

class StepPacer {
 public:
  // Seconds, and times what decodes alone take; 0: no such limit.
  explicit StepPacer(double target, double stretch = 0.0) : target_(target), stretch_(stretch) {}

  // Prompt tokens for a step that already holds `decodes`, at most `most`; the furthest prompt stands at `position`.
  // At least one: prompts go on however slow the machine is, for half of the time if decodes alone take the target (of
  // a stretch, for as much as it leaves).
  std::int32_t prompt_tokens(const StepWork& decodes, std::int64_t position, std::int32_t most) const;
  void observe(const StepWork& work, double seconds);

  // For chunks that are left when a step has taken its time (StepClock): seconds of such a step, infinite without a
  // limit; the share of the decodes' time that prompts get in any case; and the size of such a chunk.
  double step_seconds(const StepWork& decodes) const;
  double least_share() const { return target_ > 0.0 ? 1.0 : kLeastShare; }
  std::int32_t chunk_tokens(double step_seconds, std::int64_t position, std::int32_t most) const;
  // A chunk was computed in so many seconds, all its parts together.
  void observe_chunk(const StepWork& work, double seconds);
  // Seconds that the rates foretell.
  double predict(const StepWork& work) const;

 private:
  static constexpr double kLeastShare =
      0.05;  // of what decodes alone take: prompts get it where noise eats the stretch

  // Tokens from `position` on that take so long, at most `limit`.
  double tokens_in(double seconds, double position, double limit) const;

  double target_;
  double stretch_;
  RateFit<3> decode_;
  RateFit<2> prompt_;
  double margin_ = 1.1;           // measured over foretold, exceeded by about one step of 30
  std::int64_t last_prompt_ = 0;  // prompt tokens of the latest step beside decodes
};

}  // namespace fovea
