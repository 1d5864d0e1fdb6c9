// Intervals and the heat map.
#include "workload/needle/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fovea {

namespace {

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

struct Colour {
  std::string fill;
  const char* text;  // that reads on it
};

// Dark violet at a half and below, over blue and green, to yellow at 1: lighter the better, so that it reads without
// colours too.
Colour colour(double accuracy) {
  constexpr double kStops[5][3] = {{68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
  const double t = std::clamp((accuracy - 0.5) * 2.0, 0.0, 1.0) * 4.0;
  const int from = std::min(static_cast<int>(t), 3);
  int rgb[3];
  for (int i = 0; i < 3; ++i) {
    rgb[i] = static_cast<int>(std::lround(kStops[from][i] + (kStops[from + 1][i] - kStops[from][i]) * (t - from)));
  }
  return {fmt::format("#{:02x}{:02x}{:02x}", rgb[0], rgb[1], rgb[2]), t > 2.2 ? "#1c1c1c" : "#ffffff"};
}

constexpr const char* kNotAsked = "#e4e4e4";

// What the colours mean, 300 wide and 30 high from (x, y) on.
std::string legend(int x, int y) {
  constexpr int kSteps = 20, kStep = 8;
  std::string svg;
  for (int i = 0; i < kSteps; ++i) {
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"12\" fill=\"{}\"/>\n", x + i * kStep, y, kStep,
                       colour(0.5 + 0.5 * i / (kSteps - 1)).fill);
  }
  const int end = x + kSteps * kStep;
  return svg + fmt::format(
                   "<g font-size=\"10\" fill=\"#555555\" text-anchor=\"start\"><text x=\"{0}\" y=\"{1}\">50 % right or "
                   "less</text><text x=\"{2}\" y=\"{1}\" text-anchor=\"end\">100 %</text><rect x=\"{3}\" y=\"{4}\" "
                   "width=\"16\" height=\"12\" fill=\"{5}\"/><text x=\"{6}\" y=\"{7}\">not asked</text></g>\n",
                   x, y + 24, end, end + 24, y, kNotAsked, end + 46, y + 10);
}

std::string length_name(std::int32_t tokens) {
  return tokens % 1024 == 0 ? fmt::format("{}k", tokens / 1024) : fmt::format("{}", tokens);
}

}  // namespace

std::pair<double, double> wilson_interval(const NeedleCount& count) {
  if (count.asked == 0) return {0.0, 1.0};
  constexpr double kZ = 1.96;
  const double n = static_cast<double>(count.asked), p = count.accuracy(), s = kZ * kZ / n;
  const double middle = (p + s / 2) / (1 + s);
  const double half = kZ * std::sqrt(p * (1 - p) / n + s / n / 4) / (1 + s);
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

PairedLoss paired_loss(std::string_view first, std::string_view second) {
  PairedLoss loss;
  std::int64_t lost = 0, won = 0;
  for (std::size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    lost += first[i] == '1' && second[i] != '1' ? 1 : 0;
    won += first[i] != '1' && second[i] == '1' ? 1 : 0;
    ++loss.questions;
  }
  if (loss.questions == 0) return loss;
  loss.lost = static_cast<double>(lost - won) / static_cast<double>(loss.questions);
  // Half a question added to each of the four kinds of pairs.
  const double n = static_cast<double>(loss.questions) + 2.0, b = static_cast<double>(lost) + 0.5,
               c = static_cast<double>(won) + 0.5;
  loss.half_width = 1.96 * std::sqrt(b + c - (b - c) * (b - c) / n) / n;
  return loss;
}

std::string draw_needle_heat_map(const std::vector<NeedleScore>& scores, const std::string& title) {
  constexpr int kLeft = 112, kTop = 76, kWidth = 74, kHeight = 30, kGap = 3;
  const int columns = static_cast<int>(scores.size());
  const int width = std::max(kLeft + columns * kWidth + 24, 420);
  const int all = kTop + kNeedleDepths * kHeight + 8;
  const int height = all + kHeight + 92;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"16\" y=\"26\" font-size=\"15\" fill=\"#1c1c1c\">{2}</text>\n"
      "<text x=\"16\" y=\"46\" fill=\"#555555\">in each cell: answers exactly right / questions asked</text>\n"
      "<text x=\"22\" y=\"{3}\" fill=\"#555555\" text-anchor=\"middle\" transform=\"rotate(-90 22 {3})\">depth of the "
      "fact in the document</text>\n",
      width, height, escaped(title), kTop + kNeedleDepths * kHeight / 2);
  const auto cell = [&](int column, int y, const NeedleCount& count) {
    const int x = kLeft + column * kWidth;
    const Colour fill = count.asked == 0 ? Colour{kNotAsked, "#1c1c1c"} : colour(count.accuracy());
    const std::string label = count.asked == 0 ? "-" : fmt::format("{}/{}", count.right, count.asked);
    svg += fmt::format(
        "<g><title>{} of {} right</title><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\" fill=\"{}\"/>"
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{}\">{}</text></g>\n",
        count.right, count.asked, x, y, kWidth - kGap, kHeight - kGap, fill.fill, x + (kWidth - kGap) / 2,
        y + kHeight / 2 + 3, fill.text, label);
  };
  const auto row_name = [&](int y, const std::string& name) {
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#555555\">{}</text>\n", kLeft - 8,
                       y + kHeight / 2 + 3, name);
  };
  for (int row = 0; row < kNeedleDepths; ++row) {
    const int y = kTop + row * kHeight;
    row_name(y, fmt::format("{}-{} %", row * 10, row * 10 + 10));
    for (int column = 0; column < columns; ++column)
      cell(column, y, scores[static_cast<std::size_t>(column)].depth[static_cast<std::size_t>(row)]);
  }
  row_name(all, "all");
  for (int column = 0; column < columns; ++column) {
    const NeedleScore& score = scores[static_cast<std::size_t>(column)];
    cell(column, all, score.total);
    const int x = kLeft + column * kWidth + (kWidth - kGap) / 2;
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#1c1c1c\">{}</text>\n", x,
                       all + kHeight + 14, length_name(score.context));
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#555555\">length of document and question, tokens</text>\n", kLeft,
                     all + kHeight + 32);
  return svg + legend(kLeft, all + kHeight + 46) + "</svg>\n";
}

