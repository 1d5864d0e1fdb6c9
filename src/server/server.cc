#include "server/server.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "base/status.h"
#include "server/http/local_host.h"

namespace fovea::server {

Server::Server(Engine& engine, const ServerOptions& options) : engine_(engine), options_(options) {
  ServiceOptions service = options.service;
  service.cors_origin = options.http.cors_origin;
  service.loopback = is_loopback(options.http.host);
  service_ = std::make_unique<Service>(engine, std::move(service));
}

Result<std::unique_ptr<Server>> Server::start(Engine& engine, const ServerOptions& options) {
  std::unique_ptr<Server> server(new Server(engine, options));
  Service* service = server->service_.get();
  FOVEA_ASSIGN_OR_RETURN(server->http_,
                         HttpServer::start(options.http, [service](HttpRequest request, std::shared_ptr<Exchange> out) {
                           service->handle(std::move(request), out);
                         }));
  return Result<std::unique_ptr<Server>>(std::move(server));
}

Status Server::reload(const ServerOptions& options) {
  FOVEA_RETURN_IF_ERROR(check_http_options(options.http));
  FOVEA_RETURN_IF_ERROR(http_->set_limits(options.http));
  service_->set_api_keys(options.service.api_keys);
  return {};
}

Server::~Server() {
  if (!stopped_ && http_) drain(0.0);
}

std::string Server::url() const {
  const std::string& host = options_.http.host;
  const bool any = host == "0.0.0.0" || host == "::";
  const bool v6 = host.find(':') != std::string::npos && !any;
  return fmt::format("{}://{}:{}", options_.http.tls_cert.empty() ? "http" : "https",
                     any  ? "127.0.0.1"
                     : v6 ? "[" + host + "]"
                          : host,
                     port());
}

bool Server::wait_idle(double seconds, const std::atomic<bool>* hurry) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1e3));
  while (http_->active() > 0) {
    if (std::chrono::steady_clock::now() >= deadline || (hurry != nullptr && hurry->load())) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

bool Server::drain(double seconds, const std::atomic<bool>* hurry) {
  if (stopped_) return true;
  stopped_ = true;
  service_->drain();
  http_->drain();
  const bool clean = wait_idle(seconds, hurry);
  engine_.shutdown(0.0);
  // What was cancelled still gets its error sent.
  if (!clean) wait_idle(1.0, nullptr);
  http_->stop();
  return clean;
}

}  // namespace fovea::server
