// The handshake of http/client_tls.h, whom it trusts, and what it says of a server that it does not.
#include "server/http/client_tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "base/quote.h"
#include "base/status.h"

namespace fovea::server {
namespace {

// Where distributions keep them besides OpenSSL's own place, which a release has from the machine that built it.
constexpr std::array kBundles = {
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Status load_file(SSL_CTX* context, const char* what, const std::string& path) {
  errno = 0;
  if (SSL_CTX_load_verify_file(context, path.c_str()) == 1) return {};
  const bool readable = ::access(path.c_str(), R_OK) == 0;
  const std::string why = readable ? "it holds no certificate in PEM form" : std::strerror(errno);
  ERR_clear_error();
  return invalid_argument("{} {}: {}", what, shorten(path), why);
}

Status trust(SSL_CTX* context, const std::string& ca_file) {
  if (!ca_file.empty()) return load_file(context, "CA file", ca_file);
  SSL_CTX_set_default_verify_dir(context);  // of SSL_CERT_DIR where it is set
  if (const std::string path = variable(X509_get_default_cert_file_env()); !path.empty()) {
    return load_file(context, X509_get_default_cert_file_env(), path);
  }
  SSL_CTX_set_default_verify_file(context);
  const bool has_own = ::access(X509_get_default_cert_dir(), R_OK) == 0 ||
                       ::access(X509_get_default_cert_file(), R_OK) == 0 ||
                       !variable(X509_get_default_cert_dir_env()).empty();
  const auto* bundle =
      std::find_if(kBundles.begin(), kBundles.end(), [](const char* path) { return ::access(path, R_OK) == 0; });
  if (!has_own && bundle != kBundles.end()) SSL_CTX_load_verify_file(context, *bundle);
  ERR_clear_error();
  return {};
}

Result<SSL_CTX*> make_context(const std::string& ca_file) {
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  if (context == nullptr) return resource_exhausted("no memory for TLS");
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  // Messages have lengths of their own, so a server that leaves without a word loses nothing.
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_RENEGOTIATION);
  X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context), X509_V_FLAG_PARTIAL_CHAIN);
  if (Status status = trust(context, ca_file); !status.ok()) {
    SSL_CTX_free(context);
    return status;
  }
  return context;
}

// OpenSSL's own would raise SIGPIPE at a connection that the server has closed.
struct Socket {
  int fd;
  int* error;
};

template <typename F>
int transfer(BIO* bio, F f) {
  const auto* const to = static_cast<Socket*>(BIO_get_data(bio));
  ssize_t count = 0;
  do {
    count = f(to->fd);
  } while (count < 0 && errno == EINTR);
  if (count < 0) *to->error = errno;
  return static_cast<int>(count);
}

const BIO_METHOD* socket_method() {
  static const BIO_METHOD* const made = [] {
    BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_read(method, [](BIO* bio, char* bytes, int count) {
      return transfer(bio, [&](int fd) { return ::recv(fd, bytes, static_cast<std::size_t>(count), 0); });
    });
    BIO_meth_set_write(method, [](BIO* bio, const char* bytes, int count) {
      return transfer(bio, [&](int fd) { return ::send(fd, bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL); });
    });
    BIO_meth_set_ctrl(method, [](BIO*, int command, long, void*) -> long { return command == BIO_CTRL_FLUSH ? 1 : 0; });
    BIO_meth_set_destroy(method, [](BIO* bio) {
      delete static_cast<Socket*>(BIO_get_data(bio));
      return 1;
    });
    return method;
  }();
  return made;
}

std::string text_of(const ASN1_TIME* time) {
  BIO* const out = BIO_new(BIO_s_mem());
  ASN1_TIME_print(out, time);
  char* data = nullptr;
  const long size = BIO_get_mem_data(out, &data);
  std::string text(data, static_cast<std::size_t>(std::max(size, 0L)));
  BIO_free(out);
  return text;
}

// Whom a certificate is for: "a.example, 10.0.0.1".
std::string names_of(const X509* certificate) {
  std::string names;
  const auto add = [&names](const std::string& name) { names += (names.empty() ? "" : ", ") + shorten(name); };
  auto* const all = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(all); ++i) {
    int type = 0;
    const auto* const value = static_cast<ASN1_STRING*>(GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(all, i), &type));
    const unsigned char* const bytes = ASN1_STRING_get0_data(value);
    char text[INET6_ADDRSTRLEN] = "";
    if (type == GEN_DNS) {
      add(std::string(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(ASN1_STRING_length(value))));
    } else if (type == GEN_IPADD) {
      add(::inet_ntop(ASN1_STRING_length(value) == 4 ? AF_INET : AF_INET6, bytes, text, sizeof text) != nullptr ? text
                                                                                                                : "?");
    }
  }
  GENERAL_NAMES_free(all);
  return names;
}

bool is_address(const std::string& host) {
  in6_addr ignored{};
  return ::inet_pton(AF_INET, host.c_str(), &ignored) == 1 || ::inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

}  // namespace

Status check_ca_file(const std::string& ca_file) {
  FOVEA_ASSIGN_OR_RETURN(SSL_CTX* const context, make_context(ca_file));
  SSL_CTX_free(context);
  return {};
}

