// What an evaluation counts: right answers by context length and depth, with intervals, as a table and as a heat map.
// Used by `fovea eval needle`, the demo and the benchmarks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fovea {

inline constexpr int kNeedleDepths = 10;  // tenths of the document, oldest first

struct NeedleCount {
  std::int64_t right = 0;
  std::int64_t asked = 0;
  void add(bool is_right) {
    right += is_right ? 1 : 0;
    ++asked;
  }
  // 0 where nothing was asked.
  double accuracy() const { return asked == 0 ? 0.0 : static_cast<double>(right) / static_cast<double>(asked); }
};

// Wilson's 95 % interval of right / asked; [0, 1] where nothing was asked.
std::pair<double, double> wilson_interval(const NeedleCount& count);

// The same questions under two settings, by marks of '1' for right: the share of right answers that the second loses.
struct PairedLoss {
  std::int64_t questions = 0;  // that both have
  double lost = 0.0;           // right under the first less right under the second, per question
  double half_width = 0.0;     // of the 95 % interval for matched pairs (Agresti and Min, 2005)
};
PairedLoss paired_loss(std::string_view first, std::string_view second);

// One context length.
struct NeedleScore {
  std::int32_t context = 0;  // tokens asked for: document, question and answer
  NeedleCount total;         // whole answers, exactly
  NeedleCount value;         // answers that hold the value, whatever is around it
  NeedleCount absent;        // questions whose answer is "unknown", part of total
  std::array<NeedleCount, kNeedleDepths> depth;
};

// Columns are context lengths, rows depths (the document's beginning on top); each cell says right answers /
// questions, its colour the share. A complete SVG document with its own background, so that it reads on light and dark
// pages.
std::string draw_needle_heat_map(const std::vector<NeedleScore>& scores, const std::string& title);

// Small maps of many settings side by side, in the same colours: columns are context lengths, rows depths; the share of
// all right answers stands under each column.
struct NeedlePanel {
  std::string title;
  std::vector<NeedleScore> scores;
};
std::string draw_needle_panels(const std::vector<NeedlePanel>& panels);

}  // namespace fovea
