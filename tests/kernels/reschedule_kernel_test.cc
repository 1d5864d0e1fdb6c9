// Rescheduling of device plans, its own source run on the host with threads in random order.
#include "testing/host_reschedule.h"
#include "tests/kernels/reschedule_case.h"

namespace fovea::kernels {
namespace {

using namespace reschedule_case;

void reschedule_on_host(std::vector<std::byte>& plan, const std::vector<std::int32_t>& kv_lens, const Planner& planner,
                        std::mt19937_64& random) {
  std::vector<std::uint8_t> scratch(max_reschedule_scratch_bytes(planner), 0x5a);
  abi::RescheduleArgs args{};
  args.plan = reinterpret_cast<std::uint8_t*>(plan.data());
  args.kv_lens = kv_lens.data();
  args.scratch = scratch.data();
  fovea::reschedule_on_host(args, random);
}

const abi::DevicePlanHeader& header_of(const std::vector<std::byte>& plan) {
  return *reinterpret_cast<const abi::DevicePlanHeader*>(plan.data());
}

TEST(RescheduleKernelTest, WritesWhatTheHostWould) {
  std::mt19937_64 random(7);
  const auto reschedule = [&](auto& plan, const auto& kv_lens, const Planner& planner) {
    reschedule_on_host(plan, kv_lens, planner, random);
  };
  check_random_batches(1500, reschedule);
  check_decode_at_scale(reschedule);
}

TEST(RescheduleKernelTest, LeavesPlansThatItCannotCutAsTheyWere) {
  std::mt19937_64 random(1);
  PagedBatch batch = flat_batch(constant_lengths(5, 1), constant_lengths(5, 100), 16, PageOrder::kRandom, 1, 20);
  PlannerOptions options;
  options.num_workers = 7;
  options.limits = batch.limits(20);
  Planner planner = Planner::create(options).value();
  ASSERT_TRUE(planner.plan(batch.view()).ok());
  const std::vector<std::int32_t> good(5, 110);
  const std::int64_t most = planner.growth().max_tokens;
  for (const std::int64_t wrong : {std::int64_t{99}, most + 1}) {
    std::vector<std::byte> device = device_plan(planner);
    const auto before = sections(device.data());
    std::vector<std::int32_t> kv_lens(5, 110);
    kv_lens[3] = static_cast<std::int32_t>(wrong);
    reschedule_on_host(device, kv_lens, planner, random);
    EXPECT_EQ(header_of(device).reschedule_error, 4u);
    auto after = sections(device.data());
    after[0] = before[0];
    EXPECT_TRUE(after == before);
    reschedule_on_host(device, good, planner, random);
    EXPECT_EQ(header_of(device).reschedule_error, 0u);
    EXPECT_EQ(header_of(device).counts.generation, planner.view().header->generation + 1);
  }
  // Packing that depends on lengths, and chunks, are the host's.
  options.batch_invariant = true;
  Planner invariant = Planner::create(options).value();
  ASSERT_TRUE(invariant.plan(batch.view()).ok());
  EXPECT_EQ(invariant.growth().arrays, nullptr);
  std::vector<std::byte> device = device_plan(invariant);
  reschedule_on_host(device, good, planner, random);
  EXPECT_EQ(header_of(device).reschedule_error, abi::kNone);
  set_random_bits(batch, 10, 1);
  ASSERT_TRUE(planner.plan(batch.view()).ok());
  EXPECT_EQ(planner.growth().arrays, nullptr);
}

}  // namespace
}  // namespace fovea::kernels
