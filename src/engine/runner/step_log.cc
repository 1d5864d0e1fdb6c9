// Keeps what the latest steps did; see step_log.h.
#include "engine/runner/step_log.h"

#include <chrono>

namespace fovea {

double StepLog::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void StepLog::add(const char* name, double begin, double end) {
  host_.push_back({name, false, begin, end, 0, 0});
  if (host_.size() > steps_ * kPhasesOfAStep) host_.pop_front();
}

void StepLog::device_begins(std::size_t sequences, std::size_t tokens) {
  // A device without times of its own marks none: then there are no spans of it.
  if (!device_.mark_time(2 * (next_ % steps_)).ok()) return;
  device_steps_.push_back({next_, sequences, tokens});
  if (device_steps_.size() > steps_) device_steps_.pop_front();
}

void StepLog::device_ends() {
  (void)device_.mark_time(2 * (next_ % steps_) + 1);
  ++next_;
}

std::vector<StepSpan> StepLog::spans() const {
  std::vector<StepSpan> out(host_.begin(), host_.end());
  for (const DeviceStep& step : device_steps_) {
    if (step.number >= next_) continue;
    const std::size_t mark = 2 * (step.number % steps_);
    const std::optional<double> begin = device_.marked_time(mark), end = device_.marked_time(mark + 1);
    if (!begin.has_value() || !end.has_value() || *end < *begin) continue;
    out.push_back({"step", true, *begin, *end, static_cast<std::int32_t>(step.sequences),
                   static_cast<std::int32_t>(step.tokens)});
  }
  return out;
}

}  // namespace fovea
