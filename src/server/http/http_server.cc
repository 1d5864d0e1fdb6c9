#include "server/http/http_server.h"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "base/status.h"
#include "server/http/connection.h"

namespace fovea::server {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;

// Null: plain HTTP.
Result<std::shared_ptr<asio::ssl::context>> tls_of(const HttpOptions& options) {
  if (options.tls_cert.empty() && options.tls_key.empty()) return std::shared_ptr<asio::ssl::context>();
  if (options.tls_cert.empty() || options.tls_key.empty()) {
    return invalid_argument("--tls-{} is given without --tls-{}; TLS needs both",
                            options.tls_cert.empty() ? "key" : "cert", options.tls_cert.empty() ? "cert" : "key");
  }
  return load_tls(options.tls_cert, options.tls_key);
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const HttpOptions& options, HttpHandler handler, std::shared_ptr<asio::ssl::context> tls)
      : pool_(static_cast<std::size_t>(options.handler_threads)),
        large_pool_(1),
        io_(options.io_threads),
        wakes_(io_, options.io_threads == 1),
        acceptor_(io_) {
    context_.set_options(options, std::move(tls));
    context_.handler = std::move(handler);
    context_.wakes = &wakes_;
    context_.pool = &pool_;
    context_.large_pool = &large_pool_;
    context_.id_salt = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  }
  ~HttpServerImpl() override { stop(); }

  Status listen();
  std::int32_t port() const override { return port_; }
  std::int64_t active() const override { return context_.active.load(); }
  std::int64_t connections() const override { return context_.connections.load(); }
  Status set_limits(const HttpOptions& options) override;
  void drain() override { context_.draining.store(true); }
  void stop() override;

 private:
  awaitable<void> accept_loop();
  void run_io();

  ConnectionContext context_;
  asio::thread_pool pool_, large_pool_;
  asio::io_context io_;  // destroyed before the context and the pools that its coroutines refer to
  WakeList wakes_;
  tcp::acceptor acceptor_;
  std::vector<std::thread> threads_;
  std::int32_t port_ = 0;
};

Status HttpServerImpl::listen() {
  const std::shared_ptr<const HttpOptions> held = context_.options();
  const HttpOptions& options = *held;
  error_code error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), error);
  if (error || found.empty()) {
    return make_status(StatusCode::kUnavailable, "cannot resolve the address {}: {}", shorten(options.host),
                       error.message());
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(1024, error);
  if (error) {
    const bool elsewhere = error == boost::system::errc::address_not_available;
    return make_status(StatusCode::kUnavailable, "cannot listen on {}:{}: {}; {}", options.host, options.port,
                       error.message(),
                       elsewhere ? "--host takes an address of this machine" : "another --port, or 0 for a free one");
  }
  port_ = acceptor_.local_endpoint(error).port();
  asio::co_spawn(io_, accept_loop(), asio::detached);
  for (std::int32_t i = 0; i < options.io_threads; ++i) threads_.emplace_back([this] { run_io(); });
  return {};
}

// Where memory ends while a body is read, the connection ends with the exception, and the others go on.
void HttpServerImpl::run_io() {
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::bad_alloc&) {  // nothing is logged: that takes memory
      continue;
    }
  }
}

Status HttpServerImpl::set_limits(const HttpOptions& options) {
  const auto now = context_.options();
  HttpOptions next = options;
  next.cors_origin = now->cors_origin;
  next.io_threads = now->io_threads;
  next.tls_cert = now->tls_cert;
  next.tls_key = now->tls_key;
  FOVEA_ASSIGN_OR_RETURN(auto tls, tls_of(next));
  if (tls) warn_of_dates(*tls, next.tls_cert);
  context_.set_options(std::move(next), std::move(tls));
  return {};
}

awaitable<void> HttpServerImpl::accept_loop() {
  for (;;) {
    error_code error;
    // One thread is a strand by itself.
    const asio::any_io_executor executor = context_.options()->io_threads == 1
                                               ? asio::any_io_executor(io_.get_executor())
                                               : asio::any_io_executor(asio::make_strand(io_));
    tcp::socket socket(executor);
    co_await acceptor_.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
    if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
    if (error) {  // out of descriptors, mostly: wait for some to be freed
      asio::steady_timer pause(io_, std::chrono::milliseconds(50));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    const bool refuse = context_.connections.load() >= context_.options()->max_connections;
    asio::co_spawn(executor, serve_connection(std::move(socket), context_, refuse), asio::detached);
  }
}

void HttpServerImpl::stop() {
  io_.stop();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  threads_.clear();
  pool_.join();
  large_pool_.join();
}

}  // namespace

Status check_http_options(const HttpOptions& options) {
  if (options.port < 0 || options.port > 65535) {
    return invalid_argument("port is {}, expected 0..65535", options.port);
  }
  constexpr std::int32_t kMaxThreads = 1024;
  for (const auto& [name, threads] : {std::pair("io", options.io_threads), {"handler", options.handler_threads}}) {
    if (threads < 1 || threads > kMaxThreads) {
      return invalid_argument("{} threads are {}, expected 1..{}", name, threads, kMaxThreads);
    }
  }
  if (options.max_connections < 1)
    return invalid_argument("connections are {}, expected 1 or more", options.max_connections);
  constexpr double kMaxSeconds = 1e6;
  for (const auto& [name, seconds] :
       {std::pair("idle", options.idle_seconds), {"read", options.read_seconds}, {"write", options.write_seconds}}) {
    if (!(seconds > 0.0 && seconds <= kMaxSeconds)) {
      return invalid_argument("{} seconds are {}, expected more than 0 and at most {}", name, seconds, kMaxSeconds);
    }
  }
  if (options.host.empty())
    return invalid_argument("the host is empty; 127.0.0.1 is this machine, 0.0.0.0 all addresses");
  return tls_of(options).status();
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options, HttpHandler handler) {
  FOVEA_RETURN_IF_ERROR(check_http_options(options));
  FOVEA_ASSIGN_OR_RETURN(auto tls, tls_of(options));
  if (tls) warn_of_dates(*tls, options.tls_cert);
  auto server = std::make_unique<HttpServerImpl>(options, std::move(handler), std::move(tls));
  FOVEA_RETURN_IF_ERROR(server->listen());
  return Result<std::unique_ptr<HttpServer>>(std::move(server));
}

}  // namespace fovea::server
