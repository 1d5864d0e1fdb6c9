// An SVG of two lanes; see bench/serve/timeline.h.
#include "bench/serve/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace fovea::app {
namespace {

constexpr double kWidth = 1200.0, kLeft = 84.0, kRight = 24.0, kTop = 76.0, kLane = 56.0, kGap = 18.0;

// Phases that the engine names; another one is grey.
constexpr std::array<std::pair<std::string_view, const char*>, 6> kColours = {{{"schedule", "#8250df"},
                                                                               {"plan", "#2f6db5"},
                                                                               {"enqueue", "#1a7f37"},
                                                                               {"compute", "#1a7f37"},
                                                                               {"wait", "#d8dee4"},
                                                                               {"sample", "#bf8700"}}};

const char* colour(std::string_view name) {
  for (const auto& [known, fill] : kColours) {
    if (known == name) return fill;
  }
  return "#8c959f";
}

std::string text_at(double x, double y, double size, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\" fill=\"#1b1f24\">{}</text>\n",
                     x, y, size, anchor, text);
}

std::vector<StepSpan> device_spans(const std::vector<StepSpan>& spans) {
  std::vector<StepSpan> out;
  std::copy_if(spans.begin(), spans.end(), std::back_inserter(out), [](const StepSpan& span) { return span.device; });
  return out;
}

// From when on the last `most` steps run: by the device's spans, else by what the host schedules.
double begin_of(const std::vector<StepSpan>& spans, std::size_t most) {
  std::vector<double> begins;
  const bool device = !device_spans(spans).empty();
  for (const StepSpan& span : spans) {
    if (span.device == device && (device || span.name == "schedule")) begins.push_back(span.begin);
  }
  if (begins.empty()) return 0.0;
  return begins[begins.size() - std::min(most, begins.size())];
}

}  // namespace

double idle_share(const std::vector<StepSpan>& spans) {
  const std::vector<StepSpan> device = device_spans(spans);
  if (device.size() < 2) return 0.0;
  double busy = 0.0;
  for (const StepSpan& span : device) busy += span.end - span.begin;
  return std::max(0.0, 1.0 - busy / (device.back().end - device.front().begin));
}

std::string draw_timeline(const std::vector<StepSpan>& spans, std::size_t most, const std::string& title) {
  const double begin = begin_of(spans, most);
  double end = begin + 1e-9;
  for (const StepSpan& span : spans) end = std::max(end, span.end);
  const double scale = (kWidth - kLeft - kRight) / (end - begin);
  const bool device = !device_spans(spans).empty();
  std::string body = text_at(kLeft, 26.0, 17, "start", title);
  double legend = kLeft;
  for (const auto& [name, fill] : kColours) {
    const bool used = std::any_of(spans.begin(), spans.end(),
                                  [&](const StepSpan& span) { return span.name == name && !span.device; });
    if (!used) continue;
    body += fmt::format("<rect x=\"{:.1f}\" y=\"38\" width=\"12\" height=\"12\" fill=\"{}\"/>\n", legend, fill);
    body += text_at(legend + 17.0, 49.0, 13, "start", std::string(name));
    legend += 100.0;
  }
  if (device) {
    body += text_at(legend, 49.0, 13, "start",
                    fmt::format("the device had nothing to do for {:.1f} % of the time", 100.0 * idle_share(spans)));
  }
  body += text_at(kLeft - 10.0, kTop + kLane / 2.0 + 4.0, 13, "end", "host");
  if (device) body += text_at(kLeft - 10.0, kTop + kLane * 1.5 + kGap + 4.0, 13, "end", "device");
  bool dark = false;
  for (const StepSpan& span : spans) {
    if (span.end <= begin) continue;
    const double from = std::max(span.begin, begin);
    const double y = kTop + (span.device ? kLane + kGap : 0.0);
    dark = !dark;
    const std::string what =
        span.device ? fmt::format("{} sequences, {} tokens", span.sequences, span.tokens) : span.name;
    body += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\">"
        "<title>{}: {:.1f} us</title></rect>\n",
        kLeft + (from - begin) * scale, y, std::max((span.end - from) * scale, 0.3), kLane,
        span.device ? (dark ? "#57606a" : "#6e7781") : colour(span.name), what, 1e6 * (span.end - span.begin));
  }
  const double bottom = kTop + (device ? 2.0 * kLane + kGap : kLane);
  for (int tick = 0; tick <= 4; ++tick) {
    const double seconds = (end - begin) * tick / 4.0;
    body += text_at(kLeft + seconds * scale, bottom + 20.0, 12,
                    tick == 0   ? "start"
                    : tick == 4 ? "end"
                                : "middle",
                    fmt::format("{:.3f} ms", 1e3 * seconds));
  }
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
             "height=\"{1:.0f}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n<rect width=\"{0:.0f}\" "
             "height=\"{1:.0f}\" fill=\"#ffffff\"/>\n",
             kWidth, bottom + 36.0) +
         body + "</svg>\n";
}

}  // namespace fovea::app
