#include "server/http/client.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/quote.h"
#include "base/status.h"

namespace fovea::server {
namespace {

constexpr std::size_t kMaxLine = 64u << 10;
constexpr std::size_t kMaxBody = 64u << 20;  // of an answer, or of an event of a stream

Status unavailable(const std::string& what) {
  return Status(StatusCode::kUnavailable, fmt::format("{}: {}", what, std::strerror(errno)));
}

const std::string* find_header(const HttpResponse& response, std::string_view name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return &value;
  }
  return nullptr;
}

}  // namespace

Result<Url> parse_url(std::string_view url) {
  const Status bad =
      invalid_argument("{} is no address this client can use; expected http://HOST:PORT or https://", shorten(url));
  Url out;
  out.tls = url.starts_with("https://");
  if (!out.tls && !url.starts_with("http://")) return bad;
  if (out.tls) out.port = 443;
  std::string_view rest = url.substr(url.find("//") + 2);
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    out.path = std::string(rest.substr(slash));
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  if (!rest.empty() && rest[0] == '[') {
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos) return bad;
    out.host = std::string(rest.substr(1, end - 1));
    port = rest.substr(end + 1);
  } else {
    const std::size_t colon = rest.find(':');
    out.host = std::string(rest.substr(0, colon));
    port = colon == std::string_view::npos ? std::string_view() : rest.substr(colon);
  }
  if (out.host.empty()) return bad;
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data() + 1, port.data() + port.size(), out.port);
    if (port[0] != ':' || error != std::errc() || end != port.data() + port.size() || out.port < 1 ||
        out.port > 65535) {
      return bad;
    }
  }
  return out;
}

Result<std::unique_ptr<HttpClient>> HttpClient::connect(const Url& url, double timeout_s) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(url.host.c_str(), std::to_string(url.port).c_str(), &hints, &found);
  if (failed != 0) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("cannot resolve {}: {}", shorten(url.host), gai_strerror(failed)));
  }
  int fd = -1;
  for (const addrinfo* entry = found; entry != nullptr && fd < 0; entry = entry->ai_next) {
    fd = ::socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, entry->ai_protocol);
    if (fd < 0) continue;
    timeval timeout{};
    timeout.tv_sec = static_cast<time_t>(timeout_s);
    timeout.tv_usec = static_cast<suseconds_t>((timeout_s - static_cast<double>(timeout.tv_sec)) * 1e6);
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (::connect(fd, entry->ai_addr, entry->ai_addrlen) != 0) {
      const int error = errno;
      ::close(fd);
      errno = error;
      fd = -1;
    }
  }
  const int error = errno;
  freeaddrinfo(found);
  errno = error;
  if (fd < 0) return unavailable(fmt::format("cannot connect to {}:{}", shorten(url.host), url.port));
  const bool v6 = url.host.find(':') != std::string::npos;
  std::unique_ptr<HttpClient> client(
      new HttpClient(fd, fmt::format(fmt::runtime(v6 ? "[{}]:{}" : "{}:{}"), url.host, url.port)));
  if (url.tls) {
    FOVEA_ASSIGN_OR_RETURN(client->tls_, ClientTls::handshake(fd, url.host, url.port, url.ca_file));
  }
  return client;
}

HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  tls_.reset();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

ssize_t HttpClient::receive(char* bytes, std::size_t count) {
  return tls_ != nullptr ? tls_->receive(bytes, count) : ::recv(fd_, bytes, count, 0);
}

ssize_t HttpClient::send(const char* bytes, std::size_t count) {
  return tls_ != nullptr ? tls_->send(bytes, count) : ::send(fd_, bytes, count, MSG_NOSIGNAL);
}

Status HttpClient::send_request(const std::string& method, const std::string& path, const std::string& body) {
  if (fd_ < 0) return Status(StatusCode::kUnavailable, "the connection is closed");
  std::string head = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", method, path, host_);
  for (const auto& [name, value] : headers_) head += fmt::format("{}: {}\r\n", name, value);
  if (method == "POST") {
    head += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  }
  const std::string bytes = head + "\r\n" + body;
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = send(bytes.data() + sent, bytes.size() - sent);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return unavailable("cannot send the request");
    sent += static_cast<std::size_t>(count);
  }
  return {};
}

Status HttpClient::fill() {
  if (position_ > 0) {
    buffer_.erase(0, position_);
    position_ = 0;
  }
  char bytes[16384];
  ssize_t count = 0;
  do {
    count = receive(bytes, sizeof(bytes));
  } while (count < 0 && errno == EINTR);
  if (count < 0) return unavailable("cannot read the answer");
  if (count == 0) return Status(StatusCode::kUnavailable, "the server closed the connection");
  buffer_.append(bytes, static_cast<std::size_t>(count));
  return {};
}

