// An SVG without scripts or fonts of its own; see bench/serve/picture.h.
#include "bench/serve/picture.h"

#include <fmt/format.h>

#include <algorithm>

namespace fovea::app {
namespace {

constexpr double kWidth = 1200.0, kLeft = 24.0, kRight = 24.0, kHead = 44.0, kFoot = 40.0;
constexpr std::size_t kMostRows = 400;  // requests of a case that are drawn

std::string text_at(double x, double y, double size, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\" fill=\"#1b1f24\">{}</text>\n",
                     x, y, size, anchor, text);
}

std::string bar(double x, double y, double width, double height, const char* fill, const std::string& title) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"><title>{}</title>"
      "</rect>\n",
      x, y, std::max(width, 0.3), height, fill, title);
}

// Titles name no more than workloads, but a name may come from the command line.
std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

double draw_load(const PicturedLoad& load, double top, std::string* svg) {
  const std::vector<RequestTimes>& requests = load.result.requests;
  const std::size_t rows = std::min(requests.size(), kMostRows);
  const double pitch = std::clamp(480.0 / static_cast<double>(std::max<std::size_t>(rows, 1)), 2.0, 14.0);
  const double scale = (kWidth - kLeft - kRight) / std::max(load.result.seconds, 1e-9);
  *svg += text_at(kLeft, top + 20.0, 16, "start", escape(load.title));
  *svg += text_at(kLeft, top + 36.0, 12, "start",
                  fmt::format("{} requests in {:.2f} s: light until the first token, dark until the last{}",
                              requests.size(), load.result.seconds, rows < requests.size() ? "; the first 400" : ""));
  for (std::size_t i = 0; i < rows; ++i) {
    const RequestTimes& request = requests[i];
    const double y = top + kHead + pitch * static_cast<double>(i);
    double first = 1e300, last = 0.0;
    for (const ChoiceTimes& choice : request.choices) {
      if (choice.chunk_s.empty()) continue;
      first = std::min(first, choice.chunk_s.front());
      last = std::max(last, choice.chunk_s.back());
    }
    const double x = kLeft + request.sent_s * scale;
    if (last == 0.0) {
      *svg += bar(x, y, 3.0, pitch - 0.5, "#cf222e", fmt::format("request {}: failed", i));
      continue;
    }
    const std::string title = fmt::format("request {}: first token after {:.1f} ms, last after {:.1f} ms", i,
                                          1e3 * (first - request.sent_s), 1e3 * (last - request.sent_s));
    *svg += bar(x, y, (first - request.sent_s) * scale, pitch - 0.5, "#b6d4f5", title);
    *svg += bar(kLeft + first * scale, y, (last - first) * scale, pitch - 0.5, "#2f6db5", title);
  }
  const double bottom = top + kHead + pitch * static_cast<double>(rows);
  for (int tick = 0; tick <= 4; ++tick) {
    const double seconds = load.result.seconds * tick / 4.0;
    *svg += text_at(kLeft + seconds * scale, bottom + 18.0, 12,
                    tick == 0   ? "start"
                    : tick == 4 ? "end"
                                : "middle",
                    fmt::format("{:.2f} s", seconds));
  }
  return bottom + kFoot;
}

}  // namespace

std::string draw_loads(const std::vector<PicturedLoad>& loads) {
  std::string body;
  double top = 8.0;
  for (const PicturedLoad& load : loads) top = draw_load(load, top, &body);
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
             "height=\"{1:.0f}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n<rect width=\"{0:.0f}\" "
             "height=\"{1:.0f}\" fill=\"#ffffff\"/>\n",
             kWidth, top) +
         body + "</svg>\n";
}

}  // namespace fovea::app
