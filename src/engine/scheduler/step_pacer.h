// StepPacer: how many tokens of prompts a step may hold beside streams that decode, so that the time between two tokens
// of a stream stays near a target, or near a multiple of what it is without prompts. It learns what a step costs from
// the steps' measured times; it reads no clock. Owned by the Scheduler.
//
// The cost is a sum of rates: of a step, its decode rows and the tokens that they see (fitted to steps without
// prompts), of holding any prompt at all, of prompt tokens and of pairs of them with what they see (fitted to the rest
// of the time of the others). The part that does not depend on the tokens matters on a GPU, where a step with prompts
// runs other kernels, and is a captured graph only if it is small and has come before: laid on the tokens of small
// chunks it would make each look dear, and chunks would stay small.
//
// A bound by what decodes alone take needs steps without prompts. Where prompts wait at all times, one is left without
// now and then, and when the number of streams has changed.
#pragma once

#include <array>
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

// Rates, none negative, fitted to sums of rates times amounts: recursive least squares that forget. Rates move by as
// little as explains what was measured lately, so those that it says nothing about stay as they are.
class RateFit {
 public:
  using Amounts = std::array<double, 3>;
  double predict(const Amounts& amounts) const;
  // `scale`: of the error that measuring `value` has.
  void observe(const Amounts& amounts, double value, double scale);
  bool measured() const { return measured_; }

 private:
  Amounts rates_{};
  // The normal equations: sums of products of amounts, and of amounts and values.
  std::array<Amounts, 3> products_{};
  Amounts values_{};
  bool measured_ = false;
};

class StepPacer {
 public:
  // Seconds, and times what decodes alone take; 0: no such limit.
  StepPacer(double target, double stretch) : target_(target), stretch_(stretch) {}

  // Prompt tokens for a step that already holds `decodes`, at most `most`; the furthest prompt stands at `position`.
  // At least one: prompts go on however slow the machine is, for half of the time if decodes alone take the target (of
  // a stretch, for as much as it leaves). None where the stretch needs a step without.
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
  // Of what decodes alone take: prompts get it where noise eats the stretch.
  static constexpr double kLeastShare = 0.05;

  // More or fewer by a quarter than in the latest step without prompts.
  bool other_streams(const StepWork& decodes) const;
  // A chunk of so many tokens was computed beside decodes.
  void trust(std::int64_t prompt_tokens);
  // Whether what decodes alone take must be measured (again).
  bool must_measure(const StepWork& decodes) const;
  // Tokens from `position` on that take so long, at most `limit`, in a step that holds `fixed` (1 or 0) the fixed part.
  double tokens_in(double seconds, double fixed, double position, double limit) const;

  double target_;
  double stretch_;
  RateFit decode_;
  RateFit prompt_;
  double excess_ = 0.1;             // measured over foretold, less 1, exceeded by about one step of 30
  double trusted_ = 0.0;            // prompt tokens of late steps beside decodes: the most, forgotten slowly
  std::int64_t alone_rows_ = 0;     // of the latest step without prompts
  std::int64_t since_alone_ = 0;    // steps with prompts since then
  std::int64_t measure_after_ = 0;  // as many, the next must be without
};

}  // namespace fovea
