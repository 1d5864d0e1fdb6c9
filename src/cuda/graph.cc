#include "cuda/graph.h"

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fovea::cuda {
namespace {

constexpr int kThreadLocal = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

}  // namespace

void destroy_graph(const Driver& driver, void* graph) { driver.api().graph_exec_destroy(graph); }

Result<Graph> Graph::capture(const Device& device, StreamHandle stream, const std::function<Status()>& enqueue) {
  const ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  const Driver& driver = device.driver();
  const DriverApi& api = driver.api();
  FOVEA_RETURN_IF_ERROR(driver.status(api.stream_begin_capture(stream, kThreadLocal), "cuStreamBeginCapture"));
  const Status enqueued = enqueue();
  CuGraph recorded = nullptr;
  const Status ended = driver.status(api.stream_end_capture(stream, &recorded), "cuStreamEndCapture");
  CuGraphExec exec = nullptr;
  Status made = enqueued.ok() ? ended : enqueued;
  if (made.ok()) made = driver.status(api.graph_instantiate(&exec, recorded, 0), "cuGraphInstantiate");
  if (recorded != nullptr) api.graph_destroy(recorded);
  FOVEA_RETURN_IF_ERROR(made);
  Graph graph;
  graph.exec_ = {device, exec};
  return graph;
}

Status Graph::launch(StreamHandle stream) const {
  const Driver& driver = exec_.device().driver();
  return driver.status(driver.api().graph_launch(exec_.get(), stream), "cuGraphLaunch");
}

}  // namespace fovea::cuda
