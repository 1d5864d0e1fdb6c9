// The pacer against machines that are functions of the work: what it foretells, how far chunks overshoot the target,
// that it follows a machine that becomes slower or hiccups, and what it reaches on one with a GPU.
#include "engine/scheduler/step_pacer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

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

StepWork streams(std::int64_t rows) {
  StepWork work;
  work.add_decode(rows, rows * 1000);
  return work;
}

// Reads a prompt beside one stream, of which no two steps in a row have none; calls `each` with every step's time.
void read_prompt(StepPacer& pacer, const std::function<double(const StepWork&)>& machine, std::int64_t length,
                 const std::function<void(double, std::int64_t)>& each) {
  std::int64_t latest = 1;
  for (std::int64_t begin = 0; begin < length;) {
    StepWork work = stream(500);
    const std::int64_t count = std::min<std::int64_t>(pacer.prompt_tokens(work, begin, 1023), length - begin);
    ASSERT_TRUE(count > 0 || (count == 0 && latest > 0)) << count << " tokens after " << latest;
    latest = count;
    if (count > 0) work.add_prompt(begin, count);
    const double seconds = machine(work);
    pacer.observe(work, seconds);
    each(seconds, count);
    begin += count;
  }
}

TEST(StepPacer, KeepsStepsNearTheTargetAllTheWay) {
  const Machine machine;
  StepPacer pacer(kTarget, 0.0);
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
  StepPacer pacer(kTarget, 0.0);
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
  StepPacer pacer(kTarget, 0.0);
  read_prompt(pacer, machine, 5000, [](double, std::int64_t) {});
  for (double* rate : {&machine.fixed, &machine.row, &machine.token, &machine.kilopair}) *rate *= 5.0;
  int over = 0;
  read_prompt(pacer, machine, 5000, [&](double seconds, std::int64_t) { over += seconds > 1.2 * kTarget ? 1 : 0; });
  EXPECT_LE(over, 12);
}

TEST(StepPacer, AHiccupCostsLittle) {
  const Machine machine;
  StepPacer pacer(kTarget, 0.0);
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
  StepPacer pacer(kTarget, 0.0);
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
  StepPacer pacer(kTarget, 0.0);
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

// The prompt that is there before anything decoded alone waits for one step; none waits for two.
TEST(StepPacer, AStretchOfWhatIsNotKnownYetIsMeasured) {
  StepPacer pacer(0.0, 1.5);
  EXPECT_EQ(pacer.prompt_tokens(stream(500), 0, 1023), 0);
  pacer.observe(stream(500), 1e-2);
  EXPECT_EQ(pacer.prompt_tokens(stream(500), 0, 1023), 16);
  EXPECT_GT(pacer.prompt_tokens(streams(50), 0, 1023), 0) << "so soon after the last";
}

TEST(StepPacer, WithoutATargetChunksAreFull) {
  StepPacer pacer(0.0, 0.0);
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
  StepPacer slow(kTarget, 0.0);
  StepWork work;
  work.add_prompt(0, 128);
  slow.observe_chunk(work, 128.0);
  EXPECT_EQ(slow.chunk_tokens(kTarget, 0, 4000), 128);
}

// An 8B model on a GPU as it was measured: weights are read once a step, so that the first tokens cost little; a step
// with prompts is no captured graph; beyond 64 rows other kernels run; attention of short chunks is dear. Steps have
// 2 % of noise, and one of 200 takes 20 % more.
class Gpu {
 public:
  explicit Gpu(std::uint64_t seed) : rng_(seed) {}

  static double seconds(const StepWork& work) {
    const auto tokens = static_cast<double>(work.prompt_tokens);
    const auto rows = static_cast<double>(work.decode_rows);
    const double decodes = 4.1e-3 + 12.6e-6 * rows + 28e-9 * static_cast<double>(work.decode_kv);
    if (work.prompt_tokens == 0) return decodes;
    const double fixed = (work.decode_rows > 0 ? 0.15e-3 : 0.0) + (tokens + rows > 64.0 ? 0.5e-3 : 0.0);
    const double products = 8e-6 * std::min(tokens, 192.0) + 20.5e-6 * std::max(tokens - 192.0, 0.0);
    const double pair = 3.2e-10 * (1.0 + 4.0 * std::min(1.0, 370.0 / tokens));
    return decodes + fixed + products + pair * static_cast<double>(work.prompt_pairs);
  }
  double measure(const StepWork& work) {
    const double hiccup = rng_.next_below(200) == 0 ? 1.2 : 1.0;
    return hiccup * std::exp(0.02 * rng_.next_normal()) * seconds(work);
  }

 private:
  PhiloxRng rng_;
};

// Of steps beside streams: tokens of prompts that they held, and that the machine would have allowed.
struct Tally {
  std::int64_t tokens = 0, allowed = 0, steps = 0, over = 0;
  void add(const Tally& other) {
    tokens += other.tokens, allowed += other.allowed, steps += other.steps, over += other.over;
  }
};

// Prompts that wait at all times beside streams on that machine.
struct Served {
  StepPacer pacer;
  double target, stretch;
  Gpu gpu;
  std::int64_t position = 0;

  double limit(const StepWork& decodes) const {
    return std::min(target > 0.0 ? target : 1.0, stretch > 0.0 ? stretch * Gpu::seconds(decodes) : 1.0);
  }
  std::int64_t most(const StepWork& decodes) const {
    std::int64_t low = 0, high = 8192;
    while (low < high) {
      const std::int64_t count = (low + high + 1) / 2;
      StepWork work = decodes;
      work.add_prompt(position, count);
      const bool fits = Gpu::seconds(work) <= limit(decodes);
      if (fits) low = count;
      if (!fits) high = count - 1;
    }
    return low;
  }
  void observe(const StepWork& work) { pacer.observe(work, gpu.measure(work)); }
  Tally run(std::int64_t rows, std::int64_t length, int steps) {
    Tally tally{.steps = steps};
    for (int i = 0; i < steps; ++i) {
      StepWork work = streams(rows);
      const double bound = limit(work);
      const std::int64_t paced = pacer.prompt_tokens(work, position, 4096);
      const std::int64_t count = std::min(paced, length - position);
      if (count == paced) {  // not the end of a prompt
        tally.tokens += count;
        tally.allowed += most(work);
      }
      if (count > 0) work.add_prompt(position, count);
      const double seconds = gpu.measure(work);
      pacer.observe(work, seconds);
      tally.over += seconds > 1.05 * bound ? 1 : 0;
      position = (position + count) % length;
    }
    return tally;
  }
};

class StepPacerGpu : public testing::TestWithParam<std::pair<double, double>> {
 protected:
  // For each number of streams 100 steps to find what the machine allows, and 1000 that hold at least 80 % of it: all
  // of some machines together, whose noise differs. No step is without prompts, but for those that the pacer asks for.
  static void serve(const std::vector<std::int64_t>& numbers_of_streams, std::int64_t length,
                    const std::function<void(Served&)>& before) {
    const auto [target, stretch] = GetParam();
    std::vector<Tally> early(numbers_of_streams.size()), late(numbers_of_streams.size());
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      Served served{.pacer = StepPacer(target, stretch), .target = target, .stretch = stretch, .gpu = Gpu(seed)};
      before(served);
      for (std::size_t i = 0; i < numbers_of_streams.size(); ++i) {
        early[i].add(served.run(numbers_of_streams[i], length, 100));
        late[i].add(served.run(numbers_of_streams[i], length, 1000));
      }
    }
    for (std::size_t i = 0; i < numbers_of_streams.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "phase " << i << ", " << numbers_of_streams[i] << " streams");
      EXPECT_GE(static_cast<double>(late[i].tokens), 0.8 * static_cast<double>(late[i].allowed));
      EXPECT_LE(static_cast<double>(late[i].over), 0.03 * static_cast<double>(late[i].steps));
      EXPECT_LE(static_cast<double>(early[i].over), 0.03 * static_cast<double>(early[i].steps));
    }
  }
  static void decode_alone(Served& served) {
    for (int i = 0; i < 20; ++i) served.observe(streams(32));
  }
};

