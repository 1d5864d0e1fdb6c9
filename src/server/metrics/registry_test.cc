#include "server/metrics/registry.h"

#include <gtest/gtest.h>

namespace fovea::server {
namespace {

TEST(RegistryTest, WritesTheExpositionFormat) {
  Registry registry;
  Counter& ok = registry.counter("requests_total", "Requests", "code=\"200\"");
  registry.callback("temperature", "Now\nhere", "gauge", [] { return 1.5; });
  Counter& bad = registry.counter("requests_total", "Requests", "code=\"400\"");
  Histogram& time = registry.histogram("time_seconds", "Time", {0.1, 1.0});
  ok.add(3);
  bad.add();
  time.observe(0.1);
  time.observe(0.5);
  time.observe(7.0);
  EXPECT_EQ(registry.text(),
            "# HELP requests_total Requests\n"
            "# TYPE requests_total counter\n"
            "requests_total{code=\"200\"} 3\n"
            "requests_total{code=\"400\"} 1\n"
            "# HELP temperature Now\\nhere\n"
            "# TYPE temperature gauge\n"
            "temperature 1.5\n"
            "# HELP time_seconds Time\n"
            "# TYPE time_seconds histogram\n"
            "time_seconds_bucket{le=\"0.1\"} 1\n"
            "time_seconds_bucket{le=\"1\"} 2\n"
            "time_seconds_bucket{le=\"+Inf\"} 3\n"
            "time_seconds_sum 7.6\n"
            "time_seconds_count 3\n");
  EXPECT_EQ(time.count(), 3u);
}

}  // namespace
}  // namespace fovea::server
