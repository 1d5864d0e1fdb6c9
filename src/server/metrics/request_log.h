// One line a request: what was asked, how it ended, what it took. Made by Service, written by whoever runs the server.
#pragma once

#include <cstdint>
#include <string>

namespace fovea::server {

struct RequestRecord {
  std::string method, path;
  std::string id;           // x-request-id
  std::int32_t status = 0;  // 499: the client left
  double seconds = 0.0;     // from the arrival of the whole request to the end of the answer
  // Of generations that ended; negative: nothing was generated.
  double first_token_seconds = -1.0;
  std::int64_t prompt_tokens = -1, cached_tokens = -1, completion_tokens = -1;
};

// "POST /v1/completions 200 41.0 ms id=req-1 first_token=7.2ms prompt=33 cached=16 completion=5\n"
std::string request_line(const RequestRecord& record);
// The same as a JSON object, with the time of day.
std::string request_line_json(const RequestRecord& record);

}  // namespace fovea::server
