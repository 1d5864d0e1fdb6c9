#include "server/metrics/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace fovea::server {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string escape_help(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string braces(const std::string& labels) { return labels.empty() ? "" : "{" + labels + "}"; }

void append_histogram(std::string* out, const std::string& name, const Histogram& histogram) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < histogram.bounds().size(); ++i) {
    total += histogram.bucket(i);
    *out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, number(histogram.bounds()[i]), total);
  }
  total += histogram.bucket(histogram.bounds().size());
  *out += fmt::format("{}_bucket{{le=\"+Inf\"}} {}\n{}_sum {}\n{}_count {}\n", name, total, name,
                      number(histogram.sum()), name, total);
}

}  // namespace

void Histogram::observe(double value) {
  const std::size_t bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::uint64_t Histogram::count() const {
  std::uint64_t total = 0;
  for (const auto& count : counts_) total += count.load(std::memory_order_relaxed);
  return total;
}

Registry::Family& Registry::family(const std::string& name, const std::string& help, const std::string& type) {
  for (Family& family : families_) {
    if (family.name == name) return family;
  }
  families_.push_back({name, help, type, {}});
  return families_.back();
}

Counter& Registry::counter(const std::string& name, const std::string& help, const std::string& labels) {
  Counter& counter = counters_.emplace_back();
  family(name, help, "counter").series.push_back({labels, &counter, nullptr, nullptr});
  return counter;
}

Histogram& Registry::histogram(const std::string& name, const std::string& help, std::vector<double> bounds) {
  Histogram& histogram = histograms_.emplace_back(std::move(bounds));
  family(name, help, "histogram").series.push_back({"", nullptr, &histogram, nullptr});
  return histogram;
}

void Registry::callback(const std::string& name, const std::string& help, const std::string& type,
                        std::function<double()> value, const std::string& labels) {
  family(name, help, type).series.push_back({labels, nullptr, nullptr, std::move(value)});
}

std::string Registry::text() const {
  std::string out;
  for (const Family& family : families_) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", family.name, escape_help(family.help), family.name, family.type);
    for (const Series& series : family.series) {
      if (series.histogram != nullptr) {
        append_histogram(&out, family.name, *series.histogram);
      } else if (series.counter != nullptr) {
        out += fmt::format("{}{} {}\n", family.name, braces(series.labels), series.counter->value());
      } else {
        out += fmt::format("{}{} {}\n", family.name, braces(series.labels), number(series.value()));
      }
    }
  }
  return out;
}

}  // namespace fovea::server
