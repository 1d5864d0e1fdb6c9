// What the emulator makes of single instructions: layouts of wgmma, boxes and bulk copies and stores, matrices through
// shared memory, named barriers; and that it sees each of them done wrongly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/half.h"
#include "testing/simt/launch.h"

extern "C" void simt_probes(const void* const* params);

namespace fovea::emulator_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// As in probes.cuh.
struct Arguments {
  const std::uint16_t* a;
  const std::uint16_t* b;
  float* out;
  std::uint16_t* halves;
  std::uint32_t mode;
  std::uint32_t swizzle;
};
enum Which : std::uint32_t { kMultiply, kMultiplyTransposed, kCopyTile, kCopyBytes, kHandOver };

struct Probe {
  std::vector<std::uint16_t> a, b, halves;
  std::vector<float> out;

  Probe() : a(64 * 64), b(16 * 64), halves(1024), out(64 * 16) {
    std::mt19937 random(3);
    for (auto* values : {&a, &b}) {
      for (std::uint16_t& x : *values) x = float_to_bf16(static_cast<float>(static_cast<int>(random() % 15) - 7));
    }
  }
  std::string run(Which which, std::uint32_t threads, std::uint32_t mode, std::uint64_t seed,
                  simt::Landing landing = simt::Landing::kLate, std::uint32_t swizzle = 1) {
    const Arguments args{a.data(), b.data(), out.data(), halves.data(), mode, swizzle};
    const std::uint32_t number = which;
    simt::TensorMapSpec spec;
    spec.rank = 2;
    spec.dims[0] = spec.box[0] = 64;
    spec.dims[1] = spec.box[1] = 8;
    spec.strides[1] = 128;
    spec.swizzle_bytes = 128;
    spec.address = a.data();
    const simt::TensorMap in = simt::encode(spec);
    spec.address = halves.data();
    const simt::TensorMap to = simt::encode(spec);
    simt::Launch launch;
    launch.kernel = simt_probes;
    launch.block = threads;
    launch.shared_bytes = 16 << 10;
    launch.seed = seed;
    launch.landing = landing;
    launch.params = {&args, &number, &in, &to};
    launch.buffers = {{"a", a.data(), which == kCopyBytes ? 512 : a.size() * 2},
                      {"b", b.data(), b.size() * 2},
                      {"out", out.data(), out.size() * 4, true},
                      {"halves", halves.data(), halves.size() * 2, true}};
    return simt::run(launch).error;
  }
  // The product of a and b, exact in fp32.
  std::vector<float> product() const {
    std::vector<float> d(64 * 16);
    for (std::size_t row = 0; row < 64; ++row) {
      for (std::size_t column = 0; column < 16; ++column) {
        for (std::size_t k = 0; k < 64; ++k) {
          d[row * 16 + column] += bf16_to_float(a[row * 64 + k]) * bf16_to_float(b[column * 64 + k]);
        }
      }
    }
    return d;
  }
};

constexpr simt::Landing kLandings[] = {simt::Landing::kLate, simt::Landing::kAtOnce, simt::Landing::kRandom};

TEST(Probes, WgmmaReadsEveryLayout) {
  for (const std::uint32_t swizzle : {0, 1, 2, 3}) {
    for (const simt::Landing landing : kLandings) {
      Probe probe;
      EXPECT_EQ(probe.run(kMultiply, 128, 0, swizzle + 1, landing, swizzle), "");
      EXPECT_EQ(probe.out, probe.product()) << "swizzle " << swizzle;
      if (swizzle == 0) continue;
      Probe transposed;
      EXPECT_EQ(transposed.run(kMultiplyTransposed, 128, 0, 1, landing, swizzle), "");
      EXPECT_EQ(transposed.out, transposed.product()) << "transposed, swizzle " << swizzle;
    }
  }
}

TEST(Probes, WgmmaUsedWronglyShows) {
  EXPECT_THAT(Probe().run(kMultiply, 128, 1, 1), HasSubstr("no proxy fence"));
  EXPECT_THAT(Probe().run(kMultiply, 128, 3, 1), HasSubstr("no wgmma.fence"));
  EXPECT_THAT(Probe().run(kMultiply, 128, 4, 1), HasSubstr("a race"));
  for (const simt::Landing landing : kLandings) {
    Probe early;
    EXPECT_EQ(early.run(kMultiply, 128, 2, 1, landing), "");
    for (const float x : early.out) EXPECT_TRUE(std::isnan(x));
  }
}

TEST(Probes, BoxesComeAndGo) {
  for (const simt::Landing landing : kLandings) {
    Probe probe;
    EXPECT_EQ(probe.run(kCopyTile, 64, 0, 5, landing), "");
    for (std::size_t i = 0; i < 512; ++i) {
      EXPECT_EQ(probe.halves[i], static_cast<std::uint16_t>(probe.a[i] + probe.b[i])) << i;
    }
  }
}

TEST(Probes, BoxesUsedWronglyShow) {
  for (const simt::Landing landing : kLandings) {
    EXPECT_THAT(Probe().run(kCopyTile, 64, 1, 1, landing), HasSubstr("no proxy fence"));
    EXPECT_THAT(Probe().run(kCopyTile, 64, 3, 1, landing), AnyOf(HasSubstr("a race"), HasSubstr("ended while a box")));
    EXPECT_THAT(Probe().run(kCopyTile, 64, 4, 1, landing), HasSubstr("16 bytes to come"));
  }
  EXPECT_THAT(Probe().run(kCopyTile, 64, 2, 1), HasSubstr("a race"));
}

TEST(Probes, BytesComeAndGo) {
  for (const simt::Landing landing : kLandings) {
    Probe probe;
    EXPECT_EQ(probe.run(kCopyBytes, 32, 0, 7, landing), "");
    for (std::size_t i = 0; i < 256; ++i) EXPECT_EQ(probe.halves[i], probe.a[i]) << i;
  }
  EXPECT_THAT(Probe().run(kCopyBytes, 32, 1, 1), HasSubstr("reads 528 bytes where there is nothing for it"));
  EXPECT_THAT(Probe().run(kCopyBytes, 32, 2, 1), HasSubstr("16 bytes at shared address"));
}

TEST(Probes, BarriersOrderWarps) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Probe probe;
    EXPECT_EQ(probe.run(kHandOver, 64, 0, seed), "");
    // Thread 32 + i reads word 31 - i, and has that of the lane at the other end.
    for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(probe.out[i], static_cast<float>(i));
    EXPECT_THAT(Probe().run(kHandOver, 64, 1, seed), HasSubstr("barrier 3: 32 of 64 threads"));
    EXPECT_THAT(Probe().run(kHandOver, 64, 2, seed), HasSubstr("a race"));
    EXPECT_THAT(Probe().run(kHandOver, 64, 3, seed), HasSubstr("nobody can go on"));
  }
}

}  // namespace
}  // namespace fovea::emulator_test
