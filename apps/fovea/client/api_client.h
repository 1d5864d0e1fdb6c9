// One streamed request to an OpenAI-compatible server, with the times of its tokens. Used by demo and bench serve.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fovea/status.h"
#include "server/http/client.h"

namespace fovea::app {

struct ApiAnswer {
  std::string text;
  std::string finish_reason;
  std::int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;  // from the usage chunk
  std::vector<double> chunk_s;             // of each chunk with text, seconds after the request was sent
  std::vector<std::int32_t> chunk_choice;  // ..., and the choice that it belongs to
  double total_s = 0.0;                    // to the end of the stream

  double first_token_s() const { return chunk_s.empty() ? total_s : chunk_s.front(); }
  // Seconds a token after the first; 0 with fewer than two.
  double seconds_per_token() const;
};

// body must ask for stream and include_usage. path: /v1/chat/completions or /v1/completions. on_text gets new text.
Result<ApiAnswer> stream_request(server::HttpClient& client, const std::string& path, const std::string& body,
                                 const std::function<void(std::string_view)>& on_text = nullptr);

// A GET whose answer must be 200; the body.
Result<std::string> get_body(const server::Url& address, const std::string& path);
Result<std::string> post_body(const server::Url& address, const std::string& path, const std::string& body);

}  // namespace fovea::app
