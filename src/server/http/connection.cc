#include "server/http/connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

#include "server/http/local_host.h"
#include "server/http/transport.h"

namespace fovea::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::awaitable;
using boost::system::error_code;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

// True when the peer closed its side (FIN), reset or the socket failed. A client that shuts down its sending half is
// taken to have left: over TCP the two look alike until something is written.
bool peer_closed(int fd) {
  pollfd entry{fd, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

bool is_sane_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

class Connection final : public std::enable_shared_from_this<Connection>, public WakeList::Sleeper {
 public:
  Connection(asio::ip::tcp::socket socket, ConnectionContext& context)
      : stream_(std::move(socket), context.tls()),
        signal_(stream_.get_executor()),
        retry_(stream_.get_executor()),
        context_(context),
        options_(context.options()) {
    error_code ignored;
    stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    context_.connections.fetch_add(1);
  }
  ~Connection() override {
    if (exchange_) detach();
    context_.connections.fetch_sub(1);
  }

  awaitable<void> run(bool refuse);

  void wake(const Exchange* exchange) override;
  asio::any_io_executor executor() override { return stream_.get_executor(); }

 private:
  using Parser = http::request_parser<http::string_body>;

  awaitable<bool> shake_hands();
  awaitable<bool> read_request(Parser* parser, HttpRequest* request);
  awaitable<bool> answer();
  bool advance();
  void frame();
  void append_chunk(std::string_view events);
  void keep_alive();
  void send_now();
  awaitable<bool> send_rest();
  awaitable<bool> send(std::string bytes);
  awaitable<bool> refuse_request(std::int32_t status, std::string_view message);
  awaitable<void> close_politely();
  std::string head(std::int32_t status, std::string_view content_type) const;
  std::string whole(const HttpResponse& response) const;
  void watch_peer(const std::shared_ptr<Exchange>& exchange);
  void peer_left(const std::shared_ptr<Exchange>& exchange);
  void detach();

  Transport stream_;
  beast::flat_buffer buffer_;
  asio::steady_timer signal_;  // cancelled when the exchange has something; expires where a stream is kept alive
  asio::steady_timer retry_;   // asks again for FIN while pipelined bytes wait unread
  ConnectionContext& context_;
  const std::shared_ptr<const HttpOptions> options_;
  std::shared_ptr<Exchange> exchange_;  // being answered
  bool keep_alive_ = true;
  bool http_1_0_ = false;
  bool is_head_ = false;

  // The answer to the request at hand.
  std::string request_id_;
  Exchange::Output output_;
  std::string unsent_;  // framed; its first sent_ bytes are with the client
  std::size_t sent_ = 0;
  bool head_sent_ = false;
  bool finished_ = false;  // unsent_ is the end of it
  bool over_ = false;      // nobody is there to take it
  bool waiting_ = false;   // answer() waits for signal_, so that wake() may send
  bool spoke_ = false;     // something was framed since signal_ was set
};

awaitable<bool> Connection::send(std::string bytes) {
  unsent_ = std::move(bytes);
  sent_ = 0;
  return send_rest();
}

// As fast as the client takes it.
awaitable<bool> Connection::send_rest() {
  error_code error;
  stream_.tcp().expires_after(milliseconds(options_->write_seconds));
  co_await asio::async_write(stream_, asio::buffer(unsent_) + sent_, asio::redirect_error(asio::use_awaitable, error));
  stream_.tcp().expires_never();
  std::string().swap(unsent_);  // it may have grown large
  sent_ = 0;
  co_return !error;
}

// What goes out without waiting. No timer, coroutine or message takes part: this is where a stream's tokens pass.
void Connection::send_now() {
  if (stream_.tls() != nullptr) return;  // encrypted by send_rest()
  while (sent_ < unsent_.size()) {
    const ssize_t count = ::send(stream_.socket().native_handle(), unsent_.data() + sent_, unsent_.size() - sent_,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      over_ = errno != EAGAIN && errno != EWOULDBLOCK;
      return;
    }
    sent_ += static_cast<std::size_t>(count);
  }
  unsent_.clear();
  sent_ = 0;
}

std::string Connection::head(std::int32_t status, std::string_view content_type) const {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nContent-Type: {}\r\n", status, reason_phrase(status),
                                http_date(), content_type);
  if (!request_id_.empty()) out += fmt::format("x-request-id: {0}\r\nrequest-id: {0}\r\n", request_id_);
  if (!options_->cors_origin.empty()) {
    out += fmt::format("Access-Control-Allow-Origin: {}\r\nAccess-Control-Expose-Headers: x-request-id\r\n",
                       options_->cors_origin);
  }
  if (!keep_alive_) {
    out += "Connection: close\r\n";
  } else if (http_1_0_) {
    out += "Connection: keep-alive\r\n";
  }
  return out;
}

std::string Connection::whole(const HttpResponse& response) const {
  std::string out = head(response.status, response.content_type);
  for (const auto& [name, value] : response.headers) out += fmt::format("{}: {}\r\n", name, value);
  if (response.status != 204) out += fmt::format("Content-Length: {}\r\n", response.body.size());
  out += "\r\n";
  if (!is_head_) out += response.body;
  return out;
}

awaitable<bool> Connection::refuse_request(std::int32_t status, std::string_view message) {
  keep_alive_ = false;
  is_head_ = false;
  co_await send(whole(error_response(status, message)));
  co_await close_politely();
  co_return false;
}

// Half-closes and reads what the client still sends for a moment: closing at once would reset the connection and could
// destroy the answer before the client has read it.
awaitable<void> Connection::close_politely() {
  error_code error;
  if (stream_.tls() != nullptr) {  // says that the answer is whole
    stream_.tcp().expires_after(std::chrono::seconds(2));
    co_await stream_.tls()->async_shutdown(asio::redirect_error(asio::use_awaitable, error));
    stream_.drop_tls();
  }
  error = {};
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, error);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  std::string sink(64u << 10, '\0');
  while (!error && std::chrono::steady_clock::now() < deadline) {
    stream_.tcp().expires_after(std::chrono::seconds(2));
    co_await stream_.async_read_some(asio::buffer(sink), asio::redirect_error(asio::use_awaitable, error));
  }
  stream_.tcp().close();
}

