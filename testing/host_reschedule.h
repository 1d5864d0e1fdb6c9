// The kernel that cuts plans again (kernels/plan/reschedule.cuh), its own source run on the host. For tests of it and
// of those who launch it.
#pragma once

#include <random>

#include "abi/reschedule_args.h"

namespace fovea {

// One step at a time, its threads in random order: a result that depends on the order is a race.
void reschedule_on_host(const abi::RescheduleArgs& args, std::mt19937_64& random);

}  // namespace fovea