TEST_P(StepPacerGpu, FromCold) { serve({32}, 8192, decode_alone); }

TEST_P(StepPacerGpu, FromNothingMeasured) {
  serve({32}, 8192, [](Served&) {});
}

TEST_P(StepPacerGpu, FromPromptsAlone) {
  serve({32}, 8192, [](Served& served) {
    StepWork prompt;
    prompt.add_prompt(0, 8192);
    for (int i = 0; i < 4; ++i) served.observe(prompt);
    decode_alone(served);
  });
}

// A clock that stood still between two looks at it.
TEST(StepPacer, ATimeOfNothingIsNotLearned) {
  StepPacer pacer(0.0, 1.5);
  StepWork decodes;
  decodes.add_decode(8, 8 * 512);
  StepWork mixed = decodes;
  mixed.add_prompt(0, 16);
  for (int i = 0; i < 3; ++i) {
    pacer.observe(decodes, 0.0);
    pacer.observe(mixed, 0.0);
    EXPECT_EQ(pacer.predict(mixed), 0.0);
  }
  for (int i = 0; i < 30; ++i) {
    pacer.observe(decodes, 0.005);
    pacer.observe(mixed, 0.006);
  }
  EXPECT_NEAR(pacer.predict(decodes), 0.005, 1e-4);
  EXPECT_NEAR(pacer.predict(mixed), 0.006, 1e-4);
}

// Chunks of 1 to 10 tokens, each as dear as if the step's fixed part were its own.
TEST_P(StepPacerGpu, FromSmallChunks) {
  serve({32}, 8192, [](Served& served) {
    decode_alone(served);
    for (int i = 0; i < 300; ++i) {
      StepWork work = streams(32);
      work.add_prompt(i * 7, 1 + i % 10);
      served.observe(work);
    }
  });
}

TEST_P(StepPacerGpu, FromAFirstStepThatCompiles) {
  serve({32}, 8192, [](Served& served) {
    decode_alone(served);
    StepWork work = streams(32);
    work.add_prompt(0, 16);
    served.pacer.observe(work, 1.0);
  });
}

TEST_P(StepPacerGpu, FollowsTheNumberOfStreams) { serve({32, 8, 32, 60, 32}, 8192, decode_alone); }

TEST_P(StepPacerGpu, FollowsThePosition) { serve({32, 8, 32}, 32768, decode_alone); }

INSTANTIATE_TEST_SUITE_P(Bounds, StepPacerGpu,
                         testing::Values(std::pair{0.0, 1.5}, std::pair{0.03, 0.0}, std::pair{0.03, 1.5}));

}  // namespace
}  // namespace fovea
