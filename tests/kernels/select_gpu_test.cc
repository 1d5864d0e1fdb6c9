// Page selection on a GPU: the cases that its kernels also pass on the host, and larger ones.
#include <cstdio>

#include "base/status.h"
#include "jit/any_spec.h"
#include "tests/kernels/gpu.h"
#include "tests/kernels/select_case.h"

namespace fovea::kernel_test {
namespace {

class SelectGpuTest : public GpuTest {};

TEST_F(SelectGpuTest, ListsAreThoseOfTheHost) {
  const cuda::Function function =
      kernel(jit::select_source(device_->info().arch(), abi::KvDType::kBF16), "fovea_select");
  ASSERT_TRUE(function.handle() != nullptr && function.set_max_smem(160 << 10).ok());
  const auto launch = [&](abi::SelectArgs args) {
    enqueue(function, abi::select_ctas(args), abi::kSelectThreads, {&args}, args.cached_keys * sizeof(std::uint32_t));
    wait();
  };
  check_selections(100, 1, launch);
  check_selections(12, 20, launch);
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
