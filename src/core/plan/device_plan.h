// Packs a plan into the one buffer that a device reads (abi/device_plan.h). Called by device backends after
// Planner::plan(): the result goes to the device in one copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "abi/device_plan.h"
#include "core/plan/planner.h"

namespace fovea {

// Which records workers begin by: abi::WorkerStart, which holds all of the first item, or the smaller abi::WarpStart,
// of plans that are cut in spans and share nothing.
enum class WorkerStarts { kItems, kWarps };

// Bytes that any plan of this planner packs into, by declared maxima; growing: with what rescheduling needs.
std::size_t max_device_plan_bytes(const Planner& planner, bool growing = false,
                                  WorkerStarts starts = WorkerStarts::kItems);

// Merges that any plan of this planner lists at most: counters that a device needs.
std::uint32_t max_device_plan_merges(const Planner& planner);

// Scratch that rescheduling any plan of this planner needs (abi/reschedule_args.h).
std::size_t max_reschedule_scratch_bytes(const Planner& planner);

// Writes the plan to `buffer` and returns the bytes used: what must be copied. kOutOfRange when the buffer is smaller.
// The first launch of the plan is packed; plans of several launches are kUnsupported, and so are, for workers that are
// warps, those of shared runs, head ranges or chunks. growth: of the same planner, for
// plans that the device may cut again (kernels/plan/reschedule.cuh); where growth.arrays is null they say that it
// cannot.
Result<std::size_t> pack_device_plan(const abi::PlanView& plan, std::span<std::byte> buffer,
                                     const PlanGrowth& growth = {}, WorkerStarts starts = WorkerStarts::kItems);

}  // namespace fovea
