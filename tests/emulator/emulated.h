// Attention of a case on the emulated device: plans as the product makes them, a launch of one of its kernels in the
// emulator, and what is to be said about the result. Used by the tests of this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "testing/attention_case.h"
#include "testing/simt/launch.h"
#include "tests/emulator/instantiations.h"

namespace fovea::emulator_test {

// What varies from launch to launch.
struct Circumstances {
  std::uint64_t seed = 1;
  simt::Landing landing = simt::Landing::kLate;
  bool divides = true;       // plans are cut however little that saves
  bool first_merges = true;  // see abi::AttentionArgs
  int fault = 0;
  std::uint64_t clocks = 1;  // see simt::Launch
  int bad_request = -1;      // its last page lies outside of the pool; results are not judged then
};

struct Verdict {
  std::string wrong;  // empty: nothing
  simt::Outcome outcome;
  bool divided = false;  // some pair was
  bool shared = false;   // some run was read for several requests
  std::vector<std::uint16_t> out;
  std::vector<float> lse;
};

class Emulated {
 public:
  explicit Emulated(const Instantiation& instantiation);
  ~Emulated();
  Verdict run(const testing::AttentionCase& c, const Circumstances& how);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea::emulator_test
