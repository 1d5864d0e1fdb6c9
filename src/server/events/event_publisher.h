// EventPublisher: sends KV events to routers over ZeroMQ, and those of the past to who asks: vLLM's protocol. PUB:
// topic, sequence number, payload. ROUTER (replay): asked for a number, it answers with each batch from that one on
// that is kept, then with number -1 and nothing. Made by `fovea serve --kv-events`; a thread of its own owns the
// sockets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fovea/kv_event.h"
#include "fovea/status.h"
#include "server/events/event_format.h"

namespace fovea::server {

struct EventOptions {
  // "tcp://*:5557": addresses with a *, :: or of ipc are listened on, others connected to. Replay: empty for none.
  std::string endpoint;
  std::string replay_endpoint;
  std::string topic;
  EventShape shape = EventShape::kMap;
};

class EventPublisher {
 public:
  static constexpr std::size_t kKeptBatches = 10'000;

  static Result<std::unique_ptr<EventPublisher>> start(const EventOptions& options);
  ~EventPublisher();

  // From any thread; only puts the events in a queue.
  void publish(std::vector<KvEvent> events);

 private:
  struct State;
  explicit EventPublisher(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace fovea::server
