// The thread: waits for events and questions, answers both.
#include "server/events/event_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/quote.h"
#include "base/status.h"
#include "server/events/zmq_library.h"

namespace fovea::server {
namespace {

constexpr int kMostUnsent = 100'000;  // messages for a subscriber that lags; more are lost to it
constexpr int kLingerMs = 200;        // at the end

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// ZeroMQ takes the low 16 bits of what is larger.
bool has_port(const std::string& endpoint) {
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  const bool is_number = !port.empty() && port.find_first_not_of("0123456789") == std::string::npos;
  return !endpoint.starts_with("tcp://") || !is_number || (port.size() <= 5 && std::stoi(port) <= 65535);
}

bool listens(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://");
}

}  // namespace

struct EventPublisher::State {
  EventOptions options;
  ZmqLibrary zmq;
  void* context = nullptr;
  void* publisher = nullptr;
  void* router = nullptr;  // or null
  int wake = -1;

  std::mutex mutex;
  std::vector<std::pair<double, std::vector<KvEvent>>> waiting;
  bool stop = false;

  // Of the thread.
  std::deque<std::string> kept;  // payloads of the latest batches
  std::uint64_t next_sequence = 0;
  std::thread thread;

  ~State() {
    if (thread.joinable()) {
      {
        const std::lock_guard lock(mutex);
        stop = true;
      }
      ring();
      thread.join();
    }
    for (void* socket : {publisher, router}) {
      if (socket != nullptr) zmq.close(socket);
    }
    if (context != nullptr) zmq.ctx_term(context);
    if (wake >= 0) ::close(wake);
  }

  void ring() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake, &one, sizeof(one));
  }

  Result<void*> open(int type, const std::string& endpoint) const {
    if (!has_port(endpoint)) {
      return invalid_argument("KV events: the port of {} is beyond 65535; expected an endpoint such as tcp://*:5557",
                              shorten(endpoint));
    }
    void* const socket = zmq.socket(context, type);
    if (socket == nullptr) return internal_error("a socket of libzmq: {}", zmq.error_text(zmq.error()));
    zmq.setsockopt(socket, kZmqLinger, &kLingerMs, sizeof(kLingerMs));
    zmq.setsockopt(socket, kZmqSndHwm, &kMostUnsent, sizeof(kMostUnsent));
    const int failed = listens(endpoint) ? zmq.bind(socket, endpoint.c_str()) : zmq.connect(socket, endpoint.c_str());
    if (failed == 0) return socket;
    const Status status =
        invalid_argument("KV events cannot {} {}: {}; expected an endpoint such as tcp://*:5557",
                         listens(endpoint) ? "listen on" : "connect to", endpoint, zmq.error_text(zmq.error()));
    zmq.close(socket);
    return status;
  }

  bool send(void* socket, std::string_view frame, bool more) const {
    return zmq.send(socket, frame.data(), frame.size(), kZmqDontWait | (more ? kZmqSndMore : 0)) >= 0;
  }

  void publish_waiting() {
    std::uint64_t rings = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake, &rings, sizeof(rings));
    std::vector<std::pair<double, std::vector<KvEvent>>> batches;
    {
      const std::lock_guard lock(mutex);
      batches.swap(waiting);
    }
    for (const auto& [seconds, events] : batches) {
      kept.push_back(event_payload(events, seconds, options.shape));
      if (kept.size() > kKeptBatches) kept.pop_front();
      // A PUB socket never waits: it drops what a subscriber has no room for.
      send(publisher, options.topic, true) && send(publisher, event_sequence(next_sequence), true) &&
          send(publisher, kept.back(), false);
      ++next_sequence;
    }
  }

  // A message of a few short frames; what is longer or more is not for us, and its end comes first.
  std::optional<std::vector<std::string>> receive() const {
    std::vector<std::string> frames;
    bool fits = true;
    while (true) {
      std::array<char, 256> buffer{};
      const int size = zmq.recv(router, buffer.data(), buffer.size(), kZmqDontWait);
      if (size < 0) return std::nullopt;
      fits = fits && static_cast<std::size_t>(size) <= buffer.size() && frames.size() < 3;
      if (fits) frames.emplace_back(buffer.data(), static_cast<std::size_t>(size));
      int more = 0;
      std::size_t bytes = sizeof(more);
      if (zmq.getsockopt(router, kZmqRcvMore, &more, &bytes) != 0 || more == 0) break;
    }
    return fits ? frames : std::vector<std::string>();
  }

  void answer_questions() const {
    while (const auto frames = receive()) {
      if (frames->size() != 3 || (*frames)[2].size() != 8) continue;
      const std::string& peer = (*frames)[0];
      std::uint64_t from = 0;
      for (const char byte : (*frames)[2]) from = from << 8 | static_cast<unsigned char>(byte);
      const std::uint64_t first = next_sequence - kept.size();
      const auto answer = [&](std::uint64_t sequence, std::string_view payload) {
        return send(router, peer, true) && send(router, "", true) && send(router, event_sequence(sequence), true) &&
               send(router, payload, false);
      };
      bool there = true;
      for (std::uint64_t i = std::max(from, first); i < next_sequence && there; ++i) there = answer(i, kept[i - first]);
      if (there) answer(~std::uint64_t{0}, "");
    }
  }

  void loop() {
    std::array<ZmqPollItem, 2> items;
    items[0] = {nullptr, wake, kZmqPollIn, 0};
    items[1] = {router, -1, kZmqPollIn, 0};
    while (true) {
      zmq.poll(items.data(), router == nullptr ? 1 : 2, -1);
      publish_waiting();
      if (router != nullptr) answer_questions();
      const std::lock_guard lock(mutex);
      if (stop && waiting.empty()) return;
    }
  }
};

Result<std::unique_ptr<EventPublisher>> EventPublisher::start(const EventOptions& options) {
  auto state = std::make_unique<State>();
  state->options = options;
  FOVEA_ASSIGN_OR_RETURN(state->zmq, ZmqLibrary::load());
  state->wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  state->context = state->zmq.ctx_new();
  if (state->wake < 0 || state->context == nullptr) {
    return resource_exhausted("KV events: no file descriptor is left for their sockets");
  }
  FOVEA_ASSIGN_OR_RETURN(state->publisher, state->open(kZmqPub, options.endpoint));
  if (!options.replay_endpoint.empty()) {
    FOVEA_ASSIGN_OR_RETURN(state->router, state->open(kZmqRouter, options.replay_endpoint));
  }
  state->thread = std::thread([state = state.get()] { state->loop(); });
  return std::unique_ptr<EventPublisher>(new EventPublisher(std::move(state)));
}

EventPublisher::EventPublisher(std::unique_ptr<State> state) : state_(std::move(state)) {}
EventPublisher::~EventPublisher() = default;

void EventPublisher::publish(std::vector<KvEvent> events) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.emplace_back(unix_seconds(), std::move(events));
  }
  state_->ring();
}

}  // namespace fovea::server
