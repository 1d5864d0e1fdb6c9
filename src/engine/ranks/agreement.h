// What the ranks of tensor parallelism must agree on before they compute together. Called while an engine is set up, by
// all ranks in the same order.
#pragma once

#include <cstdint>
#include <span>

#include "device/group/process_group.h"
#include "fovea/engine.h"
#include "fovea/status.h"

namespace fovea {

// Every rank was started with the same options and loaded the same model.
Status check_same_engine(ProcessGroup& group, const EngineOptions& options, std::uint64_t model);
// values = the least of all ranks', each by itself.
Status take_least(ProcessGroup& group, std::span<std::int64_t> values);

}  // namespace fovea
