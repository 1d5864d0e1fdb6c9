// Names in a Host header, and which of them stand for this machine. A server on a loopback address answers to them
// alone: a web page whose own name was made to resolve to 127.0.0.1 (DNS rebinding) would otherwise read it. Used by
// Service, Server and connections.
#pragma once

#include <string_view>

namespace fovea::server {

// True for 127.0.0.0/8, ::1 and localhost, as --host takes them.
bool is_loopback(std::string_view host);
// Whether a Host header may say so: a name or an address and perhaps a port, or nothing (RFC 9110, 7.2).
bool is_host(std::string_view header);
// The name in a Host header, without the port: "[::1]:8000" -> "[::1]".
std::string_view host_name(std::string_view header);
// True for localhost, names below it, and addresses: no DNS answer can turn these into another machine's.
bool is_local_name(std::string_view name);

}  // namespace fovea::server
