#include "server/http/tls.h"

#include <openssl/ssl.h>

#include <boost/asio/ssl/context.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/log.h"
#include "base/quote.h"
#include "base/status.h"

namespace fovea::server {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

Result<std::shared_ptr<ssl::context>> load_tls(const std::string& cert_path, const std::string& key_path) {
  const auto wrong = [](const char* flag, const std::string& path, const std::string& why) {
    return invalid_argument("{} {}: {}", flag, shorten(path), why);
  };
  for (const auto& [flag, path] : {std::pair("--tls-cert", &cert_path), {"--tls-key", &key_path}}) {
    // A pipe would be empty when the files are read again, and one that nobody writes to would be waited for.
    std::error_code ignored;
    const auto kind = std::filesystem::status(*path, ignored).type();
    if (std::filesystem::exists(std::filesystem::file_status(kind)) && kind != std::filesystem::file_type::regular &&
        kind != std::filesystem::file_type::directory) {
      return wrong(flag, *path, "it is no file but a pipe or a device");
    }
    errno = 0;
    std::ifstream file(*path);
    // A folder opens, but gives nothing.
    if (!file || file.peek() == std::ifstream::traits_type::eof()) {
      return wrong(flag, *path, errno != 0 ? std::strerror(errno) : "the file is empty");
    }
  }
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // idle connections hold none
  bool asked = false;
  error_code error;
  // Without it OpenSSL would ask on the terminal.
  context->set_password_callback(
      [&asked](std::size_t, ssl::context::password_purpose) {
        asked = true;
        return std::string();
      },
      error);
  context->use_certificate_chain_file(cert_path, error);
  if (error) {
    return wrong("--tls-cert", cert_path, "it holds no certificate in PEM form (" + error.message() + ")");
  }
  context->use_private_key_file(key_path, ssl::context::pem, error);
  if (error && asked) return wrong("--tls-key", key_path, "the key has a passphrase; give one without");
  if (error && SSL_CTX_get0_privatekey(native) == nullptr && error.message().find("mismatch") == std::string::npos) {
    return wrong("--tls-key", key_path, "it holds no private key in PEM form (" + error.message() + ")");
  }
  if (error || SSL_CTX_check_private_key(native) != 1) {
    return wrong("--tls-key", key_path, "the key is not that of the certificate in " + shorten(cert_path));
  }
  context->set_password_callback([](std::size_t, ssl::context::password_purpose) { return std::string(); }, error);
  return context;
}

void warn_of_dates(ssl::context& context, const std::string& cert_path) {
  const X509* certificate = SSL_CTX_get0_certificate(context.native_handle());
  if (certificate == nullptr) return;
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    log_warning("--tls-cert {}: the certificate has expired", shorten(cert_path));
  } else if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    log_warning("--tls-cert {}: the certificate is not valid yet", shorten(cert_path));
  }
}

}  // namespace fovea::server
