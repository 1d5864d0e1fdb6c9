// A packed plan (abi/device_plan.h) as executors of the host read it. For tests that stand in for a device.
#pragma once

#include <cstdint>
#include <vector>

#include "abi/device_plan.h"

namespace fovea {

// view: of the plan's own arrays where it has them, else of those here. Fields that a call brings, page lists and what
// goes with them, are null.
struct DevicePlanView {
  explicit DevicePlanView(const std::uint8_t* plan);
  DevicePlanView(const DevicePlanView&) = delete;
  DevicePlanView& operator=(const DevicePlanView&) = delete;

  abi::PlanView view{};

 private:
  void expand_merges(const std::uint8_t* plan);
  void expand_warps(const std::uint8_t* plan);

  abi::DevicePlanHeader header_;
  abi::Launch launch_{};
  std::vector<std::uint32_t> queue_begin_, queue_, merge_parts_;
  std::vector<abi::WorkItem> items_;
  std::vector<abi::MergeEntry> merges_;
};

}  // namespace fovea