// OpenSSL keeps no certificate of a handshake that failed.
int ClientTls::verified(int well, X509_STORE_CTX* store) {
  const auto* const ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const tls = static_cast<ClientTls*>(SSL_get_app_data(ssl));
  X509* const certificate = X509_STORE_CTX_get_current_cert(store);
  if (well == 0 && tls->blamed_ == nullptr && certificate != nullptr && X509_up_ref(certificate) == 1) {
    tls->blamed_ = certificate;
  }
  return well;
}

Status ClientTls::refused(const std::string& host, std::int32_t port, const std::string& ca_file) const {
  const auto failed = [&](const std::string& why) {
    return Status(StatusCode::kUnavailable, fmt::format("{}:{}: {}", shorten(host), port, why));
  };
  const long verdict = SSL_get_verify_result(ssl_);
  if (verdict == X509_V_OK || blamed_ == nullptr) {
    if (error_ == EAGAIN || error_ == EWOULDBLOCK) return failed("no TLS handshake: it does not answer");
    if (error_ != 0) return failed(fmt::format("no TLS handshake: {}", std::strerror(error_)));
    const unsigned long code = ERR_peek_last_error();
    if (ERR_GET_REASON(code) == SSL_R_WRONG_VERSION_NUMBER || ERR_GET_REASON(code) == SSL_R_HTTP_REQUEST) {
      return failed("it does not speak TLS; try http://");
    }
    const char* const reason = ERR_reason_error_string(code);
    return failed(fmt::format("no TLS handshake: {}", reason != nullptr ? reason : "it closed the connection"));
  }
  switch (verdict) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return failed(fmt::format("its certificate, or one behind it, has expired ({}); renew it",
                                text_of(X509_get0_notAfter(blamed_))));
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return failed(fmt::format("its certificate, or one behind it, is not valid yet ({}); compare the clocks",
                                text_of(X509_get0_notBefore(blamed_))));
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      if (const std::string names = names_of(blamed_); !names.empty()) {
        return failed(fmt::format("its certificate is for {}; ask it by one of these names", names));
      }
      return failed("its certificate names no host; it needs a subjectAltName");
    default: break;
  }
  const std::string advice = ca_file.empty()
                                 ? "if it is yours, let SSL_CERT_FILE name the certificate of its authority (PEM)"
                                 : fmt::format("{} does not hold its authority", shorten(ca_file));
  return failed(fmt::format("its certificate is not trusted ({}); {}", X509_verify_cert_error_string(verdict), advice));
}

Result<std::unique_ptr<ClientTls>> ClientTls::handshake(int fd, const std::string& host, std::int32_t port,
                                                        const std::string& ca_file) {
  std::unique_ptr<ClientTls> tls(new ClientTls(fd));
  FOVEA_ASSIGN_OR_RETURN(tls->context_, make_context(ca_file));
  tls->ssl_ = SSL_new(tls->context_);
  BIO* const bio = BIO_new(socket_method());
  if (tls->ssl_ == nullptr || bio == nullptr) return resource_exhausted("no memory for TLS");
  BIO_set_data(bio, new Socket{fd, &tls->error_});
  BIO_set_init(bio, 1);
  SSL_set_bio(tls->ssl_, bio, bio);
  SSL_set_app_data(tls->ssl_, tls.get());
  SSL_set_verify(tls->ssl_, SSL_VERIFY_PEER, verified);
  if (is_address(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls->ssl_), host.c_str());
  } else {
    // The subject's common name says nothing (RFC 9525).
    SSL_set_hostflags(tls->ssl_, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    SSL_set1_host(tls->ssl_, host.c_str());
    SSL_set_tlsext_host_name(tls->ssl_, host.c_str());
  }
  ERR_clear_error();
  if (SSL_connect(tls->ssl_) != 1) return tls->refused(host, port, ca_file);
  return tls;
}

ClientTls::~ClientTls() {
  if (ssl_ != nullptr && SSL_is_init_finished(ssl_) == 1) SSL_shutdown(ssl_);  // says goodbye, does not wait for theirs
  SSL_free(ssl_);
  SSL_CTX_free(context_);
  X509_free(blamed_);
  ERR_clear_error();
}

ssize_t ClientTls::result_of(int code) {
  if (code > 0) return code;
  const int kind = SSL_get_error(ssl_, code);
  if (kind == SSL_ERROR_ZERO_RETURN) return 0;
  errno = kind == SSL_ERROR_SYSCALL && error_ != 0 ? error_ : EPROTO;
  return -1;
}

ssize_t ClientTls::receive(char* bytes, std::size_t count) {
  ERR_clear_error();
  error_ = 0;
  return result_of(SSL_read(ssl_, bytes, static_cast<int>(std::min<std::size_t>(count, INT_MAX))));
}

ssize_t ClientTls::send(const char* bytes, std::size_t count) {
  ERR_clear_error();
  error_ = 0;
  return result_of(SSL_write(ssl_, bytes, static_cast<int>(std::min<std::size_t>(count, INT_MAX))));
}

}  // namespace fovea::server
