// TLS below HttpClient: a handshake over its socket, and bytes in and out (OpenSSL). Servers are asked for a
// certificate of their name by an authority that this machine trusts.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "fovea/status.h"

struct ssl_st;
struct ssl_ctx_st;
struct x509_st;
struct x509_store_ctx_st;

namespace fovea::server {

class ClientTls {
 public:
  // fd: connected, blocking, closed by the caller. ca_file: PEM of the authorities that are trusted; empty: those of
  // SSL_CERT_FILE and SSL_CERT_DIR, else the system's. kInvalidArgument: the file cannot be used; kUnavailable: the
  // server speaks no TLS or is not who it should be, with what is wrong and what to do.
  static Result<std::unique_ptr<ClientTls>> handshake(int fd, const std::string& host, std::int32_t port,
                                                      const std::string& ca_file);
  ~ClientTls();
  ClientTls(const ClientTls&) = delete;
  ClientTls& operator=(const ClientTls&) = delete;

  // As ::recv and ::send have it: 0 at the end, -1 and errno.
  ssize_t receive(char* bytes, std::size_t count);
  ssize_t send(const char* bytes, std::size_t count);

 private:
  explicit ClientTls(int fd) : fd_(fd) {}
  static int verified(int well, x509_store_ctx_st* store);
  ssize_t result_of(int code);
  Status refused(const std::string& host, std::int32_t port, const std::string& ca_file) const;

  int fd_;
  int error_ = 0;  // errno of the socket
  ssl_ctx_st* context_ = nullptr;
  ssl_st* ssl_ = nullptr;
  x509_st* blamed_ = nullptr;  // the certificate that verification stopped at
};

// Whether handshakes can use it, before there is a server.
Status check_ca_file(const std::string& ca_file);

}  // namespace fovea::server
