// The attention kernels' own source in the emulator, against the fp64 oracle: random small cases, in random order of
// warps, with copies that land late, at once and at random times; and faults planted in it, which must show.
// FOVEA_EMULATOR_CASES, FOVEA_EMULATOR_SEED: how many cases of each instantiation, and the first one's seed;
// FOVEA_EMULATOR_ONLY: instantiations, or faults, whose names hold it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/half.h"
#include "base/thread_pool.h"
#include "tests/emulator/emulated.h"
#include "tests/emulator/faults.h"

namespace fovea::emulator_test {
namespace {

using tune::PlanKernel;

int env(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : otherwise;
}

bool is_wanted(const std::string& name) {
  const char* const only = std::getenv("FOVEA_EMULATOR_ONLY");
  return only == nullptr || name.find(only) != std::string::npos;
}

// f(i) for i in [0, count), on the threads that the machine has.
void on_threads(std::size_t count, const std::function<void(std::size_t)>& f) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) f(i);
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < default_num_threads(); ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

Circumstances circumstances(std::uint64_t seed) {
  Circumstances how;
  how.seed = seed;
  how.landing = seed % 3 == 0 ? simt::Landing::kRandom : seed % 7 == 1 ? simt::Landing::kAtOnce : simt::Landing::kLate;
  how.divides = seed % 4 != 0;
  how.first_merges = seed % 5 != 0;
  return how;
}

// Cases of the agreement tests, smaller; many of those for the kernel of shared runs share some.
testing::CaseSpec spec_of(const Instantiation& instantiation, std::uint64_t seed) {
  testing::CaseSpec spec = gpu_test::random_spec(instantiation.config, seed);
  if (instantiation.config.budget_pages > 0) return spec;
  const PlanKernel kernel = instantiation.kernel;
  const bool teams = kernel == PlanKernel::kWarpTeams;
  const bool decode = kernel == PlanKernel::kWarpPerWorker || kernel == PlanKernel::kLowBatch || teams;
  const bool prefills = kernel == PlanKernel::kPrefill;
  const bool shares = (instantiation.shared || (prefills && seed % 3 == 1)) && seed % 4 != 0;
  if (prefills) {  // few requests, or one that is divided
    const std::size_t requests = std::min<std::size_t>(spec.kv_lens.size(), seed % 3 == 0 ? 1 : 3);
    spec.kv_lens.resize(requests);
    spec.q_lens.resize(requests);
  }
  if (shares) spec.shared_tokens = 40 + static_cast<int>(seed * 37 % 200);
  if (decode) spec.shared_tokens = 0;
  if (decode && spec.mask == abi::MaskKind::kBits) spec.mask = abi::MaskKind::kCausal;
  for (std::size_t r = 0; r < spec.kv_lens.size(); ++r) {
    std::int32_t &tokens = spec.kv_lens[r], &queries = spec.q_lens[r];
    tokens = std::clamp(tokens, decode ? 1 : 0, 330);
    if (prefills && seed % 3 == 0) tokens = 300 + static_cast<int>(seed * 61 % 400);
    if (prefills && seed % 3 != 0) queries = tokens - static_cast<int>(seed % 4 * 20);
    if (shares) tokens = std::max(tokens, spec.shared_tokens + static_cast<int>(r % 3));
    // Kernels of one query token an item run drafts token by token.
    if (decode && seed % 3 == 0) queries = 1 + static_cast<int>((seed + r) % 5);
    if (teams) queries = 1 + static_cast<int>((3 * seed + 5 * r) % 18);
    const int most = teams ? 18 : decode ? 5 : prefills ? 330 : 40;
    queries = std::clamp(queries, shares || decode ? 1 : 0, std::min(tokens, most));
  }
  return spec;
}

// Some cases of the kernels that run all plans come without pages.
testing::AttentionCase case_of(const Instantiation& instantiation, std::uint64_t seed) {
  const bool prefills = instantiation.kernel == PlanKernel::kPrefill;
  const bool all_plans = prefills || (instantiation.kernel == PlanKernel::kGeneral && !instantiation.shared);
  const AttentionOptions& o = instantiation.config.options;
  const bool by_pages = o.kv_dtype == DType::kI8 || o.kv_dtype == DType::kI4 || o.kv_token_scales;
  if (!all_plans || by_pages || instantiation.config.budget_pages > 0 || seed % 4 != 2) {
    return testing::make_case(spec_of(instantiation, seed));
  }
  gpu_test::Configuration config = instantiation.config;
  config.entry = seed % 8 == 2 ? gpu_test::Entry::kRagged : gpu_test::Entry::kBlocks;
  testing::CaseSpec spec = gpu_test::random_spec(config, seed);
  for (std::size_t r = 0; r < spec.kv_lens.size(); ++r) {
    spec.kv_lens[r] = std::min(spec.kv_lens[r], 330);
    spec.q_lens[r] = std::min({spec.q_lens[r], spec.kv_lens[r], prefills ? 140 : 40});
  }
  return gpu_test::make_case(config, spec);
}

// One request, whose pairs are divided as a rule, because there are few of them.
testing::AttentionCase long_case_of(const Instantiation& instantiation, std::uint64_t seed) {
  const PlanKernel kernel = instantiation.kernel;
  testing::CaseSpec spec = gpu_test::random_spec(instantiation.config, seed);
  const int most = instantiation.config.budget_pages * instantiation.config.options.page_tokens;
  spec.kv_lens = {most > 0 ? most : 600};
  spec.q_lens = {most > 0 || kernel == PlanKernel::kWarpPerWorker || kernel == PlanKernel::kLowBatch ? 1 : 3};
  spec.shared_tokens = 0;
  if (spec.mask == abi::MaskKind::kBits || spec.mask == abi::MaskKind::kWindow) spec.mask = abi::MaskKind::kCausal;
  return testing::make_case(spec);
}

struct Counts {
  int cases = 0, divided = 0, shared = 0;
  double switches = 0, accesses = 0;
};

TEST(Emulator, KernelsAgreeWithTheOracle) {
  const int cases = env("FOVEA_EMULATOR_CASES", 10), first = env("FOVEA_EMULATOR_SEED", 1);
  std::mutex mutex;
  Counts all;
  on_threads(instantiations().size(), [&](std::size_t i) {
    const Instantiation& instantiation = instantiations()[i];
    if (!is_wanted(instantiation.name)) return;
    Emulated emulated(instantiation);
    for (int n = 0; n < cases; ++n) {
      const auto seed = static_cast<std::uint64_t>(first + n);
      const testing::AttentionCase c = case_of(instantiation, seed);
      const Verdict verdict = emulated.run(c, circumstances(seed));
      const std::lock_guard lock(mutex);
      ++all.cases;
      all.divided += verdict.divided ? 1 : 0;
      all.shared += verdict.shared ? 1 : 0;
      all.switches += static_cast<double>(verdict.outcome.switches);
      all.accesses += static_cast<double>(verdict.outcome.accesses);
      EXPECT_EQ(verdict.wrong, "") << instantiation.name << " seed " << seed << ": " << c.describe();
    }
  });
  std::printf("%d cases, %d with divided pairs, %d with shared runs; %.1f M switches, %.0f M loads and stores\n",
              all.cases, all.divided, all.shared, all.switches * 1e-6, all.accesses * 1e-6);
  if (std::getenv("FOVEA_EMULATOR_ONLY") == nullptr && cases >= 10) {
    EXPECT_GT(all.divided, 10);
    EXPECT_GT(all.shared, 5);
  }
}

// Whoever combines what workers, warps and lanes found of a row: a NaN query, or a NaN key that the row sees, makes all
// of it NaN, and leaves the others alone.
TEST(Emulator, RowsOfNaNQueriesAreNaN) {
  constexpr std::uint64_t kSeeds = 8;
  std::mutex mutex;
  std::map<std::pair<PlanKernel, bool>, int> divided, whole;  // cases, by kernel and whether it is that of shared runs
  on_threads(instantiations().size(), [&](std::size_t i) {
    const Instantiation& instantiation = instantiations()[i];
    if (!is_wanted(instantiation.name)) return;
    Emulated emulated(instantiation);
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      testing::AttentionCase c = seed % 2 == 0 ? case_of(instantiation, seed) : long_case_of(instantiation, seed);
      gpu_test::plant_nan(c, seed / 2);
      const Verdict verdict = emulated.run(c, circumstances(seed));
      const std::lock_guard lock(mutex);
      ++(verdict.divided ? divided : whole)[{instantiation.kernel, instantiation.shared}];
      EXPECT_EQ(verdict.wrong, "") << instantiation.name << " seed " << seed << ": " << c.describe();
    }
  });
  if (std::getenv("FOVEA_EMULATOR_ONLY") != nullptr) return;
  for (const Instantiation& i : instantiations()) {
    EXPECT_GT((divided[{i.kernel, i.shared}]), 0) << i.name;
    EXPECT_GT((whole[{i.kernel, i.shared}]), 0) << i.name;
  }
}

