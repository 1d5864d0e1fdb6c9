#include "server/openai/field_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace fovea::server {
namespace {

bool whole_number(const Json& value, std::int64_t* out) {
  if (value.is_number_unsigned()) {
    const auto unsigned_value = value.get<std::uint64_t>();
    if (unsigned_value > static_cast<std::uint64_t>(INT64_MAX)) return false;
    *out = static_cast<std::int64_t>(unsigned_value);
    return true;
  }
  if (value.is_number_integer()) {
    *out = value.get<std::int64_t>();
    return true;
  }
  if (!value.is_number_float()) return false;
  const double number = value.get<double>();
  if (!(std::abs(number) < 9e15) || number != std::floor(number)) return false;
  *out = static_cast<std::int64_t>(number);
  return true;
}

}  // namespace

std::string_view json_type(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "a list";
    case Json::value_t::string: return "a string";
    case Json::value_t::boolean: return "a boolean";
    case Json::value_t::null: return "null";
    default: return "a number";
  }
}

const Json* FieldReader::find(const char* key) const {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::vector<std::string> FieldReader::unread() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_.items()) {
    if (!value.is_null() && std::find(known_.begin(), known_.end(), key) == known_.end()) names.push_back(key);
  }
  return names;
}

void FieldReader::refuse(std::string param, std::string message, std::string code) {
  if (lenient_) {
    ignored_.push_back(std::move(param));
  } else {
    fail(std::move(param), std::move(message), std::move(code));
  }
}

void FieldReader::fail(std::string param, std::string message, std::string code) {
  if (error_) return;
  error_ = ApiError{400, std::move(message), std::move(param), std::move(code)};
}

bool FieldReader::integer(const char* key, std::int64_t min, std::int64_t max, std::int64_t* out) {
  const Json* value = find(key);
  if (value == nullptr) return false;
  std::int64_t whole = 0;
  if (!whole_number(*value, &whole) || whole < min || whole > max) {
    const std::string got = value->is_number() ? value->dump() : std::string(json_type(*value));
    fail(key, fmt::format("{} is {}, expected an integer from {} to {}", key, got, min, max));
    return false;
  }
  *out = whole;
  return true;
}

bool FieldReader::integer(const char* key, std::int32_t min, std::int32_t max, std::int32_t* out) {
  std::int64_t value = 0;
  if (!integer(key, std::int64_t{min}, std::int64_t{max}, &value)) return false;
  *out = static_cast<std::int32_t>(value);
  return true;
}

bool FieldReader::number(const char* key, double min, double max, float* out) {
  const Json* value = find(key);
  if (value == nullptr) return false;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= min && number <= max)) {
    const std::string got = value->is_number() ? value->dump() : std::string(json_type(*value));
    fail(key, fmt::format("{} is {}, expected a number from {} to {}", key, got, min, max));
    return false;
  }
  *out = static_cast<float>(number);
  return true;
}

bool FieldReader::boolean(const char* key, bool* out) {
  const Json* value = find(key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) {
    fail(key, fmt::format("{} is {}, expected true or false", key, json_type(*value)));
    return false;
  }
  *out = value->get<bool>();
  return true;
}

bool FieldReader::string(const char* key, std::string* out) {
  const Json* value = find(key);
  if (value == nullptr) return false;
  if (!value->is_string()) {
    fail(key, fmt::format("{} is {}, expected a string", key, json_type(*value)));
    return false;
  }
  *out = value->get<std::string>();
  return true;
}

bool FieldReader::strings(const char* key, std::vector<std::string>* out) {
  const Json* value = find(key);
  if (value == nullptr) return false;
  std::vector<std::string> list;
  if (value->is_string()) {
    list.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    for (const Json& item : *value) {
      if (!item.is_string()) {
        fail(key, fmt::format("{} holds {}, expected strings", key, json_type(item)));
        return false;
      }
      list.push_back(item.get<std::string>());
    }
  } else {
    fail(key, fmt::format("{} is {}, expected a string or a list of strings", key, json_type(*value)));
    return false;
  }
  *out = std::move(list);
  return true;
}

bool read_token_ids(const Json& list, std::int32_t vocab_size, std::vector<std::int32_t>* out) {
  if (!list.is_array()) return false;
  std::vector<std::int32_t> tokens;
  tokens.reserve(list.size());
  for (const Json& item : list) {
    std::int64_t id = 0;
    if (!whole_number(item, &id) || id < 0 || id >= vocab_size) return false;
    tokens.push_back(static_cast<std::int32_t>(id));
  }
  *out = std::move(tokens);
  return true;
}

bool FieldReader::token_ids(const char* key, std::int32_t vocab_size, std::vector<std::int32_t>* out) {
  const Json* value = find(key);
  if (value == nullptr) return false;
  if (read_token_ids(*value, vocab_size, out)) return true;
  fail(key, fmt::format("{} must be a list of token ids from 0 to {}", key, vocab_size - 1));
  return false;
}

}  // namespace fovea::server
