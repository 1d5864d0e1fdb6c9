// Streams and events. Owned by tests and benchmarks (backends run on the caller's stream) and by backends that wait for
// copies.
#pragma once

#include "cuda/handle.h"

namespace fovea::cuda {

void destroy_stream(const Driver& driver, void* stream);
void destroy_event(const Driver& driver, void* event);

// A stream that does not wait for the default stream.
class Stream {
 public:
  Stream() = default;
  static Result<Stream> create(const Device& device);

  StreamHandle handle() const { return handle_.get(); }
  Status synchronize() const;

 private:
  Handle<destroy_stream> handle_;
};

class Event {
 public:
  Event() = default;
  // timing: elapsed_ms() works; costs a little more to record.
  static Result<Event> create(const Device& device, bool timing = false);

  Status record(StreamHandle stream) const;
  // Until what was recorded last is done; at once when nothing was.
  Status synchronize() const;
  Result<float> elapsed_ms(const Event& end) const;

 private:
  Handle<destroy_event> handle_;
};

// Until everything enqueued on the stream is done.
Status synchronize(const Device& device, StreamHandle stream);

// Whether the stream is capturing a graph.
Result<bool> is_capturing(const Device& device, StreamHandle stream);

}  // namespace fovea::cuda