Status HttpClient::read_line(std::string* line) {
  for (;;) {
    const std::size_t end = buffer_.find("\r\n", position_);
    if (end != std::string::npos) {
      *line = buffer_.substr(position_, end - position_);
      position_ = end + 2;
      return {};
    }
    if (buffer_.size() - position_ > kMaxLine)
      return data_loss("a line of the answer is longer than {} bytes", kMaxLine);
    FOVEA_RETURN_IF_ERROR(fill());
  }
}

Status HttpClient::read_exactly(std::size_t count, std::string* out) {
  while (buffer_.size() - position_ < count) FOVEA_RETURN_IF_ERROR(fill());
  out->assign(buffer_, position_, count);
  position_ += count;
  return {};
}

Status HttpClient::read_head(HttpResponse* response) {
  std::string line;
  FOVEA_RETURN_IF_ERROR(read_line(&line));
  if (line.size() < 12 || line.compare(0, 7, "HTTP/1.") != 0) return data_loss("no HTTP answer: {}", line);
  response->status = std::atoi(line.c_str() + 9);
  response->headers.clear();
  for (;;) {
    FOVEA_RETURN_IF_ERROR(read_line(&line));
    if (line.empty()) break;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) return data_loss("a malformed header in the answer: {}", line);
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::size_t value = line.find_first_not_of(' ', colon + 1);
    response->headers.emplace_back(std::move(name), value == std::string::npos ? "" : line.substr(value));
  }
  const std::string* type = find_header(*response, "content-type");
  response->content_type = type == nullptr ? "" : *type;
  return {};
}

Status HttpClient::read_body(const HttpResponse& response, const std::function<bool(std::string_view)>& on_piece) {
  const std::string* length = find_header(response, "content-length");
  const std::string* encoding = find_header(response, "transfer-encoding");
  std::string piece;
  if (encoding != nullptr && *encoding == "chunked") {
    for (;;) {
      FOVEA_RETURN_IF_ERROR(read_line(&piece));
      std::size_t size = 0;
      const auto [end, error] = std::from_chars(piece.data(), piece.data() + piece.size(), size, 16);
      if (error != std::errc() || size > kMaxBody) return data_loss("a malformed chunk size: {}", piece);
      FOVEA_RETURN_IF_ERROR(read_exactly(size + 2, &piece));
      if (size == 0) return {};
      if (!on_piece(std::string_view(piece).substr(0, size))) return Status(StatusCode::kCancelled, "stopped");
    }
  }
  if (response.status == 204 || length == nullptr) return {};
  std::size_t size = 0;
  const auto [end, error] = std::from_chars(length->data(), length->data() + length->size(), size);
  if (error != std::errc() || size > kMaxBody) return data_loss("a Content-Length of {} in the answer", *length);
  FOVEA_RETURN_IF_ERROR(read_exactly(size, &piece));
  on_piece(piece);
  return {};
}

Result<HttpResponse> HttpClient::request(const std::string& method, const std::string& path, const std::string& body) {
  HttpResponse response;
  FOVEA_RETURN_IF_ERROR(send_request(method, path, body));
  FOVEA_RETURN_IF_ERROR(read_head(&response));
  Status status = read_body(response, [&](std::string_view piece) {
    response.body.append(piece);
    return response.body.size() <= kMaxBody;
  });
  if (status.code() == StatusCode::kCancelled) {
    close();
    return data_loss("the answer is longer than {} bytes", kMaxBody);
  }
  FOVEA_RETURN_IF_ERROR(status);
  return response;
}

Status HttpClient::post_stream(const std::string& path, const std::string& body,
                               const std::function<bool(std::string_view data)>& on_event, HttpResponse* other) {
  FOVEA_RETURN_IF_ERROR(send_request("POST", path, body));
  HttpResponse response;
  FOVEA_RETURN_IF_ERROR(read_head(&response));
  const bool stream = response.content_type.rfind("text/event-stream", 0) == 0;
  std::string pending;
  Status status = read_body(response, [&](std::string_view piece) {
    if (!stream) {
      response.body.append(piece);
      return response.body.size() <= kMaxBody;
    }
    pending.append(piece);
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = pending.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      std::string_view event = std::string_view(pending).substr(begin, end - begin);
      if (event.starts_with("event: ")) event.remove_prefix(std::min(event.find('\n'), event.size() - 1) + 1);
      if (event.substr(0, 6) == "data: " && !on_event(event.substr(6))) return false;
    }
    pending.erase(0, begin);
    return pending.size() <= kMaxBody;
  });
  if (status.code() == StatusCode::kCancelled) {
    close();
    if (std::max(response.body.size(), pending.size()) <= kMaxBody) return {};
    return data_loss("the answer is longer than {} bytes", kMaxBody);
  }
  if (other != nullptr) *other = std::move(response);
  return status;
}

}  // namespace fovea::server
