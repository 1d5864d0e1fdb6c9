// Exchange: the answer to one HTTP request, filled from any thread (a handler's, the engine's), sent by the connection.
// Its buffer is bounded: a client that reads slower than tokens come is cut, and nobody else waits for it.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace fovea::server {

class Exchange {
 public:
  // buffer_limit: bytes of a stream that may wait for the client.
  explicit Exchange(std::size_t buffer_limit) : buffer_limit_(buffer_limit) {}

  // --- for handlers, any thread; each is ignored once the client is gone -------------------------------------------
  // The whole answer. Only the first of respond() and start_stream() counts.
  void respond(HttpResponse response);
  // Sends the head of an event stream (200, text/event-stream); write() and finish() follow. keep_alive: a whole event
  // or comment that is sent whenever nothing else was for a while; empty: none.
  void start_stream(std::string_view keep_alive = {});
  // Whole events only: a client may take what one write brings for whole events.
  void write(std::string_view events);
  void finish();
  // Called once when the client leaves before the end (or at once if it has); from any thread, without a lock held.
  // Not called after finish() or respond().
  void on_gone(std::function<void()> callback);
  bool gone() const;

  // --- for the connection ------------------------------------------------------------------------------------------
  struct Output {
    std::optional<HttpResponse> response;
    bool stream_started = false;  // true from start_stream() on
    std::string events;           // new ones
    bool finished = false;        // nothing more will come
    bool over = false;            // the client is gone, or the buffer overflowed: close now
  };
  // What start_stream() was told; unchanging from then on.
  const std::string& keep_alive() const { return keep_alive_; }
  // Moves out what there is, into an Output that may have been used before: its buffer is taken for what comes next.
  void take(Output* out);
  // Called (once until the next take) when there is something to take; set to null to detach.
  void set_wake(std::function<void()> wake);
  // The client left.
  void mark_gone();

 private:
  void wake_locked();

  const std::size_t buffer_limit_;
  mutable std::mutex mutex_;
  std::optional<HttpResponse> response_;
  std::string events_, keep_alive_;
  bool has_response_ = false, stream_started_ = false, finished_ = false, gone_ = false;
  bool wake_pending_ = false;
  std::function<void()> wake_, gone_callback_;
};

}  // namespace fovea::server
