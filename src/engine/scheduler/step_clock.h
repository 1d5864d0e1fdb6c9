// StepClock: ends the part of a chunk that a step computes, so that the step takes the time that it may. What it takes
// beyond the moment at which it was told to end is learned, and left free at the end of later ones. Owned by the
// engine; due() is asked by the threads that compute.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "base/pause.h"

namespace fovea {

class StepClock final : public Pause {
 public:
  explicit StepClock(std::function<double()> now) : now_(std::move(now)) {}

  // A step that began then may take so many seconds.
  void begin_step(double begin, double seconds) {
    begin_ = begin;
    seconds_ = seconds;
    if (overrun_ < 0.0) overrun_ = kFirstOverrun * seconds;
  }
  // The decodes are done: the chunk has what they left, and at least so many seconds.
  void begin_part(double least_seconds) {
    const double left_free = std::min(overrun_, kMostOverrun * seconds_);
    end_ = std::max(begin_ + seconds_ - left_free, now_() + least_seconds);
  }
  bool due() const override { return now_() >= end_; }
  // The step is over, whose chunk was left.
  void end_step() {
    const double by = kStep * seconds_;
    overrun_ = std::max(0.0, overrun_ + (now_() - end_ > overrun_ ? by : -by / kInBalance));
  }

 private:
  static constexpr double kFirstOverrun = 0.15;  // of a step
  static constexpr double kMostOverrun = 0.5;    // beyond it the machine is too unsteady for a bound
  static constexpr double kStep = 0.05;
  static constexpr double kInBalance = 199.0;  // what is left free is exceeded by one step of 200

  std::function<double()> now_;
  double begin_ = 0.0, seconds_ = 0.0;
  double end_ = 0.0;       // of the part; not changed while it is computed
  double overrun_ = -1.0;  // not known yet
};

}  // namespace fovea
