// JSON: parsing with limits, and typed reads whose errors name the file and the path inside it. Used wherever JSON
// comes from outside: model configs, tokenizers, HTTP bodies, batch descriptions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/status.h"

namespace fovea {

using Json = nlohmann::json;

struct JsonLimits {
  std::uint64_t max_bytes = 64u << 20;
  int max_depth = 64;  // nested arrays and objects
};

// Parses one document. `where` (a file name, "request body") opens every message. Depth and size are checked before the
// parser sees the text; errors are kInvalidArgument with the byte offset, kOutOfRange when a limit is exceeded.
Result<Json> parse_json(std::string_view text, std::string_view where, const JsonLimits& limits = {});
// read_file, then parse_json with the path as `where`.
Result<Json> read_json_file(const std::string& path, const JsonLimits& limits = {});

// A JSON object with its place in the document. A null value counts as absent. Borrows the object.
class JsonReader {
 public:
  static constexpr std::int64_t kMinInt = std::numeric_limits<std::int64_t>::min();
  static constexpr std::int64_t kMaxInt = std::numeric_limits<std::int64_t>::max();

  // kInvalidArgument when the value is not an object. `where` opens every message, as it is: shorten() long paths.
  static Result<JsonReader> create(const Json& value, std::string where);

  // kInvalidArgument names a key that is not among these, and lists them: most likely a slip.
  Status only(std::initializer_list<std::string_view> known) const;

  bool has(std::string_view key) const { return find(key) != nullptr; }
  // The object below key: "config.json: rope_scaling".
  Result<JsonReader> child(std::string_view key) const;
  // The value below key, of whatever type, or null when absent.
  const Json* find(std::string_view key) const;

  // Absent, of another type or outside [min, max]: kInvalidArgument that says which. 3.0 counts as the integer 3.
  Result<std::int64_t> integer(std::string_view key, std::int64_t min = kMinInt, std::int64_t max = kMaxInt) const;
  Result<double> number(std::string_view key) const;
  Result<bool> boolean(std::string_view key) const;
  Result<std::string> string(std::string_view key) const;
  Result<std::vector<std::int64_t>> integers(std::string_view key) const;
  Result<std::vector<std::string>> strings(std::string_view key) const;

  // As above, but an absent key gives the fallback.
  Result<std::int64_t> integer_or(std::string_view key, std::int64_t fallback, std::int64_t min = kMinInt,
                                  std::int64_t max = kMaxInt) const;
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> string_or(std::string_view key, std::string_view fallback) const;

  const Json& json() const { return *value_; }
  // "config.json: rope_scaling" ; add a key with path(key).
  const std::string& where() const { return where_; }
  std::string path(std::string_view key) const;

 private:
  JsonReader(const Json* value, std::string where) : value_(value), where_(std::move(where)) {}
  Result<const Json*> require(std::string_view key, std::string_view expected) const;

  const Json* value_;
  std::string where_;
};

}  // namespace fovea
