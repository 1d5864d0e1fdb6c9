// An HTTP request and response as the handlers see them; no socket, no library type. Used by http/ and openai/.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fovea::server {

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // "/v1/models", without the query
  std::string query;   // after '?', undecoded
  std::string body;
  std::string id;  // the client's x-request-id if it is sane, else one of our own
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::chrono::steady_clock::time_point arrival;             // when all of it was there

  // The first header of that (lower-case) name, or "".
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  std::int32_t status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// The path and query of a request's target: proxies and some clients send "http://host:port/path?query" (RFC 9112,
// 3.2.2), which is "/path?query" here.
std::string_view origin_form(std::string_view target);
// "host:port" of such a target, empty of others.
std::string_view target_host(std::string_view target);

// "a%2Fb" -> "a/b"; a % without two hexadecimal digits stays.
std::string percent_decoded(std::string_view text);

// The Date header of an answer that is sent now: "Sun, 06 Nov 1994 08:49:37 GMT". Each thread makes one a second.
std::string_view http_date();
// The time of a Date header.
std::string format_http_date(std::time_t time);

// "Not Found" for 404; "Unknown" for numbers that this server never sends.
std::string_view reason_phrase(std::int32_t status);

// The body of an error as OpenAI's clients read it: {"error":{"message","type","param","code"}}; empty param and code
// become null.
std::string error_body(std::string_view message, std::string_view type, std::string_view param = "",
                       std::string_view code = "");
// A whole error response; the type follows from the status.
HttpResponse error_response(std::int32_t status, std::string_view message, std::string_view param = "",
                            std::string_view code = "");

// Appends text as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD, so the result is always valid.
void append_json_string(std::string* out, std::string_view text);
std::string json_string(std::string_view text);

// True when both have the same bytes; takes a time that depends on the lengths only.
bool equal_constant_time(std::string_view a, std::string_view b);

}  // namespace fovea::server
