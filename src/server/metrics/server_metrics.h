// ServerMetrics: every metric the server publishes, by name. Handlers update it, GET /metrics prints it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "fovea/engine.h"
#include "server/metrics/registry.h"

namespace fovea::server {

class OtlpExporter;

class ServerMetrics {
 public:
  // The engine must outlive the metrics, and so must the exporter, which may be null.
  ServerMetrics(const Engine& engine, const OtlpExporter* traces);

  // Counts an answered request; unknown paths and statuses fall into "other".
  void count_request(std::string_view path, std::int32_t status);
  std::string text() const { return registry_.text(); }

 private:
  Registry registry_;
  std::map<std::string, Counter*, std::less<>> requests_;  // "path status" -> counter

 public:
  Histogram& time_to_first_token;  // seconds, from the request's arrival
  Histogram& inter_token_latency;  // seconds, between one choice's tokens
  Histogram& request_latency;      // seconds, arrival to the last token
  Histogram& prompt_tokens;        // of a request
  Histogram& completion_tokens;    // of a request, all choices
  Counter& disconnects;            // clients that left, or were cut, before the end
};

}  // namespace fovea::server
