// HttpServer: HTTP/1.1 on one I/O thread (or more), one coroutine a connection. It reads requests within limits, hands
// them to a handler, sends what the handler's Exchange collects and notices clients that leave. Used by Server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "fovea/status.h"
#include "server/http/exchange.h"
#include "server/http/message.h"

namespace fovea::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  std::int32_t port = 8000;  // 0: a free one
  std::int32_t io_threads = 1;
  std::int32_t handler_threads = 4;              // run handlers of POST requests, which compile grammars
  std::int32_t max_connections = 4096;           // more are answered 503
  std::size_t max_header_bytes = 16u << 10;      // more: 431
  std::size_t max_body_bytes = 32u << 20;        // more: 413
  std::size_t stream_buffer_bytes = 256u << 10;  // waiting for one client; more: the client is cut
  std::size_t large_body_bytes = 64u << 10;      // more: handled on a thread of its own, so that others need not wait
  double idle_seconds = 75.0;                    // for the next request on a connection
  double read_seconds = 60.0;                    // for one request to come in whole
  double write_seconds = 30.0;                   // for the client to take what was written
  double keep_alive_seconds = 10.0;              // of silence in a stream, until its keep-alive is sent
  std::string tls_cert, tls_key;                 // PEM files; both empty: plain HTTP
  std::string cors_origin;                       // Access-Control-Allow-Origin; empty: no CORS headers
};

// What is wrong with them.
Status check_http_options(const HttpOptions& options);

// Runs on a handler thread (POST) or the I/O thread (others: must be quick). It may keep the exchange
// and answer later from any thread.
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<Exchange>)>;

class HttpServer {
 public:
  // Listens and starts the threads. kUnavailable: the address is taken or not ours.
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options, HttpHandler handler);
  virtual ~HttpServer() = default;  // closes every connection and joins the threads

  virtual std::int32_t port() const = 0;
  // Requests being answered.
  virtual std::int64_t active() const = 0;
  virtual std::int64_t connections() const = 0;
  // Numbers of connections and bytes, and times: those of `options` hold for connections made from now on, and so does
  // what the files of the certificate hold now. An error: they cannot be used, and nothing changed.
  virtual Status set_limits(const HttpOptions& options) = 0;
  // From now on answers carry Connection: close.
  virtual void drain() = 0;
  // Stops accepting, drops every connection and joins the threads.
  virtual void stop() = 0;
};

}  // namespace fovea::server
