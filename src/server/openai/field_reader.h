// Reads the fields of a JSON request body; keeps the first error, with the field's name, so that callers read on
// without checking each. A null counts as absent everywhere, because clients send nulls. Used by the
// parsers of request bodies.
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
  // lenient: fields that this server does not do are noted instead of refused.
  explicit FieldReader(const Json& object, bool lenient = false) : object_(object), lenient_(lenient) {}

  // The value, or null when absent or null. The field counts as known from then on.
  const Json* find(const char* key) const;
  // Each leaves *out as it is when the field is absent; false when absent or wrong.
  bool integer(const char* key, std::int64_t min, std::int64_t max, std::int64_t* out);
  bool integer(const char* key, std::int32_t min, std::int32_t max, std::int32_t* out);
  bool number(const char* key, double min, double max, float* out);
  bool boolean(const char* key, bool* out);
  bool string(const char* key, std::string* out);
  // A string or a list of strings.
  bool strings(const char* key, std::vector<std::string>* out);
  bool token_ids(const char* key, std::int32_t vocab_size, std::vector<std::int32_t>* out);

  // Fields of the object that nothing has asked for and that are not null.
  std::vector<std::string> unread() const;
  // Names that were asked for.
  const std::vector<std::string>& known() const { return known_; }

  // A field that would change the answer, and cannot: an error, or, lenient, noted.
  void refuse(std::string param, std::string message, std::string code);
  // What refuse() noted.
  const std::vector<std::string>& ignored() const { return ignored_; }
  void fail(std::string param, std::string message, std::string code = "");
  bool failed() const { return error_.has_value(); }
  std::optional<ApiError> take_error() { return std::move(error_); }

 private:
  const Json& object_;
  const bool lenient_;
  mutable std::vector<std::string> known_;
  std::vector<std::string> ignored_;
  std::optional<ApiError> error_;
};

// "an object", "a string", ... for messages.
std::string_view json_type(const Json& value);
// Whole numbers only (3.0 counts), within the vocabulary; false otherwise.
bool read_token_ids(const Json& list, std::int32_t vocab_size, std::vector<std::int32_t>* out);

}  // namespace fovea::server
