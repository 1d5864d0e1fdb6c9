// Records, changes and launches CUDA graphs.
#include "cuda/graph.h"

#include "base/status.h"
#include "cuda/driver_api.h"

namespace fovea::cuda {
namespace {

void destroy_captured(const Driver& driver, void* graph) { driver.api().graph_destroy(graph); }
using CapturedGraph = Handle<destroy_captured>;

Result<CapturedGraph> capture_graph(const Device& device, StreamHandle stream, const std::function<Status()>& enqueue) {
  if (stream == nullptr) return invalid_argument("the default stream cannot be captured; pass a stream of your own");
  const ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  const Driver& driver = device.driver();
  const DriverApi& api = driver.api();
  FOVEA_RETURN_IF_ERROR(driver.status(api.stream_begin_capture(stream, kCuCaptureThreadLocal), "cuStreamBeginCapture"));
  const Status enqueued = enqueue();
  CuGraph graph = nullptr;
  const Status ended = driver.status(api.stream_end_capture(stream, &graph), "cuStreamEndCapture");
  CapturedGraph captured(device, graph);
  FOVEA_RETURN_IF_ERROR(enqueued);  // the cause, where both failed
  FOVEA_RETURN_IF_ERROR(ended);
  return captured;
}

Result<CuGraphExec> instantiate(const Driver& driver, CuGraph graph) {
  CuGraphExec exec = nullptr;
  FOVEA_RETURN_IF_ERROR(driver.status(driver.api().graph_instantiate(&exec, graph, 0), "cuGraphInstantiate"));
  return exec;
}

}  // namespace

void destroy_graph(const Driver& driver, void* graph) { driver.api().graph_exec_destroy(graph); }

Result<Graph> Graph::capture(const Device& device, StreamHandle stream, const std::function<Status()>& enqueue) {
  FOVEA_ASSIGN_OR_RETURN(const CapturedGraph captured, capture_graph(device, stream, enqueue));
  const ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_ASSIGN_OR_RETURN(const CuGraphExec exec, instantiate(device.driver(), captured.get()));
  Graph graph;
  graph.exec_ = {device, exec};
  return graph;
}

Status Graph::update(StreamHandle stream, const std::function<Status()>& enqueue) {
  if (!exec_) return invalid_argument("a graph is updated that was never captured");
  const Device device = exec_.device();
  FOVEA_ASSIGN_OR_RETURN(const CapturedGraph captured, capture_graph(device, stream, enqueue));
  const ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  const Driver& driver = device.driver();
  CuGraphExecUpdateResult result{};
  const CuResult code = driver.api().graph_update(exec_.get(), captured.get(), &result);
  if (code != kCuGraphUpdateFailure) return driver.status(code, "cuGraphExecUpdate");
  FOVEA_ASSIGN_OR_RETURN(const CuGraphExec exec, instantiate(driver, captured.get()));
  exec_ = {device, exec};
  return ok_status();
}

Status Graph::launch(StreamHandle stream) const {
  if (!exec_) return invalid_argument("a graph is launched that was never captured");
  const Driver& driver = exec_.device().driver();
  return driver.status(driver.api().graph_launch(exec_.get(), stream), "cuGraphLaunch");
}

}  // namespace fovea::cuda
