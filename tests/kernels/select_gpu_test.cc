// Page selection on a GPU: the cases that its kernels also pass on the host, and larger ones.
#include <cstdio>

#include "base/status.h"
#include "jit/cache_spec.h"
#include "tests/kernels/gpu.h"
#include "tests/kernels/select_case.h"

namespace fovea::kernel_test {
namespace {

class SelectGpuTest : public GpuTest {
 protected:
  void check_lists(std::uint64_t num_seeds, std::int32_t scale) {
    const cuda::Function function =
        kernel(jit::select_source(device_->info().arch(), abi::KvDType::kBF16), "fovea_select");
    const bool clusters = device_->info().major >= 9;
    ASSERT_TRUE(function.handle() != nullptr && function.set_max_smem((clusters ? 200 : 142) << 10).ok());
    check_selections(num_seeds, scale, [&](abi::SelectArgs args) {
      if (!clusters) args.splits = 1;
      // Clusters keep all keys of a CTA's share.
      const std::uint32_t least = clusters ? abi::select_share(args.max_units, args.splits) : 0;
      args.cached_keys = std::max(std::min(args.cached_keys, (clusters ? 7u : 1u) << 10), least);
      args.cached_entries = std::min(args.cached_entries, (clusters ? 7u : 0u) << 10);
      enqueue(function, abi::select_ctas(args), abi::kSelectThreads, {&args},
              abi::select_smem_bytes(args.cached_keys, args.cached_entries), args.splits);
      wait();
    });
  }
};

// So few that sanitizers get through them.
TEST_F(SelectGpuTest, FewListsAreThoseOfTheHost) { check_lists(12, 1); }

TEST_F(SelectGpuTest, ListsAreThoseOfTheHost) {
  check_lists(100, 1);
  check_lists(12, 20);
}

TEST_F(SelectGpuTest, CodesAreTheNearest) {
  const cuda::Function function =
      kernel(jit::key_codes_source(device_->info().arch(), abi::KvDType::kBF16), "fovea_key_codes");
  for (std::uint64_t seed = 0; seed < 50 && !HasFatalFailure(); ++seed) {
    check_key_codes(seed, [&](abi::CodesArgs args) {
      enqueue(function, abi::codes_ctas(args), abi::kCodesThreads, {&args});
      wait();
    });
  }
}

}  // namespace
}  // namespace fovea::kernel_test
