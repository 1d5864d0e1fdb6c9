// The pacer against machines that are functions of the work: what it foretells, how far chunks overshoot the target,
// and that it follows a machine that becomes slower or hiccups.
#include "engine/scheduler/step_pacer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/random.h"

namespace fovea {
namespace {

constexpr double kTarget = 0.03;

// Seconds that a step takes: fixed, and for each decode row, token of a prompt, and 1000 pairs of a token and one seen.
struct Machine {
  double fixed = 1e-3;
  double row = 1e-4;
  double token = 1e-4;
  double kilopair = 2e-5;
  double operator()(const StepWork& work) const {
    return fixed + row * static_cast<double>(work.decode_rows) +
           kilopair * 1e-3 * static_cast<double>(work.decode_kv + work.prompt_pairs) +
           token * static_cast<double>(work.prompt_tokens);
  }
};

StepWork stream(std::int64_t kv) {
  StepWork work;
  work.add_decode(1, kv);
  return work;
}

// Reads a prompt beside one stream; calls `each` with every step's time.
void read_prompt(StepPacer& pacer, const std::function<double(const StepWork&)>& machine, std::int64_t length,
                 const std::function<void(double, std::int64_t)>& each) {
  for (std::int64_t begin = 0; begin < length;) {
    StepWork work = stream(500);
    const std::int64_t count = std::min<std::int64_t>(pacer.prompt_tokens(work, begin, 1023), length - begin);
    ASSERT_GE(count, 1);
    work.add_prompt(begin, count);
    const double seconds = machine(work);
    pacer.observe(work, seconds);
    each(seconds, count);
    begin += count;
  }
}

TEST(StepPacer, KeepsStepsNearTheTargetAllTheWay) {
  const Machine machine;
  StepPacer pacer(kTarget);
  for (int i = 0; i < 20; ++i) pacer.observe(stream(500 + i), machine(stream(500 + i)));
  std::int64_t steps = 0;
  double total = 0.0;
  read_prompt(pacer, machine, 40000, [&](double seconds, std::int64_t) {
    EXPECT_LE(seconds, 1.1 * kTarget) << "step " << steps;
    total += seconds;
    ++steps;
  });
  // No shorter than need be: the time goes to the prompt, but for its first chunks.
  EXPECT_GT(total / static_cast<double>(steps), 0.8 * kTarget);
}

TEST(StepPacer, ForetellsWhatItHasSeen) {
  const Machine machine;
  StepPacer pacer(kTarget);
  for (int round = 0; round < 300; ++round) {
    StepWork work = stream(1000 + 10 * round);
    if (round % 2 == 0) work.add_prompt(round * 100, 64 + round % 7 * 16);
    pacer.observe(work, machine(work));
  }
  StepWork work = stream(4000);
  EXPECT_NEAR(pacer.predict(work), machine(work), 0.05 * machine(work));
  work.add_prompt(30000, 100);
  EXPECT_NEAR(pacer.predict(work), machine(work), 0.2 * machine(work));
}

TEST(StepPacer, FollowsAMachineThatBecomesSlower) {
  Machine machine;
  StepPacer pacer(kTarget);
  read_prompt(pacer, machine, 5000, [](double, std::int64_t) {});
  for (double* rate : {&machine.fixed, &machine.row, &machine.token, &machine.kilopair}) *rate *= 5.0;
  int over = 0;
  read_prompt(pacer, machine, 5000, [&](double seconds, std::int64_t) { over += seconds > 1.2 * kTarget ? 1 : 0; });
  EXPECT_LE(over, 12);
}

TEST(StepPacer, AHiccupCostsLittle) {
  const Machine machine;
  StepPacer pacer(kTarget);
  read_prompt(pacer, machine, 5000, [](double, std::int64_t) {});
  const StepWork decode = stream(500);
  const std::int32_t before = pacer.prompt_tokens(decode, 5000, 1023);
  StepWork work = decode;
  work.add_prompt(5000, before);
  pacer.observe(work, 100.0 * machine(work));
  EXPECT_GT(pacer.prompt_tokens(decode, 5000, 1023), before / 2);
}

// One step of thirty is over the target, not half of them.
TEST(StepPacer, LeavesRoomForNoise) {
  const Machine machine;
  StepPacer pacer(kTarget);
  PhiloxRng rng(7);
  int steps = 0;
  int over = 0;
  const auto noisy = [&](const StepWork& work) { return machine(work) * std::exp(0.15 * rng.next_normal()); };
  read_prompt(pacer, noisy, 40000, [&](double seconds, std::int64_t) {
    ++steps;
    over += seconds > kTarget ? 1 : 0;
  });
  EXPECT_LT(over, steps / 10);
}

TEST(StepPacer, PromptsGetHalfWhereDecodesTakeTheTarget) {
  Machine machine;
  machine.fixed = 0.2;
  StepPacer pacer(kTarget);
  for (int i = 0; i < 20; ++i) pacer.observe(stream(500), machine(stream(500)));
  double prompt = 0.0;
  double total = 0.0;
  read_prompt(pacer, machine, 20000, [&](double seconds, std::int64_t) {
    EXPECT_LT(seconds, 2.5 * machine.fixed);
    prompt += seconds - machine(stream(500));
    total += seconds;
  });
  EXPECT_GT(prompt, 0.4 * total);
}

// With a target that is far away, and without one.
TEST(StepPacer, StepsAreAtMostAStretchOfDecodesAlone) {
  for (const double target : {0.0, 0.2}) {
    Machine machine;
    machine.fixed = 6e-3;
    StepPacer pacer(target, 1.5);
    for (int i = 0; i < 20; ++i) pacer.observe(stream(500), machine(stream(500)));
    const double alone = machine(stream(500));
    double total = 0.0;
    int steps = 0;
    read_prompt(pacer, machine, 20000, [&](double seconds, std::int64_t) {
      EXPECT_LT(seconds, 1.55 * alone);
      total += seconds;
      ++steps;
    });
    EXPECT_GT(total, 1.3 * alone * steps);
  }
}

// The prompt that is there before anything decoded alone.
TEST(StepPacer, AStretchOfWhatIsNotKnownYetIsNone) {
  StepPacer pacer(0.0, 1.5);
  StepWork work = stream(500);
  EXPECT_EQ(pacer.prompt_tokens(work, 0, 1023), 1023);
  work.add_prompt(0, 64);
  pacer.observe(work, 1e-2);
  EXPECT_EQ(pacer.prompt_tokens(stream(500), 0, 1023), 1023);
}

TEST(StepPacer, WithoutATargetChunksAreFull) {
  StepPacer pacer(0.0);
  StepWork work = stream(500);
  work.add_prompt(0, 64);
  pacer.observe(work, 10.0);
  EXPECT_EQ(pacer.prompt_tokens(stream(500), 0, 1023), 1023);
}

// Chunks that may be left: some steps long, neither so short that they cost much nor so long that others wait long.
TEST(StepPacer, ChunksThatMayBeLeft) {
  const Machine machine;
  StepPacer pacer(kTarget, 1.5);
  EXPECT_EQ(pacer.step_seconds(stream(500)), 0.85 * kTarget);  // the rest is for the way to the client
  EXPECT_EQ(pacer.chunk_tokens(kTarget, 0, 4000), 128) << "nothing is known";
  for (int i = 0; i < 20; ++i) pacer.observe(stream(500), machine(stream(500)));
  EXPECT_NEAR(pacer.step_seconds(stream(500)), 1.5 * machine(stream(500)), 1e-4);
  std::int32_t longest = 0, latest = 0;
  for (std::int64_t begin = 0; begin < 100000; begin += latest) {
    latest = pacer.chunk_tokens(kTarget, begin, 4000);
    longest = std::max(longest, latest);
    StepWork work;
    work.add_prompt(begin, latest);
    const double seconds = machine(work) - machine.fixed;
    EXPECT_LE(seconds, 14 * kTarget) << begin;
    pacer.observe_chunk(work, seconds);
  }
  EXPECT_EQ(longest, 512);
  EXPECT_LT(latest, 256);  // 12 steps of 0.03 seconds are 171 tokens of 2.1e-3
  EXPECT_EQ(pacer.chunk_tokens(kTarget, 0, 100), 100);
  // Of a machine that takes a second a token, the least.
  StepPacer slow(kTarget);
  StepWork work;
  work.add_prompt(0, 128);
  slow.observe_chunk(work, 128.0);
  EXPECT_EQ(slow.chunk_tokens(kTarget, 0, 4000), 128);
}

}  // namespace
}  // namespace fovea
