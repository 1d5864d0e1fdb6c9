// The picture of a plan (explain.h): an SVG that needs no script and no font of its own.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/plan/explain.h"
#include "core/plan/timeline.h"

namespace fovea {
namespace {

constexpr double kWidth = 1200.0;
constexpr double kLeft = 84.0;
constexpr double kRight = 24.0;
constexpr double kTop = 92.0;
constexpr std::size_t kLegendEntries = 12;

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

// Neighbouring block rows get hues far apart (golden angle); shared runs are saturated, private ones pale.
std::string colour(std::uint32_t block_row, bool shared) {
  const double hue = std::fmod(static_cast<double>(block_row) * 137.508 + 210.0, 360.0);
  const double saturation = shared ? 0.68 : 0.42;
  const double lightness = shared ? 0.47 : 0.76;
  // HSL to RGB, as renderers of SVG 1.1 do not all know hsl().
  const double chroma = (1.0 - std::abs(2.0 * lightness - 1.0)) * saturation;
  const auto channel = [&](double n) {
    const double k = std::fmod(n + hue / 30.0, 12.0);
    const double value = lightness - chroma / 2.0 * std::max(-1.0, std::min({k - 3.0, 9.0 - k, 1.0}));
    return static_cast<int>(std::lround(value * 255.0));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", channel(0.0), channel(8.0), channel(4.0));
}

std::string text_at(double x, double y, double size, const char* anchor, const char* fill, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", x,
                     y, size, anchor, fill, escape(text));
}

class Drawing {
 public:
  Drawing(const Planner& planner, const std::string& title)
      : planner_(planner),
        v_(planner.view()),
        h_(*v_.header),
        stats_(planner.stats()),
        title_(title),
        workers_(v_.launches[0].num_workers) {
    pitch_ = std::clamp(760.0 / workers_, 1.0, 26.0);
    chart_height_ = pitch_ * workers_;
    scale_ = (kWidth - kLeft - kRight) / static_cast<double>(std::max<std::uint64_t>(stats_.max_worker_cost, 1));
    cost_of_.assign(h_.num_block_rows, 0);
  }

  std::string draw() {
    std::string boxes = draw_boxes();
    std::string legend = draw_legend();
    const double height = kTop + chart_height_ + 52.0 + legend_height_;
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" "
        "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n<rect width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "fill=\"#ffffff\"/>\n",
        kWidth, height);
    svg += text_at(kLeft, 32.0, 19, "start", "#1b1f24", title_.empty() ? "Plan" : title_);
    const double even = static_cast<double>(stats_.total_cost) / workers_;
    svg +=
        text_at(kLeft, 54.0, 13, "start", "#424a53",
                fmt::format("{} query tokens, {} items, {} workers; reads {:.1f} MiB of KV, {:.1f} MiB if nothing were "
                            "shared; {} pairs split",
                            h_.num_rows, h_.num_items, workers_, static_cast<double>(stats_.kv_bytes) / 1048576.0,
                            static_cast<double>(stats_.kv_bytes_unshared) / 1048576.0, stats_.split_rows));
    svg += text_at(kLeft, 73.0, 13, "start", "#424a53",
                   fmt::format("slowest worker {:.3f} x an even share (dashed line)",
                               even > 0.0 ? static_cast<double>(stats_.max_worker_cost) / even : 1.0));
    svg += boxes + draw_axes(even) + legend + "</svg>\n";
    return svg;
  }

 private:
  std::string draw_boxes() {
    std::string out;
    const double gap = pitch_ > 5.0 ? 1.0 : 0.0;
    for (const TimelineEntry& entry : plan_timeline(planner_)) {
      const std::uint32_t index = abi::queue_item(entry.entry);
      const abi::WorkItem& item = v_.items[index];
      const abi::BlockRow& block_row = v_.block_rows[item.block_row];
      const bool partial = item.partial_slot != abi::kNone;
      out += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" stroke=\"{}\" "
          "stroke-width=\"{}\"><title>worker {}: item {} head {}, block row {} ({} requests), {} query tokens, "
          "tokens "
          "[{}, {}){}</title></rect>\n",
          kLeft + static_cast<double>(entry.begin) * scale_, kTop + pitch_ * entry.worker,
          std::max(static_cast<double>(entry.cost) * scale_, 0.1), pitch_ - gap,
          colour(item.block_row, block_row.num_requests > 1),
          partial && (item.flags & abi::kItemSingleHead) ? "#1b1f24" : "#ffffff", pitch_ > 5.0 ? 0.7 : 0.25,
          entry.worker, index, abi::queue_head(entry.entry), item.block_row, block_row.num_requests, item.row_count,
          item.kv_begin, item.kv_end, partial ? ", partial" : "");
      cost_of_[item.block_row] += entry.cost;
    }
    return out;
  }

