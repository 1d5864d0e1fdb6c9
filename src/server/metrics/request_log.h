// What is told of each request at its end: what was asked, how it ended, what it took. Made by Service; written as a
// line by whoever runs the server, and as spans by OtlpExporter.
#pragma once

#include <cstdint>
#include <string>

namespace fovea::server {

// Of a request that went to the engine. Seconds are from the request's arrival; negative: it did not come to that.
struct GenerationReport {
  double submit_seconds = -1.0;  // parsed and tokenized, handed to the engine
  double admit_seconds = -1.0;   // out of the queue
  double first_token_seconds = -1.0;
  // Of whole answers; negative: it has no end.
  std::int64_t prompt_tokens = -1, cached_tokens = -1, completion_tokens = -1;
  bool chat = false;
  std::string model, answer_id, finish;  // finish: "stop" or "length", of the first choice
  std::int32_t choices = 1, max_tokens = 0;
  float temperature = 1.0f, top_p = 1.0f;
};

struct RequestRecord {
  std::string method, path;
  std::string id;           // x-request-id
  std::int32_t status = 0;  // 499: the client left
  double seconds = 0.0;     // from the arrival of the whole request to the end of the answer
  GenerationReport generation;
  std::string traceparent, tracestate;  // W3C headers, as they came
};

// "POST /v1/completions 200 41.0 ms id=req-1 first_token=7.2ms prompt=33 cached=16 completion=5\n"
std::string request_line(const RequestRecord& record);
// The same as a JSON object, with the time of day.
std::string request_line_json(const RequestRecord& record);

}  // namespace fovea::server
