#include "server/http/message.h"

#include <fmt/format.h>

#include <cstdio>

namespace fovea::server {
namespace {

// Bytes of the UTF-8 sequence that begins at text[i]; 0 when there is none (truncated, overlong, surrogate, stray).
std::size_t utf8_length(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  const auto tail = [&](std::size_t k) { return k < text.size() && (byte(k) & 0xC0) == 0x80; };
  const unsigned char c = byte(i);
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c <= 0xDF) return tail(i + 1) ? 2 : 0;
  if (c >= 0xE0 && c <= 0xEF) {
    if (!tail(i + 1) || !tail(i + 2)) return 0;
    if (c == 0xE0 && byte(i + 1) < 0xA0) return 0;
    if (c == 0xED && byte(i + 1) > 0x9F) return 0;
    return 3;
  }
  if (c >= 0xF0 && c <= 0xF4) {
    if (!tail(i + 1) || !tail(i + 2) || !tail(i + 3)) return 0;
    if (c == 0xF0 && byte(i + 1) < 0x90) return 0;
    if (c == 0xF4 && byte(i + 1) > 0x8F) return 0;
    return 4;
  }
  return 0;
}

std::string_view error_type(std::int32_t status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

// Stands in a JSON string as it is.
bool is_plain(unsigned char c) { return c >= 0x20 && c < 0x80 && c != '"' && c != '\\'; }

// Where the host begins in a target of http or https; 0 in others.
std::size_t host_begin(std::string_view target) {
  const std::size_t colon = target.find("://");
  if (colon != 4 && colon != 5) return 0;
  constexpr std::string_view kSecure = "https";
  for (std::size_t i = 0; i < colon; ++i) {
    if ((target[i] | 0x20) != kSecure[i]) return 0;  // lower case, of letters
  }
  return colon + 3;
}

}  // namespace

std::string_view origin_form(std::string_view target) {
  const std::size_t host = host_begin(target);
  if (host == 0) return target;
  const std::size_t path = target.find_first_of("/?", host);
  return path == std::string_view::npos ? "/" : target.substr(path);
}

std::string_view target_host(std::string_view target) {
  const std::size_t host = host_begin(target);
  return host == 0 ? std::string_view() : target.substr(host, target.find_first_of("/?", host) - host);
}

std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? digit(text[i + 1]) : -1;
    const int low = high >= 0 ? digit(text[i + 2]) : -1;
    out.push_back(low < 0 ? text[i] : static_cast<char>(high * 16 + low));
    if (low >= 0) i += 2;
  }
  return out;
}

// Not strftime: its names follow the locale.
std::string format_http_date(std::time_t time) {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm t{};
  gmtime_r(&time, &t);
  return fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[t.tm_wday], t.tm_mday, kMonths[t.tm_mon],
                     t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

std::string_view http_date() {
  thread_local std::time_t second = -1;
  thread_local std::string text;
  if (const std::time_t now = std::time(nullptr); now != second) {
    text = format_http_date(now);
    second = now;
  }
  return text;
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::string_view reason_phrase(std::int32_t status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Payload Too Large";
    case 415: return "Unsupported Media Type";
    case 422: return "Unprocessable Entity";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    default: return "Unknown";
  }
}

void append_json_string(std::string* out, std::string_view text) {
  out->push_back('"');
  for (std::size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (is_plain(c)) {
      const std::size_t begin = i;
      while (i < text.size() && is_plain(static_cast<unsigned char>(text[i]))) ++i;
      out->append(text.substr(begin, i - begin));
      continue;
    }
    if (c >= 0x80) {
      const std::size_t length = utf8_length(text, i);
      if (length == 0) {
        out->append("\xEF\xBF\xBD");
        ++i;
      } else {
        out->append(text.substr(i, length));
        i += length;
      }
      continue;
    }
    switch (c) {
      case '"': out->append("\\\""); break;
      case '\\': out->append("\\\\"); break;
      case '\n': out->append("\\n"); break;
      case '\r': out->append("\\r"); break;
      case '\t': out->append("\\t"); break;
      default: {
        char escape[8];
        std::snprintf(escape, sizeof(escape), "\\u%04x", c);
        out->append(escape);
      }
    }
    ++i;
  }
  out->push_back('"');
}

std::string error_body(std::string_view message, std::string_view type, std::string_view param, std::string_view code) {
  std::string out = "{\"error\":{\"message\":";
  append_json_string(&out, message);
  out += ",\"type\":";
  append_json_string(&out, type);
  out += ",\"param\":";
  param.empty() ? static_cast<void>(out += "null") : append_json_string(&out, param);
  out += ",\"code\":";
  code.empty() ? static_cast<void>(out += "null") : append_json_string(&out, code);
  return out + "}}";
}

HttpResponse error_response(std::int32_t status, std::string_view message, std::string_view param,
                            std::string_view code) {
  HttpResponse response;
  response.status = status;
  response.body = error_body(message, error_type(status), param, code);
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(&out, text);
  return out;
}

bool equal_constant_time(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
  }
  return difference == 0;
}

}  // namespace fovea::server
