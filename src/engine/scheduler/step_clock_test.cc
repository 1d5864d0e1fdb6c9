// The clock of parts against a clock that the test moves.
#include "engine/scheduler/step_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace fovea {
namespace {

constexpr double kStep = 0.03;

// Steps whose decodes take `decodes`; the work of their part asks every `piece` seconds, and what follows it takes
// `rest()`. Returns how many took more than kStep; `longest` and `total` of their times.
struct Steps {
  double now = 100.0;
  StepClock clock{[this] { return now; }};
  double longest = 0.0, total = 0.0;

  template <typename Rest>
  int run(int steps, double decodes, double piece, double least, Rest rest) {
    int over = 0;
    longest = total = 0.0;
    for (int i = 0; i < steps; ++i) {
      const double begin = now;
      clock.begin_step(begin, kStep);
      now += decodes;
      clock.begin_part(least);
      do {
        now += piece;
      } while (!clock.due());
      now += rest();
      clock.end_step();
      over += now - begin > kStep * (1 + 1e-9) ? 1 : 0;
      longest = std::max(longest, now - begin);
      total += now - begin;
    }
    return over;
  }
};

TEST(StepClock, StepsTakeTheirTimeAndNoMore) {
  Steps steps;
  steps.run(1000, 2e-3, 1e-4, 2e-3, [] { return 5e-4; });
  EXPECT_LE(steps.run(1000, 2e-3, 1e-4, 2e-3, [] { return 5e-4; }), 5);  // one of 200
  EXPECT_LT(steps.longest, 1.05 * kStep);
  EXPECT_GT(steps.total / 1000, 0.95 * kStep);
}

TEST(StepClock, NoiseIsLeftFreeButForOneStepOf200) {
  Steps steps;
  PhiloxRng rng(3);
  const auto noise = [&] { return 1e-3 * std::exp(0.8 * rng.next_normal()); };
  steps.run(2000, 2e-3, 1e-3, 2e-3, noise);
  const int over = steps.run(10000, 2e-3, 1e-3, 2e-3, noise);
  EXPECT_GT(over, 10);
  EXPECT_LT(over, 100);
  EXPECT_GT(steps.total / 10000, 0.7 * kStep);
}

// However long decodes take, and however unsteady the machine: prompts go on.
TEST(StepClock, ThePartHasItsShareInAnyCase) {
  Steps steps;
  steps.run(100, 2 * kStep, 1e-4, 2 * kStep, [] { return 0.0; });
  EXPECT_GE(steps.total / 100, 4 * kStep);
  steps.run(100, 2 * kStep, 1e-4, 0.1 * kStep, [] { return 0.0; });
  EXPECT_LT(steps.total / 100, 2.2 * kStep);
  steps.run(2000, 1e-3, 1e-4, 1e-3, [] { return 3 * kStep; });
  EXPECT_GE(steps.total / 2000, 3.5 * kStep);
  EXPECT_FALSE(steps.run(2000, 1e-3, 1e-4, 1e-3, [] { return 0.0; }) > 200) << "a machine that is steady again";
}

}  // namespace
}  // namespace fovea
