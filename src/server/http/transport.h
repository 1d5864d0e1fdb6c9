// Transport: a connection's socket, with TLS or without; an AsyncReadStream and AsyncWriteStream to Asio and Beast.
// Time limits are those of its tcp(). Used by connection.cc alone.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <memory>
#include <optional>
#include <utility>

namespace fovea::server {

class Transport {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;
  using Tls = boost::asio::ssl::stream<boost::beast::tcp_stream&>;

  // context: null for plain HTTP.
  Transport(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> context)
      : tcp_(std::move(socket)), context_(std::move(context)) {
    if (context_) tls_.emplace(tcp_, *context_);
  }

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::beast::tcp_stream& tcp() { return tcp_; }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  // Null for plain HTTP.
  Tls* tls() { return tls_.has_value() ? &*tls_ : nullptr; }
  void drop_tls() { tls_.reset(); }

  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return tls_.has_value() ? tls_->async_read_some(buffers, std::forward<Token>(token))
                            : tcp_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return tls_.has_value() ? tls_->async_write_some(buffers, std::forward<Token>(token))
                            : tcp_.async_write_some(buffers, std::forward<Token>(token));
  }

 private:
  boost::beast::tcp_stream tcp_;
  std::shared_ptr<boost::asio::ssl::context> context_;
  std::optional<Tls> tls_;
};

}  // namespace fovea::server
