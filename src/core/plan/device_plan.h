// Packs a plan into the one buffer that a device reads (abi/device_plan.h). Called by device backends after
// Planner::plan(): the result goes to the device in one copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "abi/device_plan.h"
#include "core/plan/planner.h"

namespace fovea {

// Bytes that any plan of this planner packs into, by declared maxima.
std::size_t max_device_plan_bytes(const Planner& planner);

// Merges that any plan of this planner lists at most: counters that a device needs.
std::uint32_t max_device_plan_merges(const Planner& planner);

// Writes the plan to `buffer` and returns the bytes used: what must be copied. kOutOfRange when the buffer is smaller.
// The first launch of the plan is packed; plans of several launches are kUnsupported.
Result<std::size_t> pack_device_plan(const abi::PlanView& plan, std::span<std::byte> buffer);

}  // namespace fovea
