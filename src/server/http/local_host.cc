#include "server/http/local_host.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string>

namespace fovea::server {
namespace {

bool is_address(int family, std::string_view text) {
  in6_addr address{};  // large enough for both families
  return inet_pton(family, std::string(text).c_str(), &address) == 1;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return out;
}

}  // namespace

bool is_loopback(std::string_view host) {
  return lower(host) == "localhost" || host == "::1" || (host.starts_with("127.") && is_address(AF_INET, host));
}

bool is_host(std::string_view header) {
  const std::string_view name = host_name(header);
  const std::string_view port = header.substr(name.size());
  if (!port.empty() && (port[0] != ':' || port.find_first_not_of("0123456789", 1) != std::string_view::npos)) {
    return false;
  }
  if (name.starts_with('[')) return name.ends_with(']');
  return std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) > 0x20 && c != 0x7F &&
           std::string_view("/?#@[]\\\"<>^`{|}").find(c) == std::string_view::npos;
  });
}

std::string_view host_name(std::string_view header) {
  if (header.starts_with('[')) return header.substr(0, std::min(header.size(), header.find(']') + 1));
  return header.substr(0, header.find(':'));
}

bool is_local_name(std::string_view name) {
  if (name.starts_with('[') && name.ends_with(']')) return is_address(AF_INET6, name.substr(1, name.size() - 2));
  std::string text = lower(name);
  if (text.ends_with('.')) text.pop_back();
  return text == "localhost" || text.ends_with(".localhost") || is_address(AF_INET, text);
}

}  // namespace fovea::server
