// OtlpExporter: sends requests as spans to an OpenTelemetry collector, by OTLP over HTTP as JSON, from a thread of its
// own. Handing it a request takes a lock and a copy; where the collector is slow or away, requests are dropped and
// counted. Started by `fovea serve --otlp-endpoint`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "fovea/status.h"
#include "server/metrics/request_log.h"

namespace fovea::server {

struct OtlpOptions {
  std::string endpoint;            // "http://127.0.0.1:4318", or https; spans go to /v1/traces below it
  std::string ca_file;             // PEM of the authorities that are trusted; empty: the system's
  std::string service = "fovea";   // service.name
  std::size_t max_waiting = 2048;  // requests; more are dropped
  double timeout_seconds = 5.0;    // for each wait on the collector
};

class OtlpExporter {
 public:
  // kInvalidArgument: the endpoint is no http:// or https:// URL, or the authorities cannot be read. Whether anybody
  // listens there is not asked.
  static Result<std::unique_ptr<OtlpExporter>> start(const OtlpOptions& options);
  // Sends what waits, for two seconds at most.
  ~OtlpExporter();
  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

  // A request that ended now. Any thread; never waits for the collector. Those whose caller does not sample are passed
  // over.
  void add(const RequestRecord& record);
  std::uint64_t sent() const;     // spans that the collector took
  std::uint64_t dropped() const;  // requests whose spans it did not get

 private:
  struct State;
  explicit OtlpExporter(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // the thread's too, which may outlive this at a collector that hangs
};

}  // namespace fovea::server