// True: TLS is on. A client that speaks plain HTTP to it is told so.
awaitable<bool> Connection::shake_hands() {
  constexpr char kHandshake = 22;  // what a client of TLS begins with
  error_code error;
  stream_.tcp().expires_after(milliseconds(options_->read_seconds));
  const std::size_t count =
      co_await stream_.tcp().async_read_some(buffer_.prepare(4096), asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return false;
  buffer_.commit(count);
  if (*static_cast<const char*>(buffer_.data().data()) != kHandshake) {
    stream_.drop_tls();
    co_return co_await refuse_request(400, "this port speaks TLS; use https://");
  }
  co_await stream_.tls()->async_handshake(asio::ssl::stream_base::server, buffer_.data(),
                                          asio::redirect_error(asio::use_awaitable, error));
  buffer_.clear();  // all of it was the handshake's
  co_return !error;
}

awaitable<bool> Connection::read_request(Parser* parser, HttpRequest* request) {
  const HttpOptions& options = *options_;
  parser->header_limit(static_cast<std::uint32_t>(options.max_header_bytes));
  parser->body_limit(options.max_body_bytes);
  error_code error;
  // The first byte may take as long as a connection may idle; from then on the request has read_seconds.
  if (buffer_.size() == 0) {
    stream_.tcp().expires_after(milliseconds(options.idle_seconds));
    const std::size_t count =
        co_await stream_.async_read_some(buffer_.prepare(4096), asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return false;
    buffer_.commit(count);
  }
  stream_.tcp().expires_after(milliseconds(options.read_seconds));
  co_await http::async_read_header(stream_, buffer_, *parser, asio::redirect_error(asio::use_awaitable, error));
  // RFC 9112, 6.1: where a body of another coding ends cannot be known, and its bytes must not be read as a request.
  if (const auto& head = parser->get(); !error && head.count(http::field::transfer_encoding) > 0 &&
                                        (head.version() < 11 || head.count(http::field::transfer_encoding) > 1 ||
                                         !beast::iequals(head[http::field::transfer_encoding], "chunked"))) {
    co_return co_await refuse_request(400,
                                      "the Transfer-Encoding of the request is none that this server reads; "
                                      "expected chunked, in HTTP/1.1, or a Content-Length");
  }
  if (!error && beast::iequals(parser->get()[http::field::expect], "100-continue") && !parser->is_done()) {
    const std::string interim = "HTTP/1.1 100 Continue\r\n\r\n";
    co_await asio::async_write(stream_, asio::buffer(interim), asio::redirect_error(asio::use_awaitable, error));
  }
  if (!error && !parser->is_done()) {
    co_await http::async_read(stream_, buffer_, *parser, asio::redirect_error(asio::use_awaitable, error));
  }
  if (error == http::error::body_limit) {
    co_return co_await refuse_request(
        413, fmt::format("the request body is larger than {} bytes; raise --max-body-mib", options.max_body_bytes));
  }
  if (error == http::error::header_limit) {
    co_return co_await refuse_request(
        431, fmt::format("the request header is larger than {} bytes", options.max_header_bytes));
  }
  if (error.category() == http::make_error_code(http::error::bad_target).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message) {
    co_return co_await refuse_request(400, fmt::format("malformed HTTP request: {}", error.message()));
  }
  if (error) co_return false;
  stream_.tcp().expires_never();

  auto& message = parser->get();
  http_1_0_ = message.version() < 11;
  // RFC 9112, 3.2: which of several a proxy before us went by cannot be known.
  const std::size_t hosts = message.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && !http_1_0_) || !is_host(message[http::field::host])) {
    co_return co_await refuse_request(400, fmt::format("{} Host header; expected one, such as \"Host: localhost:8000\"",
                                                       hosts == 0  ? "the request has no"
                                                       : hosts > 1 ? "the request has more than one"
                                                                   : "the request has a malformed"));
  }
  const std::string_view given(message.target().data(), message.target().size());
  const std::string_view target = origin_form(given);
  // The host of a whole URL stands above the header (3.2.2): what this server answers to is judged by it.
  if (target.data() != given.data()) {
    const std::string_view host = target_host(given);
    if (host.empty() || !is_host(host)) {
      co_return co_await refuse_request(400,
                                        "the request's URL has a malformed host; expected one, such as "
                                        "http://localhost:8000/v1/models, or the path alone");
    }
    message.set(http::field::host, host);
  }
  keep_alive_ = message.keep_alive() && !context_.draining.load();
  is_head_ = message.method() == http::verb::head;
  request->method = is_head_ ? "GET" : std::string(message.method_string());
  const std::size_t question = target.find('?');
  request->path = target.substr(0, question);
  if (question != std::string::npos) request->query = target.substr(question + 1);
  for (const auto& field : message) {
    std::string name(field.name_string());
    for (char& c : name) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    request->headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request->body = std::move(message.body());
  request->arrival = std::chrono::steady_clock::now();
  const std::string_view id = request->header("x-request-id");
  request->id =
      is_sane_id(id) ? std::string(id) : fmt::format("req-{:016x}", context_.id_salt + context_.next_id.fetch_add(1));
  co_return true;
}

void Connection::peer_left(const std::shared_ptr<Exchange>& exchange) {
  exchange->mark_gone();
  stream_.tcp().close();
  signal_.cancel();
}

// Fires when the socket becomes readable: either the client left, or it sent its next request already. In the second
// case bytes stay where they are and a timer asks again, so that a client that pipelines and leaves is noticed too.
void Connection::watch_peer(const std::shared_ptr<Exchange>& exchange) {
  stream_.socket().async_wait(asio::ip::tcp::socket::wait_read,
                              [self = shared_from_this(), exchange](error_code error) {
                                if (error || self->exchange_ != exchange) return;
                                if (peer_closed(self->stream_.socket().native_handle())) {
                                  self->peer_left(exchange);
                                  return;
                                }
                                self->retry_.expires_after(std::chrono::milliseconds(100));
                                self->retry_.async_wait([self, exchange](error_code timer_error) {
                                  if (!timer_error && self->exchange_ == exchange) self->watch_peer(exchange);
                                });
                              });
}

void Connection::detach() {
  exchange_->set_wake(nullptr);
  exchange_->mark_gone();
  exchange_.reset();
  context_.active.fetch_sub(1);
}

// Puts what was taken from the exchange behind what is unsent.
void Connection::frame() {
  if (output_.response.has_value()) {
    if (context_.draining.load()) keep_alive_ = false;
    unsent_ += whole(*output_.response);
    return;
  }
  if (output_.stream_started && !head_sent_) {
    head_sent_ = true;
    if (http_1_0_) keep_alive_ = false;
    unsent_ += head(200, "text/event-stream; charset=utf-8");
    unsent_ += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
    unsent_ += http_1_0_ ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n";
  }
  if (!output_.events.empty()) append_chunk(output_.events);
  if (output_.stream_started && output_.finished && !http_1_0_) unsent_ += "0\r\n\r\n";
}

void Connection::append_chunk(std::string_view events) {
  spoke_ = true;
  if (!http_1_0_) fmt::format_to(std::back_inserter(unsent_), "{:x}\r\n", events.size());
  unsent_ += events;
  if (!http_1_0_) unsent_ += "\r\n";
}

// Clients and proxies give up on streams that are silent, as while a long prompt is read.
void Connection::keep_alive() {
  if (!head_sent_ || finished_ || over_ || exchange_->keep_alive().empty() || std::exchange(spoke_, false)) return;
  append_chunk(exchange_->keep_alive());
  spoke_ = false;
}

// Sends what came, as far as the client takes it at once. True: all of it, and more will come.
bool Connection::advance() {
  if (!finished_ && !over_) {
    exchange_->take(&output_);
    over_ = output_.over;
    finished_ = output_.finished;
    if (!over_) frame();
  }
  if (!over_) send_now();
  return unsent_.empty() && !finished_ && !over_;
}

// On the connection's executor, after the exchange got something. During a write nobody waits: answer() looks again.
void Connection::wake(const Exchange* exchange) {
  if (exchange_.get() != exchange) return;
  if (waiting_ && advance()) return;
  if (over_ || exchange_->gone()) stream_.tcp().close();  // do not wait for the write in progress
  signal_.cancel();
}

// Sends what the exchange collects, until its end. True: the connection may be used again.
awaitable<bool> Connection::answer() {
  head_sent_ = finished_ = over_ = false;
  for (;;) {
    if (advance()) {
      waiting_ = true;
      error_code cancelled;
      signal_.expires_after(milliseconds(options_->keep_alive_seconds));
      co_await signal_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
      waiting_ = false;
      if (!cancelled) keep_alive();
      continue;
    }
    if (!over_ && !unsent_.empty() && !co_await send_rest()) over_ = true;
    if (over_) {
      exchange_->mark_gone();
      co_return false;
    }
    if (finished_) co_return keep_alive_;
  }
}

awaitable<void> Connection::run(bool refuse) {
  if (refuse) {
    if (stream_.tls() != nullptr && !co_await shake_hands()) co_return;
    co_await refuse_request(503, "too many connections");
    co_return;
  }
  if (stream_.tls() != nullptr && !co_await shake_hands()) co_return;
  for (;;) {
    HttpRequest request;
    {
      Parser parser;
      if (!co_await read_request(&parser, &request)) break;
    }
    exchange_ = std::make_shared<Exchange>(options_->stream_buffer_bytes);
    context_.active.fetch_add(1);
    // The engine's thread calls this; everything else happens on this connection's executor.
    exchange_->set_wake([weak = std::weak_ptr<WakeList::Sleeper>(shared_from_this()), raw = exchange_.get(),
                         wakes = context_.wakes] { wakes->add(weak, raw); });
    watch_peer(exchange_);
    const bool quick = request.method != "POST";
    asio::thread_pool& pool = request.body.size() > options_->large_body_bytes ? *context_.large_pool : *context_.pool;
    request_id_ = request.id;
    auto call = [handler = &context_.handler, exchange = exchange_, request = std::move(request)]() mutable {
      try {
        (*handler)(std::move(request), exchange);
      } catch (const std::exception& error) {
        exchange->respond(error_response(500, fmt::format("internal error: {}", error.what())));
      }
    };
    if (quick) {
      call();
    } else {
      asio::post(pool, std::move(call));
    }
    const bool again = co_await answer();
    request_id_.clear();
    detach();
    if (!again) break;
    // Ends the watch; without it the next request's bytes would be taken for the client leaving.
    error_code ignored;
    stream_.socket().cancel(ignored);
    retry_.cancel();
  }
  if (stream_.socket().is_open()) co_await close_politely();
}

}  // namespace

awaitable<void> serve_connection(asio::ip::tcp::socket socket, ConnectionContext& context, bool refuse) {
  const auto connection = std::make_shared<Connection>(std::move(socket), context);
  co_await connection->run(refuse);
}

}  // namespace fovea::server
