// A plan in words, as tables, and as a picture. Called by `fovea plan explain`, the demo, and people in a debugger.
#pragma once

#include <cstdint>
#include <string>

#include "core/plan/planner.h"

namespace fovea {

// A paragraph of figures: block rows, items, bytes to read and bytes if nothing were shared, partial states, imbalance.
std::string explain_plan(const Planner& planner);

// The four steps as tables (pack, tile, cut, merge list), at most `max_lines` lines each.
std::string explain_steps(const Planner& planner, std::uint32_t max_lines = 24);

// SVG: workers down, time (cost model) across, one box an (item, KV head), coloured by block row; partial states
// outlined.
std::string draw_plan(const Planner& planner, const std::string& title = "");

}  // namespace fovea
