// LiveView: the engine as GET /engine.json shows it: what the page draws. Used by Service.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fovea/engine.h"
#include "fovea/engine_view.h"
#include "server/metrics/server_metrics.h"

namespace fovea::server {

// A view and the server's latencies as JSON. Nodes and timeline items are rows; "fields" names their columns.
std::string live_view_json(const EngineView& view, const Engine& engine, const std::string& model,
                           const ServerMetrics& metrics);

class LiveView {
 public:
  // Engine and metrics must outlive it and every call back.
  LiveView(Engine& engine, const ServerMetrics& metrics, std::string model);

  using Callback = std::function<void(const std::string& json)>;
  // Calls back once, from the engine's thread. The engine makes one picture for all who ask during a step.
  void ask(Callback callback);

 private:
  struct Waiting;

  Engine& engine_;
  const ServerMetrics& metrics_;
  const std::string model_;
  std::shared_ptr<Waiting> waiting_;
};

}  // namespace fovea::server
