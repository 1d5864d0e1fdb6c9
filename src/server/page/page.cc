#include "server/page/page.h"

#include "server/page/page_files.h"

namespace fovea::server {
namespace {

constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

const char* content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  return "image/svg+xml";
}

}  // namespace

std::optional<HttpResponse> page_response(std::string_view path) {
  constexpr std::string_view kFolder = "/page/";
  if (path == "/") {
    path = "index.html";
  } else if (path.starts_with(kFolder)) {
    path.remove_prefix(kFolder.size());
  } else {
    return std::nullopt;
  }
  for (const PageFile& file : page_files()) {
    if (path != file.name) continue;
    HttpResponse response;
    response.content_type = content_type(path);
    response.body.assign(file.begin, file.end);
    response.headers = {{"Content-Security-Policy", kPolicy},
                        {"X-Content-Type-Options", "nosniff"},
                        {"Referrer-Policy", "no-referrer"},
                        {"Cache-Control", "no-cache"}};
    return response;
  }
  return std::nullopt;
}

}  // namespace fovea::server