// Kernels with checks follow no page outside of the pool, by whatever loader: rows that would have read it are NaN, all
// others have the bits that they have beside a good one.
TEST(Emulator, RowsThatWouldReadOutsideOfThePoolAreNaN) {
  std::mutex mutex;
  on_threads(instantiations().size(), [&](std::size_t i) {
    const Instantiation& instantiation = instantiations()[i];
    if (!instantiation.config.options.checked || !is_wanted(instantiation.name)) return;
    Emulated emulated(instantiation);
    int requests_tried = 0;
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      testing::CaseSpec spec = spec_of(instantiation, seed);
      if (spec.mask == abi::MaskKind::kBits) spec.mask = abi::MaskKind::kCausal;
      const testing::AttentionCase c = testing::make_case(spec);
      const Verdict good = emulated.run(c, circumstances(seed));
      const std::size_t row_halves =
          static_cast<std::size_t>(instantiation.config.options.num_qo_heads) * instantiation.config.options.head_dim;
      std::size_t first_row = 0;
      for (int r = 0; r < c.num_requests(); ++r) {
        const auto rows = static_cast<std::size_t>(spec.q_lens[static_cast<std::size_t>(r)]);
        const std::size_t begin = first_row;
        first_row += rows;
        if (rows == 0 || spec.kv_lens[static_cast<std::size_t>(r)] == 0) continue;
        Circumstances how = circumstances(seed);
        how.bad_request = r;
        const Verdict bad = emulated.run(c, how);
        const std::lock_guard lock(mutex);
        ++requests_tried;
        const std::string what = instantiation.name + " seed " + std::to_string(seed) + ": " + c.describe();
        ASSERT_EQ(bad.wrong, "") << what;
        ASSERT_EQ(good.wrong, "") << what;
        std::size_t numbers = 0, other_bits = 0;
        for (std::size_t n = 0; n < good.out.size(); ++n) {
          const std::size_t row = n / row_halves;
          if (row < begin || row >= begin + rows) other_bits += good.out[n] != bad.out[n] ? 1 : 0;
          // The last query token sees the last page.
          if (row == begin + rows - 1) numbers += std::isnan(bf16_to_float(bad.out[n])) ? 0 : 1;
        }
        EXPECT_EQ(numbers, 0u) << "request " << r << " of " << what;
        EXPECT_EQ(other_bits, 0u) << "beside request " << r << " of " << what;
      }
    }
    const std::lock_guard lock(mutex);
    EXPECT_GT(requests_tried, 5) << instantiation.name;
  });
}

