// CUDA graphs: what a function enqueues on a stream, captured once and launched again. Used by tests, benchmarks and
// the engine's CUDA device.
#pragma once

#include <functional>

#include "cuda/handle.h"

namespace fovea::cuda {

void destroy_graph(const Driver& driver, void* graph);

class Graph {
 public:
  Graph() = default;
  // Records what `enqueue` puts into the stream, which must not be the default stream. Nothing runs. A failure of
  // enqueue ends the capture and is returned.
  static Result<Graph> capture(const Device& device, StreamHandle stream, const std::function<Status()>& enqueue);

  // Captures again, into this graph: other arguments and grids in place, a new graph where other nodes were captured.
  // Not while it runs. After a failure the graph is what it was.
  Status update(StreamHandle stream, const std::function<Status()>& enqueue);
  Status launch(StreamHandle stream) const;
  explicit operator bool() const { return static_cast<bool>(exec_); }

 private:
  Handle<destroy_graph> exec_;
};

}  // namespace fovea::cuda
