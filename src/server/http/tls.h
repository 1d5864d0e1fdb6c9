// The server's certificate and private key, ready for handshakes (OpenSSL, through Asio). Used by HttpServer; included
// with connection.h only, because Asio takes long to compile.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "fovea/status.h"

namespace fovea::server {

// Both are PEM files: the certificate with those between it and the authority behind it, its own first; the key without
// a passphrase. kInvalidArgument names the file that cannot be used and says why. TLS 1.2 and 1.3 are spoken.
Result<std::shared_ptr<boost::asio::ssl::context>> load_tls(const std::string& cert_path, const std::string& key_path);

// Says in the log that the certificate is of another time. It is served all the same: clients may not look, but those
// that do refuse it without a word here.
void warn_of_dates(boost::asio::ssl::context& context, const std::string& cert_path);

}  // namespace fovea::server
