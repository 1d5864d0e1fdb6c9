// Table and JSON of benchmark rows; see bench/report.h.
#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "base/status.h"

namespace fovea {
namespace {

// Four significant digits, so that 0.00123 and 43210 both read well.
std::string number(double value) {
  const std::string text = fmt::format("{:.4g}", value);
  return text.find('e') == std::string::npos ? text : fmt::format("{:.0f}", value);
}

}  // namespace

std::optional<double> BenchRow::share() const {
  if (!limit || *limit <= 0.0 || value <= 0.0) return std::nullopt;
  return smaller_is_better ? *limit / value : value / *limit;
}

void BenchReport::set_machine(std::string key, double value) {
  machine_.emplace_back(std::move(key), nlohmann::json(value).dump());
}

std::string BenchReport::table() const {
  using Line = std::array<std::string, 8>;
  std::vector<Line> lines = {{"suite", "case", "metric", "value", "limit", "share", "peer", "ratio"}};
  for (const BenchRow& row : rows_) {
    Line line = {row.suite, row.name, row.metric, number(row.value) + " " + row.unit, "", "", "", ""};
    if (row.limit) line[4] = number(*row.limit);
    if (row.share()) line[5] = fmt::format("{:.1f} %", 100.0 * *row.share());
    if (row.peer_value) {
      line[6] = row.peer + " " + number(*row.peer_value);
      const double ratio = row.smaller_is_better ? *row.peer_value / row.value : row.value / *row.peer_value;
      line[7] = fmt::format("{:.2f}x", ratio);
    }
    lines.push_back(line);
  }
  std::array<std::size_t, 8> widths{};
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& [key, value] : machine_) text += fmt::format("{}: {}\n", key, value);
  for (const Line& line : lines) {
    std::string out;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (widths[i] > 0) out += fmt::format("{:<{}}  ", line[i], widths[i]);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  }
  return text;
}

std::string BenchReport::json() const {
  nlohmann::ordered_json machine = nlohmann::ordered_json::object();
  for (const auto& [key, value] : machine_) {
    const auto parsed = nlohmann::ordered_json::parse(value, nullptr, false);
    if (parsed.is_number()) {
      machine[key] = parsed;
    } else {
      machine[key] = value;
    }
  }
  const auto optional = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows_) {
    rows.push_back({{"suite", row.suite},
                    {"case", row.name},
                    {"metric", row.metric},
                    {"value", row.value},
                    {"unit", row.unit},
                    {"limit", optional(row.limit)},
                    {"share", optional(row.share())},
                    {"peer", row.peer.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(row.peer)},
                    {"peer_value", optional(row.peer_value)}});
  }
  return nlohmann::ordered_json{{"machine", machine}, {"rows", rows}}.dump(1);
}

Status BenchReport::emit(const std::string& json_path) const {
  if (json_path == "-") {
    std::puts(json().c_str());
    return ok_status();
  }
  std::fputs(table().c_str(), stdout);
  if (json_path.empty()) return ok_status();
  std::ofstream file(json_path);
  file << json() << "\n";
  file.flush();
  if (!file) return make_status(StatusCode::kUnavailable, "cannot write {}", shorten(json_path));
  return ok_status();
}

}  // namespace fovea