  std::string draw_axes(double even) const {
    std::string out;
    const double bottom = kTop + chart_height_;
    const double even_x = kLeft + even * scale_;
    out += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#1b1f24\" stroke-width=\"1.2\" "
        "stroke-dasharray=\"5 4\"/>\n",
        even_x, kTop - 6.0, bottom + 6.0);
    const std::uint32_t step = std::max(1u, (workers_ + 15) / 16);
    for (std::uint32_t w = 0; w < workers_; w += step) {
      out += text_at(kLeft - 8.0, kTop + pitch_ * (w + 0.5) + 4.5, 13, "end", "#424a53", std::to_string(w));
    }
    out += fmt::format(
        "<text transform=\"translate(24 {:.1f}) rotate(-90)\" font-size=\"13\" text-anchor=\"middle\" "
        "fill=\"#424a53\">worker</text>\n",
        kTop + chart_height_ / 2.0);
    for (int tick = 0; tick <= 4; ++tick) {
      const double cost = static_cast<double>(stats_.max_worker_cost) * tick / 4.0;
      out += text_at(kLeft + cost * scale_, bottom + 22.0, 13,
                     tick == 4   ? "end"
                     : tick == 0 ? "start"
                                 : "middle",
                     "#424a53", fmt::format("{:.2f}", cost / 1048576.0));
    }
    out +=
        text_at(kLeft + (kWidth - kLeft - kRight) / 2.0, bottom + 40.0, 13, "middle", "#424a53",
                "time in the cost model (MiB of KV read, or work that takes as long); a dark outline: one of several "
                "parts of a row");
    return out;
  }

  // The block rows that cost most, three a line.
  std::string draw_legend() {
    std::vector<std::uint32_t> order(h_.num_block_rows);
    std::iota(order.begin(), order.end(), 0u);
    const std::size_t shown = std::min(order.size(), kLegendEntries);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                      [&](std::uint32_t a, std::uint32_t b) {
                        return cost_of_[a] != cost_of_[b] ? cost_of_[a] > cost_of_[b] : a < b;
                      });
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown));
    const double column = (kWidth - kLeft - kRight) / 3.0;
    std::string out;
    for (std::size_t i = 0; i < shown; ++i) {
      const abi::BlockRow& b = v_.block_rows[order[i]];
      const std::size_t line = i / 3, place = i % 3;
      const double x = kLeft + column * static_cast<double>(place);
      const double y = kTop + chart_height_ + 68.0 + 22.0 * static_cast<double>(line);
      out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", x, y - 11.5,
                         colour(order[i], b.num_requests > 1));
      out += text_at(x + 20.0, y, 13, "start", "#1b1f24",
                     b.num_requests > 1
                         ? fmt::format("run shared by {} requests, {} tokens", b.num_requests, b.num_tokens)
                         : fmt::format("query {}{}, {} tokens of its own", b.row_begin,
                                       b.row_count > 1 ? fmt::format("..{}", b.row_begin + b.row_count - 1) : "",
                                       b.num_tokens - b.first_token));
    }
    const std::size_t lines = (shown + 2) / 3;
    legend_height_ = 22.0 * static_cast<double>(lines) + 18.0;
    if (order.size() > shown) {
      out += text_at(kLeft, kTop + chart_height_ + 68.0 + 22.0 * static_cast<double>(lines), 13, "start", "#424a53",
                     fmt::format("... and {} smaller block rows", order.size() - shown));
      legend_height_ += 22.0;
    }
    return out;
  }

  const Planner& planner_;
  abi::PlanView v_;
  const abi::PlanHeader& h_;
  PlanStats stats_;
  std::string title_;
  std::uint32_t workers_;
  double pitch_ = 0.0;
  double chart_height_ = 0.0;
  double scale_ = 0.0;
  double legend_height_ = 0.0;
  std::vector<std::uint64_t> cost_of_;  // by block row
};

}  // namespace

std::string draw_plan(const Planner& planner, const std::string& title) { return Drawing(planner, title).draw(); }

}  // namespace fovea
