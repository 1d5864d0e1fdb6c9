// The kernel that moves tokens of the KV cache, in the emulator: against the same on the host, without races, and
// nothing touched beside the tokens.
#include <gtest/gtest.h>

#include "testing/simt/launch.h"
#include "tests/kernels/move_case.h"

extern "C" void simt_moves(const void* const* params);

namespace fovea::emulator_test {
namespace {

TEST(EmulatedMoves, AreThoseOfTheHost) {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    kernel_test::MoveCase c(seed);
    const abi::MoveTokensArgs& args = c.args();
    simt::Launch launch;
    launch.kernel = simt_moves;
    launch.grid = args.num_planes;
    launch.block = abi::kMoveThreads;
    launch.seed = seed;
    launch.params = {&args};
    launch.buffers = {{"arguments", &args, sizeof args},
                      {"planes", args.planes, args.num_planes * sizeof(abi::KvPlane)}};
    c.for_each_memory([&](auto& memory) { launch.buffers.push_back({"pages", memory.data(), memory.size(), true}); });
    const simt::Outcome outcome = simt::run(launch);
    ASSERT_EQ(outcome.error, "");
    c.check();
  }
}

}  // namespace
}  // namespace fovea::emulator_test
