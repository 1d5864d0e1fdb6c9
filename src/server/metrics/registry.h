// Prometheus metrics: counters, gauges read when asked for, histograms; and the text exposition format 0.0.4. Updates
// are atomic and take no lock. Used by ServerMetrics.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace fovea::server {

class Counter {
 public:
  void add(std::uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class Histogram {
 public:
  // Ascending upper bounds; +Inf is added.
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value);
  std::uint64_t count() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  const std::vector<double>& bounds() const { return bounds_; }
  std::uint64_t bucket(std::size_t i) const { return counts_[i].load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;
  std::deque<std::atomic<std::uint64_t>> counts_;
  std::atomic<double> sum_{0.0};
};

// Names and help are fixed at registration, before any thread reads. Returned references live as long as the registry.
class Registry {
 public:
  // labels: `code="200"`, or "". Counters of one name stand together whatever the order of registration.
  Counter& counter(const std::string& name, const std::string& help, const std::string& labels = "");
  Histogram& histogram(const std::string& name, const std::string& help, std::vector<double> bounds);
  // A value asked for at each scrape; type is "gauge" or "counter".
  void callback(const std::string& name, const std::string& help, const std::string& type,
                std::function<double()> value, const std::string& labels = "");

  // The exposition text, content type text/plain; version=0.0.4.
  std::string text() const;

 private:
  struct Series {
    std::string labels;
    const Counter* counter = nullptr;
    const Histogram* histogram = nullptr;
    std::function<double()> value;
  };
  struct Family {
    std::string name, help, type;
    std::vector<Series> series;
  };
  Family& family(const std::string& name, const std::string& help, const std::string& type);

  std::deque<Counter> counters_;
  std::deque<Histogram> histograms_;
  std::vector<Family> families_;
};

}  // namespace fovea::server
