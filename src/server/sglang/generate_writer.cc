#include "server/sglang/generate_writer.h"

#include <fmt/format.h>

namespace fovea::server {

std::string GenerateWriter::json(std::string_view finish, std::int64_t cached) const {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - arrival_).count();
  return fmt::format(
      "{{\"text\":{},\"meta_info\":{{\"id\":{},\"finish_reason\":{},\"prompt_tokens\":{},\"completion_tokens\":{},"
      "\"cached_tokens\":{},\"e2e_latency\":{}}}}}",
      json_string(text_), json_string(id_), finish, prompt_tokens_, tokens_, cached, seconds);
}

void GenerateWriter::text(std::string_view text, std::string_view, std::string* out) {
  text_ += text;
  *out += "data: " + json("null", 0) + "\n\n";
}

void GenerateWriter::end(const AnswerEnd& end, std::string* out) {
  tokens_ = end.usage.completion_tokens;
  const std::string finish = end.finish == FinishReason::kLength
                                 ? fmt::format("{{\"type\":\"length\",\"length\":{}}}", tokens_)
                                 : fmt::format("{{\"type\":\"stop\",\"matched\":{}}}",
                                               end.stop_text.empty() ? "null" : json_string(end.stop_text));
  whole_ = json(finish, end.usage.cached_tokens);
  *out += "data: " + whole_ + "\n\ndata: [DONE]\n\n";
}

void GenerateWriter::fail(const ApiError& error, std::string* out) {
  ChunkWriter::append_error(out, error.message, "server_error");
}

HttpResponse GenerateWriter::refusal(const ApiError& error) const {
  return error_response(error.status, error.message, error.param, error.code);
}

}  // namespace fovea::server