// A wait for what never comes ends the launch of a kernel with checks.
TEST(Emulator, KernelsWithChecksDoNotWaitForGood) {
  const auto fault = std::find_if(faults().begin(), faults().end(),
                                  [](const Fault& f) { return f.name == std::string("a part is never written"); });
  ASSERT_NE(fault, faults().end());
  const Instantiation& instantiation = find_instantiation(fault->instantiation);
  Emulated emulated(instantiation);
  int given_up = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const testing::AttentionCase c = testing::make_case(spec_of(instantiation, seed));
    Circumstances how = circumstances(seed);
    how.clocks = 1000;
    EXPECT_EQ(emulated.run(c, how).wrong, "") << "seed " << seed << ": " << c.describe();
    how.clocks = 10'000'000;
    how.fault = number_of(*fault);
    const std::string wrong = emulated.run(c, how).wrong;
    given_up += wrong.find("__trap") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(given_up, 2);
}

TEST(Emulator, PlantedFaultsAreCaught) {
  constexpr int kMostTries = 30;
  std::mutex mutex;
  on_threads(faults().size(), [&](std::size_t i) {
    const Fault& fault = faults()[i];
    if (!is_wanted(fault.name)) return;
    const Instantiation& instantiation = find_instantiation(fault.instantiation);
    Emulated emulated(instantiation);
    std::string caught;
    int tries = 0;
    while (caught.empty() && tries < kMostTries) {
      const auto seed = static_cast<std::uint64_t>(++tries);
      Circumstances how = circumstances(seed);
      how.fault = number_of(fault);
      caught = emulated.run(testing::make_case(spec_of(instantiation, seed)), how).wrong;
    }
    const std::lock_guard lock(mutex);
    EXPECT_NE(caught, "") << "nothing shows that " << fault.name << " (" << fault.instantiation << ")";
    std::printf("%s (%s, case %d): %.300s\n", fault.name, fault.instantiation, tries, caught.c_str());
  });
}

}  // namespace
}  // namespace fovea::emulator_test
