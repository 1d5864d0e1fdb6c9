// See reuse.h.
#include "core/select/reuse.h"

#include <algorithm>

namespace fovea {

SelectWork select_work(const ReuseRule& rule, const SelectMemory& memory, std::int32_t tokens, std::uint64_t phase) {
  if (rule.interval <= 1 || memory.scanned_tokens == 0) return SelectWork::kScan;
  const std::int32_t steps = tokens - memory.scanned_tokens;
  if (steps < 1 || steps >= rule.interval) return SelectWork::kScan;
  const auto interval = static_cast<std::uint64_t>(rule.interval);
  if ((static_cast<std::uint64_t>(tokens) + phase) % interval == 0) return SelectWork::kScan;
  return rule.candidate_factor > 0 ? SelectWork::kRescore : SelectWork::kKeep;
}

void units_to_rescore(const SelectMemory& memory, const ChooseRule& rule, std::int32_t tokens,
                      std::vector<std::int32_t>* units) {
  // The unit that was written into when the scan was made may hold keys that it did not see.
  const std::int32_t written = (memory.scanned_tokens - 1) / rule.unit_tokens;
  const std::int32_t recent = std::max(0, tokens - rule.recent_tokens) / rule.unit_tokens;
  const std::int32_t first_new = std::min(written, recent);
  units->clear();
  for (const std::int32_t unit : memory.candidates) {
    if (unit < first_new) units->push_back(unit);
  }
  for (std::int32_t unit = first_new; unit < num_units(tokens, rule.unit_tokens); ++unit) units->push_back(unit);
}

}  // namespace fovea