std::string draw_needle_panels(const std::vector<NeedlePanel>& panels) {
  constexpr int kAcross = 6, kCell = 10, kColumn = 34, kTitle = 20, kFoot = 30, kGap = 22, kLeft = 34, kHead = 66;
  std::size_t columns = 1;
  for (const NeedlePanel& panel : panels) columns = std::max(columns, panel.scores.size());
  const int panel_width = std::max(static_cast<int>(columns) * kColumn + kGap, 150);
  const int panel_height = kTitle + kNeedleDepths * kCell + kFoot + kGap;
  const int rows = (static_cast<int>(panels.size()) + kAcross - 1) / kAcross;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"10\" text-anchor=\"middle\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"{2}\" y=\"20\" font-size=\"12\" text-anchor=\"start\">Right answers: down, depth of the fact in the "
      "document; across, its length in tokens; below, the share of all right</text>\n",
      kLeft + kAcross * panel_width, kHead + rows * panel_height, kLeft);
  svg += legend(kLeft, 32);
  for (std::size_t p = 0; p < panels.size(); ++p) {
    const int left = kLeft + static_cast<int>(p) % kAcross * panel_width;
    const int top = kHead + static_cast<int>(p) / kAcross * panel_height;
    if (p % kAcross == 0) {
      for (const int percent : {0, 50, 100}) {
        svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#555\">{} %</text>\n", left - 4,
                           top + kTitle + percent * kNeedleDepths * kCell / 100 + 3, percent);
      }
    }
    svg += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"11\" text-anchor=\"start\">{}</text>\n", left, top + 13,
                       escaped(panels[p].title));
    for (std::size_t c = 0; c < panels[p].scores.size(); ++c) {
      const NeedleScore& score = panels[p].scores[c];
      const int x = left + static_cast<int>(c) * kColumn;
      for (int d = 0; d < kNeedleDepths; ++d) {
        const NeedleCount& count = score.depth[static_cast<std::size_t>(d)];
        svg += fmt::format("<path d=\"M{} {}h{}v{}h-{}z\" fill=\"{}\"/>\n", x, top + kTitle + d * kCell, kColumn - 2,
                           kCell - 1, kColumn - 2, count.asked == 0 ? kNotAsked : colour(count.accuracy()).fill);
      }
      const int foot = top + kTitle + kNeedleDepths * kCell;
      const int middle = x + kColumn / 2 - 1;
      const std::string share = score.total.asked == 0 ? "-" : fmt::format("{:.2f}", score.total.accuracy());
      svg += fmt::format("<text x=\"{0}\" y=\"{1}\">{2}</text><text x=\"{0}\" y=\"{3}\" fill=\"#555\">{4}</text>\n",
                         middle, foot + 12, share, foot + 24, length_name(score.context));
    }
  }
  return svg + "</svg>\n";
}

}  // namespace fovea
