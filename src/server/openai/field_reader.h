// Reads the fields of a JSON request body; keeps the first error, with the field's name, so that callers read on
// without checking each. A null counts as absent everywhere, because clients send nulls. Used by api_request.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/openai/api_request.h"

namespace fovea::server {

class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  // The value, or null when absent or null.
  const Json* find(const char* key) const;
  // Each leaves *out as it is when the field is absent; false when absent or wrong.
  bool integer(const char* key, std::int64_t min, std::int64_t max, std::int64_t* out);
  bool integer(const char* key, std::int32_t min, std::int32_t max, std::int32_t* out);
  bool number(const char* key, double min, double max, float* out);
  bool boolean(const char* key, bool* out);
  bool string(const char* key, std::string* out);
  // A string or a list of at most max_count strings.
  bool strings(const char* key, std::size_t max_count, std::vector<std::string>* out);
  bool token_ids(const char* key, std::int32_t vocab_size, std::vector<std::int32_t>* out);

  void fail(std::string param, std::string message, std::string code = "");
  bool failed() const { return error_.has_value(); }
  std::optional<ApiError> take_error() { return std::move(error_); }

 private:
  const Json& object_;
  std::optional<ApiError> error_;
};

// "an object", "a string", ... for messages.
std::string_view json_type(const Json& value);
// Whole numbers only (3.0 counts), within the vocabulary; false otherwise.
bool read_token_ids(const Json& list, std::int32_t vocab_size, std::vector<std::int32_t>* out);

}  // namespace fovea::server
