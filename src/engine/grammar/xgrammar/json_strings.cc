#include "engine/grammar/xgrammar/json_strings.h"

#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/quote.h"
#include "base/status.h"
#include "engine/grammar/regex_space.h"
#include "engine/grammar/repetition.h"

namespace fovea {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Of what may be a quote, in a pattern: 128 were still compiled to an automaton, 200 were not.
constexpr std::int64_t kMaxRepetitions = 128;
// Of anything else: the time to compile them grows with their square (0.15 s here).
constexpr std::int64_t kMaxPlainRepetitions = 2000;
constexpr std::int64_t kMaxOfAllPatterns = 10'000;  // of a schema

// Members that hold values, not schemas.
bool holds_values(std::string_view name) {
  return name == "const" || name == "enum" || name == "default" || name == "examples" || name == "example";
}

// Members whose own members have names of their author's, and are schemas whatever these are.
bool holds_names(std::string_view name) {
  return name == "properties" || name == "patternProperties" || name == "$defs" || name == "definitions" ||
         name == "dependentSchemas";
}

// What in the schema, or list, may be a schema.
template <typename AnyJson>
std::vector<AnyJson*> schemas_in(AnyJson& schema) {
  std::vector<AnyJson*> found;
  if (schema.is_array()) {
    for (AnyJson& item : schema) found.push_back(&item);
  }
  if (!schema.is_object()) return found;
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    if (holds_names(it.key()) && it->is_object()) {
      for (AnyJson& named : *it) found.push_back(&named);
    } else if (!holds_values(it.key())) {
      found.push_back(&*it);
    }
  }
  return found;
}

bool is_bound(const OrderedJson& schema, const char* name) {
  return schema.contains(name) && schema[name].is_number_integer();
}

// Whatever way it is compiled, it cannot match a quote, a backslash or a control character.
bool is_plain(std::string_view pattern) {
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const auto c = static_cast<unsigned char>(pattern[i]);
    const bool escaped_digit = c == '\\' && i + 1 < pattern.size() && pattern[i + 1] == 'd';
    const bool range = c == '-' && i > 0 && i + 1 < pattern.size();
    if (range) {
      const std::string_view ends = pattern.substr(i - 1, 3);
      if (ends != "a-z" && ends != "A-Z" && ends != "0-9" && ends != "a-f" && ends != "A-F") return false;
      continue;
    }
    if (c == '[' && i + 1 < pattern.size() && pattern[i + 1] == '^') return false;
    if (c >= 0x80 || escaped_digit || std::isalnum(c) != 0) continue;
    if (std::string_view(" ^$()|?*+{},:_=@#/[]").find(pattern[i]) == std::string_view::npos) return false;
  }
  return true;
}

// How often a pattern repeats something at most: of groups, one in another; else, one behind the other.
std::int64_t repetitions(std::string_view pattern) {
  std::int64_t sum = 0, product = 1;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '{') continue;
    std::int64_t count = 0, last = 0;
    for (++i; i < pattern.size() && pattern[i] != '}'; ++i) {
      last =
          pattern[i] >= '0' && pattern[i] <= '9' ? std::min<std::int64_t>(10 * last + (pattern[i] - '0'), 1 << 20) : 0;
      count = std::max(count, last);
    }
    sum = std::min<std::int64_t>(sum + count, 1 << 20);
    product = std::min<std::int64_t>(product * std::max<std::int64_t>(count, 1), 1 << 20);
  }
  return pattern.find("){") == std::string_view::npos ? sum : product;
}

