// The kernel that moves tokens of the KV cache, in the emulator: against the same on the host, without races, and
// nothing touched beside the tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "abi/token_moves.h"
#include "testing/simt/launch.h"

extern "C" void simt_moves(const void* const* params);

namespace fovea::emulator_test {
namespace {

// A plane of a group: heads, bytes of a row, and where its pages lie.
struct Plane {
  std::uint32_t group, heads, row_bytes;
  std::vector<std::byte> memory;
};

TEST(EmulatedMoves, AreThoseOfTheHost) {
  constexpr std::uint32_t kPages = 6;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<std::uint32_t>(seed));
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    const std::uint32_t page_tokens = seed % 4 == 0 ? 1 : 16, groups = static_cast<std::uint32_t>(seed % 3) + 1;
    abi::MoveTokensArgs args{};
    args.num_groups = groups;
    args.page_tokens = page_tokens;
    // K, V and scales: 256 elements of bf16, 80 of fp8, 32 of int4, and the two halves of a scale. One has no heads.
    const std::uint32_t rows[] = {512, 80, 16, 4, 64};
    std::vector<Plane> planes;
    for (std::uint32_t i = 0; i < 5; ++i) {
      Plane plane{below(groups), i == 4 ? 0 : 1 + below(5), rows[i], {}};
      plane.memory.resize(std::size_t{kPages} * page_tokens * plane.heads * plane.row_bytes + 16);
      for (std::byte& byte : plane.memory) byte = static_cast<std::byte>(random());
      planes.push_back(std::move(plane));
    }
    // Chains within a page of a group's own tokens, whose places are each other's, and moves between pages; more than
    // are read at once.
    const std::uint32_t slots = kPages * page_tokens, most = std::min(slots - 1, seed % 5 == 0 ? 19u : 6u);
    args.num_moves = 1 + below(most);
    for (std::uint32_t g = 0; g < groups; ++g) {
      std::vector<std::int32_t> order(slots);
      for (std::uint32_t i = 0; i < slots; ++i) order[i] = static_cast<std::int32_t>(i);
      if (seed % 2 == 0) std::shuffle(order.begin(), order.end(), random);
      const std::uint32_t step = std::max(1u, (slots - 1) / args.num_moves);
      std::uint32_t from = 0;
      for (std::uint32_t m = 0; m < args.num_moves; ++m) {  // the m-th place from one behind it and behind the last
        from = std::min(from + 1 + below(step), slots - args.num_moves + m);
        args.moves[m * groups + g] = {order[from], order[m]};
      }
    }
    std::vector<Plane> expected = planes;
    const auto planes_of = [&](std::vector<Plane>& of) {
      std::vector<abi::KvPlane> made;
      for (Plane& plane : of) {
        abi::KvPlane at{};
        at.base = plane.memory.data();
        at.row_bytes = plane.row_bytes;
        at.head_stride = std::int64_t{page_tokens} * plane.row_bytes;
        at.page_stride = plane.heads * at.head_stride;
        at.heads = plane.heads;
        at.group = plane.group;
        made.push_back(at);
      }
      return made;
    };
    args.num_planes = static_cast<std::uint32_t>(planes.size());
    const std::vector<abi::KvPlane> on_host = planes_of(expected), on_device = planes_of(planes);
    args.planes = on_host.data();
    abi::move_tokens_on_host(args);

    args.planes = on_device.data();
    simt::Launch launch;
    launch.kernel = simt_moves;
    launch.grid = args.num_planes;
    launch.block = abi::kMoveThreads;
    launch.seed = seed;
    launch.params = {&args};
    launch.buffers = {{"arguments", &args, sizeof args},
                      {"planes", on_device.data(), on_device.size() * sizeof(abi::KvPlane)}};
    for (Plane& plane : planes) launch.buffers.push_back({"pages", plane.memory.data(), plane.memory.size(), true});
    const simt::Outcome outcome = simt::run(launch);
    ASSERT_EQ(outcome.error, "");
    for (std::size_t p = 0; p < planes.size(); ++p) EXPECT_EQ(planes[p].memory, expected[p].memory) << "plane " << p;
  }
}

}  // namespace
}  // namespace fovea::emulator_test
