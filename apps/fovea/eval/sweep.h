// The same needle questions under many settings: right answers lost against the first one, pages read, and heat maps.
// Used by `fovea eval needle --settings`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "eval/needle.h"
#include "eval/settings.h"

namespace fovea::app {

// One setting at one context length.
struct SweepCell {
  NeedleScore score;
  std::string marks;                 // '1' for each question answered right, '0' for others, in order
  std::uint64_t pages_read = 0;      // by queries that selected
  std::uint64_t pages_expected = 0;  // counted from lengths and budget alone
  std::uint64_t pages_kept = 0;      // what dense attention would have read
  std::uint64_t scans = 0, rescorings = 0;
  double answer_seconds = 0.0;  // of all questions, asked together
  std::int64_t answer_tokens = 0;
  double read_seconds = 0.0;  // of the documents, by the engine that this setting shares
};

struct SweepRow {
  EvalSetting setting;
  std::int32_t stat_bytes = 0;   // kept a token and KV head that selects
  std::vector<SweepCell> cells;  // one a context; those that no time was left for have no questions
};

// Asks settings of one group in one engine, which reads each document once. Documents and questions are those of
// evaluate_needle() with the same options. minutes: no document is begun later than that; 0: no limit. kInternal where
// a setting's queries did not read the pages that they must have read.
Result<std::vector<SweepRow>> sweep_needle(const std::vector<EvalSetting>& settings, const NeedleEvalOptions& options,
                                           double minutes,
                                           const std::function<void(std::int64_t, std::int64_t)>& progress);

// Tables by context and by depth. Losses are against the first setting, over the questions that both answered.
std::string sweep_table(const std::vector<SweepRow>& rows, bool markdown);
std::string sweep_json(const std::vector<SweepRow>& rows);
// Called before anything is asked: what cannot be written is known at once.
Status make_maps_folder(const std::string& folder);
// A map a setting (NAME.svg, with ':' and '/' as '_') and all of them together (all.svg), in `folder`.
Status write_sweep_maps(const std::vector<SweepRow>& rows, const std::string& folder);

}  // namespace fovea::app
