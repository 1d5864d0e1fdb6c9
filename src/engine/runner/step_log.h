// StepLog: what the latest steps did, on the host and on the device, for `fovea bench serve --timeline`. Owned by the
// engine, which has none unless EngineOptions::step_log asks for it; on the engine's thread alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "device/device.h"
#include "fovea/engine_view.h"

namespace fovea {

class StepLog {
 public:
  // Keeps so many steps.
  StepLog(Device& device, std::size_t steps) : device_(device), steps_(steps) {}

  void add(const char* name, double begin, double end);
  // What is enqueued from here to device_ends() is a step of so many sequences and tokens.
  void device_begins(std::size_t sequences, std::size_t tokens);
  void device_ends();
  // By lane, in order; steps that the device is still at are left out.
  std::vector<StepSpan> spans() const;

  static double now();

  // From here to the end of the block the host does `name`. Nothing without a log.
  class Phase {
   public:
    Phase(StepLog* log, const char* name) : log_(log), name_(name), begin_(log == nullptr ? 0.0 : now()) {}
    ~Phase() {
      if (log_ != nullptr) log_->add(name_, begin_, now());
    }
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

   private:
    StepLog* log_;
    const char* name_;
    double begin_;
  };

 private:
  static constexpr std::size_t kPhasesOfAStep = 8;  // at most
  struct DeviceStep {
    std::uint64_t number = 0;  // its marks are the two of number % steps_
    std::size_t sequences = 0, tokens = 0;
  };

  Device& device_;
  std::size_t steps_;
  std::deque<StepSpan> host_;
  std::deque<DeviceStep> device_steps_;
  std::uint64_t next_ = 0;
};

}  // namespace fovea
