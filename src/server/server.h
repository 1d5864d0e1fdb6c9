// Server: an OpenAI-compatible HTTP server over an Engine. `fovea serve` and `fovea demo` start one; C++ programs may.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "fovea/engine.h"
#include "fovea/status.h"
#include "server/http/http_server.h"
#include "server/openai/service.h"

namespace fovea::server {

struct ServerOptions {
  HttpOptions http;
  ServiceOptions service;
};

class Server {
 public:
  // Listens and serves at once. The engine must outlive the server, and must not call back after the server is gone:
  // shut it down first (drain does).
  static Result<std::unique_ptr<Server>> start(Engine& engine, const ServerOptions& options);
  ~Server();

  std::int32_t port() const { return http_->port(); }
  // "http://127.0.0.1:8000", https with TLS
  std::string url() const;
  const HttpServer& http() const { return *http_; }
  Service& service() { return *service_; }

  // API keys, and limits of connections, as `options` has them; the rest of it takes a new server. What is wrong with
  // them, in which case nothing changes.
  Status reload(const ServerOptions& options);

  // /ready turns 503 and new generations are refused at once; waits up to `seconds` for those that run, cancels the
  // rest (their clients get an error) and stops. `hurry`, when it turns true, ends the wait. True when nothing had to
  // be cancelled.
  bool drain(double seconds, const std::atomic<bool>* hurry = nullptr);

 private:
  Server(Engine& engine, const ServerOptions& options);
  // Until no request is in flight, the deadline, or *hurry.
  bool wait_idle(double seconds, const std::atomic<bool>* hurry) const;

  Engine& engine_;
  ServerOptions options_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> http_;
  bool stopped_ = false;
};

}  // namespace fovea::server