Status check_pattern(const std::string& pattern) {
  if (is_plain(pattern)) {
    if (const std::int64_t count = repetitions(pattern); count > kMaxPlainRepetitions) {
      return invalid_argument(
          "the pattern {} repeats something {} times, at most {} are allowed; maxLength bounds more",
          quote(shorten(pattern)), count, kMaxPlainRepetitions);
    }
    return ok_status();
  }
  // More are not tried: the time to do so grows with their square.
  if (repetitions(pattern) <= kMaxRepetitions) {
    const OrderedJson schema = {{"type", "string"}, {"pattern", pattern}};
    // As an automaton it was made to match strings as JSON writes them.
    const std::string grammar = xgrammar::Grammar::FromJSONSchema(schema.dump(), false).ToString();
    if (grammar.find("Regex(") != std::string::npos) return ok_status();
  }
  return invalid_argument(
      "the pattern {} cannot be kept to in JSON: it is too long, or asks for characters that JSON "
      "escapes",
      quote(shorten(pattern)));
}

}  // namespace

void write_spaces_of_patterns(OrderedJson* schema) {
  for (OrderedJson* inner : schemas_in(*schema)) write_spaces_of_patterns(inner);
  if (!schema->is_object()) return;
  if (const auto found = schema->find("pattern"); found != schema->end() && found->is_string()) {
    *found = with_written_spaces(found->get<std::string>());
  }
  const auto found = schema->find("patternProperties");
  if (found == schema->end() || !found->is_object()) return;
  OrderedJson written = OrderedJson::object();
  for (auto& [pattern, inner] : found->items()) written[with_written_spaces(pattern)] = std::move(inner);
  *found = std::move(written);
}

void write_bounds_as_patterns(OrderedJson* schema) {
  for (OrderedJson* inner : schemas_in(*schema)) write_bounds_as_patterns(inner);
  if (!schema->is_object()) return;
  const bool least = is_bound(*schema, "minLength"), most = is_bound(*schema, "maxLength");
  if ((!least && !most) || schema->contains("pattern") || schema->contains("format")) return;
  const auto bound = [&](const char* name) { return (*schema)[name].dump(); };
  // U+FFFF, which is no character, keeps xgrammar from making an automaton of it, which takes far longer.
  std::string pattern = fmt::format("^[^\"\\\\\\x00-\\x1f\xEF\xBF\xBF]{{{},{}}}$", least ? bound("minLength") : "0",
                                    most ? bound("maxLength") : "");
  schema->erase("minLength");
  schema->erase("maxLength");
  (*schema)["pattern"] = std::move(pattern);
}

bool drop_costly_counts(OrderedJson* schema) {
  bool dropped = false;
  for (OrderedJson* inner : schemas_in(*schema)) dropped |= drop_costly_counts(inner);
  if (!schema->is_object()) return dropped;
  for (const char* name : {"minLength", "maxLength"}) {
    if (is_bound(*schema, name)) dropped |= schema->erase(name) > 0;
  }
  for (const char* name : {"pattern", "grammar"}) {
    const auto found = schema->find(name);
    if (found == schema->end() || !found->is_string()) continue;
    const std::string text = found->get<std::string>();
    std::string kept = without_costly_counts(text, name[0] == 'g');
    if (kept == text) continue;
    *found = std::move(kept);
    dropped = true;
  }
  return dropped;
}

namespace {

// *count: of the repetitions of all patterns so far.
Status check_patterns_here(const OrderedJson& schema, std::int64_t* count) {
  for (const OrderedJson* inner : schemas_in(schema)) FOVEA_RETURN_IF_ERROR(check_patterns_here(*inner, count));
  if (!schema.is_object()) return ok_status();
  for (const auto& [name, value] : schema.items()) {
    if (name == "pattern" && value.is_string()) {
      const std::string pattern = value.get<std::string>();
      *count += repetitions(pattern);
      if (*count > kMaxOfAllPatterns) {
        return invalid_argument("the patterns repeat things more than {} times together; maxLength bounds more",
                                kMaxOfAllPatterns);
      }
      FOVEA_RETURN_IF_ERROR(check_pattern(pattern));
    } else if (name == "patternProperties" && value.is_object()) {
      for (const auto& [pattern, inner] : value.items()) FOVEA_RETURN_IF_ERROR(check_pattern(pattern));
    }
  }
  return ok_status();
}

}  // namespace

Status check_patterns(const OrderedJson& schema) {
  std::int64_t count = 0;
  return check_patterns_here(schema, &count);
}

}  // namespace fovea
