// Rescheduling of device plans on a GPU: the cases that it also passes on the host, and how long it takes.
#include <cstdio>

#include "base/status.h"
#include "jit/cache_spec.h"
#include "tests/kernels/gpu.h"
#include "tests/kernels/reschedule_case.h"

namespace fovea::kernel_test {
namespace {

using namespace reschedule_case;

constexpr std::uint32_t kSmemBytes = 96 << 10;

class RescheduleGpuTest : public GpuTest {
 protected:
  struct OnDevice {
    cuda::DeviceBuffer plan, kv_lens, scratch;
    abi::RescheduleArgs args{};
  };
  OnDevice upload(const std::vector<std::byte>& plan, const std::vector<std::int32_t>& kv_lens, const Planner& planner,
                  std::uint32_t smem_bytes) {
    OnDevice d;
    const std::size_t lens_bytes = kv_lens.size() * sizeof(std::int32_t);
    const Status status = [&]() -> Status {
      FOVEA_ASSIGN_OR_RETURN(d.plan, cuda::DeviceBuffer::create(*device_, plan.size()));
      FOVEA_ASSIGN_OR_RETURN(d.kv_lens, cuda::DeviceBuffer::create(*device_, lens_bytes));
      FOVEA_ASSIGN_OR_RETURN(d.scratch, cuda::DeviceBuffer::create(*device_, max_reschedule_scratch_bytes(planner)));
      FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(*device_, d.plan.data(), plan.data(), plan.size(), stream_.handle()));
      return cuda::copy_to_device(*device_, d.kv_lens.data(), kv_lens.data(), lens_bytes, stream_.handle());
    }();
    EXPECT_TRUE(status.ok()) << status.to_string();
    d.args = {d.plan.as<std::uint8_t>(), d.kv_lens.as<std::int32_t>(), d.scratch.as<std::uint8_t>(), smem_bytes, 0};
    return d;
  }
  cuda::Function reschedule_kernel() {
    cuda::Function function = kernel(jit::reschedule_source(device_->info().arch()), "fovea_reschedule");
    EXPECT_TRUE(function.handle() != nullptr && function.set_max_smem(kSmemBytes).ok());
    return function;
  }
};

// Scratch in shared memory where it fits, and in global memory.
TEST_F(RescheduleGpuTest, WritesWhatTheHostWould) {
  const cuda::Function function = reschedule_kernel();
  for (const std::uint32_t smem_bytes : {kSmemBytes, 0u}) {
    const auto reschedule = [&](std::vector<std::byte>& plan, const std::vector<std::int32_t>& kv_lens,
                                const Planner& planner) {
      OnDevice d = upload(plan, kv_lens, planner, smem_bytes);
      enqueue(function, 1, abi::kRescheduleThreads, {&d.args}, smem_bytes);
      ASSERT_TRUE(cuda::copy_to_host(*device_, plan.data(), d.plan.data(), plan.size(), stream_.handle()).ok());
      wait();
    };
    check_random_batches(200, reschedule);
    check_decode_at_scale(reschedule);
  }
}

TEST_F(RescheduleGpuTest, Time) {
  const cuda::Function function = reschedule_kernel();
  for (const int requests : {1, 16, 64, 256}) {
    const PagedBatch batch =
        flat_batch(constant_lengths(requests, 1), constant_lengths(requests, 4096), 16, PageOrder::kSequential, 0, 64);
    PlannerOptions options;
    options.num_workers = 132;
    options.cost_item_bytes = 16 << 10;
    options.cost_balance_rows = 64;
    options.limits = batch.limits(64);
    Planner planner = Planner::create(options).value();
    ASSERT_TRUE(planner.plan(batch.view()).ok());
    for (const std::uint32_t smem_bytes : {kSmemBytes, 0u}) {
      OnDevice d = upload(device_plan(planner), batch.kv_lens, planner, smem_bytes);
      const double us =
          microseconds(100, [&] { enqueue(function, 1, abi::kRescheduleThreads, {&d.args}, smem_bytes); });
      std::printf("%d requests, 8 KV heads, 132 workers, scratch in %s memory: %.2f us\n", requests,
                  smem_bytes != 0 ? "shared" : "global", us);
    }
  }
}

}  // namespace
}  // namespace fovea::kernel_test
