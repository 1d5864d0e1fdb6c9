// Tables, JSON and heat maps of eval/sweep.h.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "base/status.h"
#include "console.h"
#include "eval/sweep.h"

namespace fovea::app {
namespace {

double percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 100.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

using Line = std::vector<std::string>;

// Columns aligned by spaces, or a table of Markdown.
std::string render(const std::vector<Line>& lines, bool markdown) {
  std::vector<std::size_t> width;
  for (const Line& line : lines) {
    width.resize(std::max(width.size(), line.size()));
    for (std::size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size());
  }
  std::string text;
  for (std::size_t l = 0; l < lines.size(); ++l) {
    for (std::size_t i = 0; i < lines[l].size(); ++i) {
      const std::string& cell = lines[l][i];
      if (markdown) {
        text += "| " + cell + (i + 1 == lines[l].size() ? " |" : " ");
      } else {
        text += i == 0 ? fmt::format("{:<{}}", cell, width[i]) : fmt::format("  {:>{}}", cell, width[i]);
      }
    }
    text += '\n';
    if (markdown && l == 0) {
      for (std::size_t i = 0; i < lines[l].size(); ++i) text += i == 0 ? "|---" : "|---:";
      text += "|\n";
    }
  }
  return text;
}

std::string loss_text(const SweepCell& dense, const SweepCell& cell, bool markdown) {
  const PairedLoss loss = paired_loss(dense.marks, cell.marks);
  return loss.questions == 0 ? "-"
                             : fmt::format("{:+.2f} {} {:.2f}", loss.lost, markdown ? "±" : "+-", loss.half_width);
}

std::string context_table(const std::vector<SweepRow>& rows, std::size_t c, bool markdown) {
  std::vector<Line> lines = {
      {"setting", "right", "95 % interval", "lost", "bytes", "pages read", "expected", "answers tok/s", "document s"}};
  for (const SweepRow& row : rows) {
    const SweepCell& cell = row.cells[c];
    if (cell.score.total.asked == 0) {
      lines.push_back({row.setting.name, "-", "-", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    const auto [low, high] = wilson_interval(cell.score.total);
    const bool selects = row.setting.engine.sparse != "off";
    lines.push_back({row.setting.name, fmt::format("{}/{}", cell.score.total.right, cell.score.total.asked),
                     fmt::format("{:.3f}-{:.3f}", low, high),
                     &row == rows.data() ? "" : loss_text(rows.front().cells[c], cell, markdown),
                     selects ? fmt::format("{}", row.stat_bytes) : "",
                     selects ? fmt::format("{:.2f} %", percent(cell.pages_read, cell.pages_kept)) : "",
                     selects ? fmt::format("{:.2f} %", percent(cell.pages_expected, cell.pages_kept)) : "",
                     fmt::format("{:.0f}", static_cast<double>(cell.answer_tokens) / cell.answer_seconds),
                     fmt::format("{:.1f}", cell.read_seconds)});
  }
  return render(lines, markdown);
}

// The heat map in words: percent right by tenth of the document.
std::string depth_table(const std::vector<SweepRow>& rows, std::size_t c, bool markdown) {
  std::vector<Line> lines = {{"setting"}};
  for (int tenth = 0; tenth < kNeedleDepths; ++tenth) lines[0].push_back(fmt::format("{}", 10 * tenth));
  for (const SweepRow& row : rows) {
    Line line = {row.setting.name};
    for (const NeedleCount& count : row.cells[c].score.depth) {
      line.push_back(count.asked == 0 ? "-" : fmt::format("{:.0f}", 100.0 * count.accuracy()));
    }
    lines.push_back(std::move(line));
  }
  return render(lines, markdown);
}

nlohmann::json cell_json(const SweepCell& dense, const SweepCell& cell) {
  const auto [low, high] = wilson_interval(cell.score.total);
  const PairedLoss loss = paired_loss(dense.marks, cell.marks);
  nlohmann::json depths = nlohmann::json::array();
  for (const NeedleCount& depth : cell.score.depth)
    depths.push_back({{"right", depth.right}, {"questions", depth.asked}});
  return {{"context", cell.score.context},
          {"questions", cell.score.total.asked},
          {"right", cell.score.total.right},
          {"low", low},
          {"high", high},
          {"lost", loss.lost},
          {"lost_half_width", loss.half_width},
          {"value_right", cell.score.value.right},
          {"depths", std::move(depths)},
          {"answers", cell.marks},
          {"pages_read", cell.pages_read},
          {"pages_expected", cell.pages_expected},
          {"pages_kept", cell.pages_kept},
          {"scans", cell.scans},
          {"rescorings", cell.rescorings},
          {"answer_tokens", cell.answer_tokens},
          {"answer_seconds", cell.answer_seconds},
          {"document_seconds", cell.read_seconds}};
}

NeedlePanel panel_of(const SweepRow& row) {
  NeedlePanel panel;
  panel.title = row.setting.name;
  for (const SweepCell& cell : row.cells) panel.scores.push_back(cell.score);
  return panel;
}

}  // namespace

std::string sweep_table(const std::vector<SweepRow>& rows, bool markdown) {
  std::string text;
  for (std::size_t c = 0; c < rows.front().cells.size(); ++c) {
    const std::int32_t context = rows.front().cells[c].score.context;
    text += fmt::format("{}{} tokens; lost: share of right answers, against {}\n\n", text.empty() ? "" : "\n", context,
                        rows.front().setting.name);
    text += context_table(rows, c, markdown);
    text += fmt::format("\n{} tokens; percent right by depth of the fact, percent of the document\n\n", context);
    text += depth_table(rows, c, markdown);
  }
  return text;
}

std::string sweep_json(const std::vector<SweepRow>& rows) {
  nlohmann::json out = {{"settings", nlohmann::json::array()}};
  for (const SweepRow& row : rows) {
    nlohmann::json cells = nlohmann::json::array();
    for (std::size_t c = 0; c < row.cells.size(); ++c) cells.push_back(cell_json(rows.front().cells[c], row.cells[c]));
    out["settings"].push_back({{"name", row.setting.name}, {"stat_bytes", row.stat_bytes}, {"rows", std::move(cells)}});
  }
  return out.dump() + "\n";
}

Status make_maps_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? invalid_argument("cannot make the folder {}: {}", quote(folder), error.message()) : ok_status();
}

Status write_sweep_maps(const std::vector<SweepRow>& rows, const std::string& folder) {
  std::vector<NeedlePanel> panels;
  for (const SweepRow& row : rows) {
    panels.push_back(panel_of(row));
    std::string name = row.setting.name;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c == '/' || c == ':'; }, '_');
    FOVEA_RETURN_IF_ERROR(write_output(
        folder + "/" + name + ".svg",
        draw_needle_heat_map(panels.back().scores, row.setting.name + ": right answers by depth and length")));
  }
  return write_output(folder + "/all.svg", draw_needle_panels(panels));
}

}  // namespace fovea::app
