#include "server/metrics/request_log.h"

#include <fmt/format.h>

#include <chrono>

#include "base/quote.h"
#include "server/http/message.h"

namespace fovea::server {

std::string request_line(const RequestRecord& record) {
  std::string out = fmt::format("{} {} {} {:.1f} ms id={}", shorten(record.method), shorten(record.path), record.status,
                                1e3 * record.seconds, record.id);
  if (record.generation.first_token_seconds >= 0.0)
    out += fmt::format(" first_token={:.1f}ms", 1e3 * record.generation.first_token_seconds);
  if (record.generation.completion_tokens >= 0) {
    out += fmt::format(" prompt={} cached={} completion={}", record.generation.prompt_tokens,
                       record.generation.cached_tokens, record.generation.completion_tokens);
  }
  return out + "\n";
}

std::string request_line_json(const RequestRecord& record) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string out = fmt::format("{{\"time\":{:.3f},\"id\":", std::chrono::duration<double>(now).count());
  append_json_string(&out, record.id);
  out += ",\"method\":";
  append_json_string(&out, shorten(record.method));
  out += ",\"path\":";
  append_json_string(&out, shorten(record.path));
  out += fmt::format(",\"status\":{},\"seconds\":{:.6f}", record.status, record.seconds);
  if (record.generation.first_token_seconds >= 0.0)
    out += fmt::format(",\"first_token_seconds\":{:.6f}", record.generation.first_token_seconds);
  if (record.generation.completion_tokens >= 0) {
    out += fmt::format(",\"prompt_tokens\":{},\"cached_tokens\":{},\"completion_tokens\":{}",
                       record.generation.prompt_tokens, record.generation.cached_tokens,
                       record.generation.completion_tokens);
  }
  return out + "}\n";
}

}  // namespace fovea::server
