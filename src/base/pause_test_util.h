// A Pause that tests count: for those of attention and of the model.
#pragma once

#include <atomic>

#include "base/pause.h"

namespace fovea {

// Due once it was asked so often.
class PauseAfter : public Pause {
 public:
  explicit PauseAfter(int asks) : left_(asks) {}
  bool due() const override { return left_.fetch_sub(1) <= 0; }

 private:
  mutable std::atomic<int> left_;
};

}  // namespace fovea
