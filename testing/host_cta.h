// A CTA on the host: its threads run one after the other, in random order, so that a result that depends on the order
// shows. What tests give kernels that are written in steps (kernels/plan/cta.cuh).
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace fovea {

struct HostCta {
  std::mt19937_64& random;
  std::vector<std::uint32_t>& order;  // the threads' numbers
  std::uint32_t threads() const { return static_cast<std::uint32_t>(order.size()); }
  template <typename Step>
  void each_thread(const Step& step) const {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::uint32_t thread : order) step(thread);
  }
};

}  // namespace fovea
