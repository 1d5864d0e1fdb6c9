// A small blocking HTTP/1.1 client with server-sent events, over TLS or without, one connection an object. Used by
// `fovea demo`, `doctor`, `bench serve`, OtlpExporter and the server's tests; not a general client (no redirects).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "fovea/status.h"
#include "server/http/client_tls.h"
#include "server/http/message.h"

namespace fovea::server {

struct Url {
  std::string host;
  std::int32_t port = 80;
  bool tls = false;
  std::string path;     // empty, or from its '/' on
  std::string ca_file;  // of ClientTls, for https
};
// "http://127.0.0.1:8000" or "https://[::1]:8000/"; kInvalidArgument for anything else.
Result<Url> parse_url(std::string_view url);

class HttpClient {
 public:
  // timeout_s: for connecting and for each wait on the socket. Where a server is reached and not trusted, the Status is
  // ClientTls's.
  static Result<std::unique_ptr<HttpClient>> connect(const Url& url, double timeout_s = 60.0);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Sent with every request, for example {"Authorization", "Bearer KEY"}.
  void set_header(std::string name, std::string value) { headers_.emplace_back(std::move(name), std::move(value)); }

  Result<HttpResponse> get(const std::string& path) { return request("GET", path, ""); }
  Result<HttpResponse> post(const std::string& path, const std::string& body) { return request("POST", path, body); }
  // The whole answer; header names in lower case. kUnavailable: the connection failed.
  Result<HttpResponse> request(const std::string& method, const std::string& path, const std::string& body);
  // Calls on_event with what follows "data: " of each event, until the end or until it returns false (the connection
  // is then closed). An answer that is no event stream comes back whole in *other and on_event is never called.
  Status post_stream(const std::string& path, const std::string& body,
                     const std::function<bool(std::string_view data)>& on_event, HttpResponse* other);
  void close();

 private:
  HttpClient(int fd, std::string host) : fd_(fd), host_(std::move(host)) {}
  ssize_t receive(char* bytes, std::size_t count);
  ssize_t send(const char* bytes, std::size_t count);
  Status send_request(const std::string& method, const std::string& path, const std::string& body);
  Status read_head(HttpResponse* response);
  Status fill();
  Status read_line(std::string* line);
  Status read_exactly(std::size_t count, std::string* out);
  // Hands out the body in pieces as they come; on_piece returns false to stop.
  Status read_body(const HttpResponse& response, const std::function<bool(std::string_view)>& on_piece);

  int fd_;
  std::unique_ptr<ClientTls> tls_;  // null: plain HTTP
  std::string host_;
  std::string buffer_;  // received, not yet used
  std::size_t position_ = 0;
  std::vector<std::pair<std::string, std::string>> headers_;
};

}  // namespace fovea::server
