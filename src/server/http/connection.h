// One HTTP connection: the coroutine that reads requests, hands them on and sends the answers. Included only by
// connection.cc and http_server.cc, because Beast takes long to compile.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <mutex>
#include <utility>

#include "server/http/http_server.h"
#include "server/http/tls.h"
#include "server/http/wake_list.h"

namespace fovea::server {

// What all connections of a server share.
struct ConnectionContext {
  std::shared_ptr<const HttpOptions> options() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return options_;
  }
  // Null: plain HTTP.
  std::shared_ptr<boost::asio::ssl::context> tls() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return tls_;
  }
  void set_options(HttpOptions options, std::shared_ptr<boost::asio::ssl::context> tls) {
    auto next = std::make_shared<const HttpOptions>(std::move(options));
    const std::lock_guard<std::mutex> lock(mutex_);
    options_ = std::move(next);
    tls_ = std::move(tls);
  }

  HttpHandler handler;
  WakeList* wakes = nullptr;
  boost::asio::thread_pool* pool = nullptr;
  boost::asio::thread_pool* large_pool = nullptr;  // for large bodies
  std::atomic<std::int64_t> active{0};
  std::atomic<std::int64_t> connections{0};
  std::atomic<bool> draining{false};
  std::atomic<std::uint64_t> next_id{0};
  std::uint64_t id_salt = 0;

 private:
  mutable std::mutex mutex_;
  // Each connection keeps those that it began with.
  std::shared_ptr<const HttpOptions> options_;
  std::shared_ptr<boost::asio::ssl::context> tls_;
};

// Serves the socket until it closes. `refuse`: there are too many connections; answers 503 and closes.
boost::asio::awaitable<void> serve_connection(boost::asio::ip::tcp::socket socket, ConnectionContext& context,
                                              bool refuse);

}  // namespace fovea::server
