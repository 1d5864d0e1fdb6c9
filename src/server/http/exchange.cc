#include "server/http/exchange.h"

#include <utility>

namespace fovea::server {

void Exchange::wake_locked() {
  if (wake_pending_ || !wake_) return;
  wake_pending_ = true;
  wake_();
}

void Exchange::respond(HttpResponse response) {
  const std::scoped_lock lock(mutex_);
  if (gone_ || has_response_ || stream_started_) return;
  response_ = std::move(response);
  has_response_ = finished_ = true;
  wake_locked();
}

void Exchange::start_stream(std::string_view keep_alive) {
  const std::scoped_lock lock(mutex_);
  if (gone_ || has_response_ || stream_started_) return;
  keep_alive_ = keep_alive;
  stream_started_ = true;
  wake_locked();
}

void Exchange::write(std::string_view events) {
  std::function<void()> callback;
  {
    const std::scoped_lock lock(mutex_);
    if (gone_ || finished_ || !stream_started_ || events.empty()) return;
    if (events_.size() + events.size() > buffer_limit_) {
      gone_ = true;
      events_.clear();
      callback = std::move(gone_callback_);
      gone_callback_ = nullptr;
    } else {
      events_.append(events);
    }
    wake_locked();
  }
  if (callback) callback();
}

void Exchange::finish() {
  const std::scoped_lock lock(mutex_);
  if (gone_ || finished_) return;
  finished_ = true;
  wake_locked();
}

void Exchange::on_gone(std::function<void()> callback) {
  {
    const std::scoped_lock lock(mutex_);
    if (!gone_) {
      gone_callback_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool Exchange::gone() const {
  const std::scoped_lock lock(mutex_);
  return gone_;
}

void Exchange::take(Output* out) {
  const std::scoped_lock lock(mutex_);
  wake_pending_ = false;
  out->response = std::exchange(response_, std::nullopt);
  out->stream_started = stream_started_;
  out->events.clear();
  out->events.swap(events_);
  out->finished = finished_;
  out->over = gone_;
}

void Exchange::set_wake(std::function<void()> wake) {
  const std::scoped_lock lock(mutex_);
  wake_ = std::move(wake);
  if (wake_ && (has_response_ || stream_started_ || finished_ || gone_)) wake_locked();
}

void Exchange::mark_gone() {
  std::function<void()> callback;
  {
    const std::scoped_lock lock(mutex_);
    if (gone_) return;
    gone_ = true;
    if (!finished_) callback = std::move(gone_callback_);
    gone_callback_ = nullptr;
    events_.clear();
  }
  if (callback) callback();
}

}  // namespace fovea::server
