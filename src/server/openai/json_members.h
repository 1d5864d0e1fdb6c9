// Members of JSON objects from outside that may be missing, null or of another type. Used by the parsers of requests;
// AnyJson: Json, or its kind that keeps the order of keys.
#pragma once

#include <string>

namespace fovea::server {

// The member, or null where there is none, it is null, or value is no object.
template <class AnyJson>
const AnyJson* member(const AnyJson& value, const char* key) {
  if (!value.is_object()) return nullptr;
  const auto found = value.find(key);
  return found == value.end() || found->is_null() ? nullptr : &*found;
}

// The text of a member; empty where it is no string.
template <class AnyJson>
std::string text_of(const AnyJson& value, const char* key) {
  const AnyJson* found = member(value, key);
  return found != nullptr && found->is_string() ? found->template get<std::string>() : std::string();
}

}  // namespace fovea::server
