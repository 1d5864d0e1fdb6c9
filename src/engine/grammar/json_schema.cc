#include "engine/grammar/json_schema.h"

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/quote.h"
#include "base/status.h"
#include "engine/grammar/repetition.h"

namespace fovea {
namespace {

constexpr JsonLimits kLimits = {.max_bytes = 256u << 10, .max_depth = 64};
constexpr int kMaxSchemas = 2000;           // in one
constexpr int kMaxDepth = 128;              // of schemas in one another, references followed
constexpr std::int64_t kMaxCount = 10'000;  // of a length, items or properties

using Names = std::span<const std::string_view>;

constexpr std::string_view kAnnotations[] = {"title",    "description", "default",    "examples",     "example",
                                             "$schema",  "$id",         "$comment",   "$defs",        "definitions",
                                             "readOnly", "writeOnly",   "deprecated", "discriminator"};
constexpr std::string_view kString[] = {"minLength", "maxLength", "pattern", "format"};
constexpr std::string_view kNumber[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
constexpr std::string_view kArray[] = {"items", "prefixItems", "unevaluatedItems", "minItems", "maxItems"};
constexpr std::string_view kObject[] = {
    "properties",    "required",      "additionalProperties", "unevaluatedProperties",
    "minProperties", "maxProperties", "patternProperties",    "propertyNames"};
constexpr std::string_view kTypes[] = {"string", "number", "integer", "boolean", "null", "array", "object"};
constexpr std::string_view kFormats[] = {
    "email",    "date", "time", "date-time",     "duration",     "ipv4",         "ipv6",
    "hostname", "uuid", "uri",  "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"};
// What decides alone; xgrammar then looks at nothing beside it.
constexpr std::string_view kDeciding[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

bool in(Names names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

bool is_annotation(std::string_view name) { return in(kAnnotations, name) || name.starts_with("x-"); }

bool has_type(const Json& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number_integer();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  return type == "array" ? value.is_array() : value.is_object();
}

class Checker {
 public:
  explicit Checker(const Json& root) : root_(root) {}

  // `loose`: schemas that led here without a character in between; one of them again would never end.
  Status check(const Json& schema, const std::string& path, std::vector<const Json*> loose) {
    if (schema.is_boolean()) return ok_status();
    if (!schema.is_object()) return invalid_argument("{}: a schema must be an object or a boolean", path);
    if (std::find(loose.begin(), loose.end(), &schema) != loose.end()) {
      return invalid_argument("{}: the schema refers to itself with nothing in between", path);
    }
    loose.push_back(&schema);
    if (!seen_.insert(&schema).second && loose.size() == 1) return ok_status();
    if (++count_ > kMaxSchemas) return invalid_argument("the schema holds more than {} schemas", kMaxSchemas);
    if (depth_ == kMaxDepth) return invalid_argument("the schema goes deeper than {} schemas", kMaxDepth);
    ++depth_;
    const auto* const deciding = std::find_if(std::begin(kDeciding), std::end(kDeciding),
                                              [&](std::string_view name) { return schema.contains(name); });
    Status status =
        deciding != std::end(kDeciding) ? check_deciding(schema, *deciding, path, loose) : check_typed(schema, path);
    --depth_;
    return status;
  }

 private:
  static std::string below(const std::string& path, std::string_view name) { return path + "." + shorten(name); }

  Status check_deciding(const Json& schema, std::string_view name, const std::string& path,
                        const std::vector<const Json*>& loose) {
    const Json& value = schema[std::string(name)];
    const bool literal = name == "const" || name == "enum";
    for (const auto& [key, other] : schema.items()) {
      if (key == name || is_annotation(key) || (literal && key == "type")) continue;
      return invalid_argument("{}: {} beside {} is not supported", path, quote(key), quote(name));
    }
    if (name == "$ref") {
      if (!value.is_string()) return invalid_argument("{}.$ref must be a string", path);
      const Json* target = resolve(value.get<std::string>());
      if (target == nullptr) {
        return invalid_argument("{}.$ref is {}; expected \"#\" or \"#/...\" that leads to a schema here", path,
                                quote(value.get<std::string>()));
      }
      return check(*target, below(path, "$ref"), loose);
    }
    if (literal) {
      if (name == "enum" && (!value.is_array() || value.empty())) {
        return invalid_argument("{}.enum must be a list of at least one value", path);
      }
      return check_literals(schema, name == "enum" ? value : Json::array({value}), path);
    }
    if (!value.is_array() || value.empty()) {
      return invalid_argument("{}.{} must be a list of at least one schema", path, name);
    }
    if (name == "allOf" && value.size() > 1) {
      return invalid_argument("{}: allOf of several schemas is not supported; write them as one", path);
    }
    for (std::size_t i = 0; i < value.size(); ++i) {
      FOVEA_RETURN_IF_ERROR(check(value[i], fmt::format("{}.{}[{}]", path, name, i), loose));
    }
    return ok_status();
  }

  static Status check_literals(const Json& schema, const Json& values, const std::string& path) {
    const auto type = schema.find("type");
    if (type == schema.end()) return ok_status();
    const Json types = type->is_array() ? *type : Json::array({*type});
    for (const Json& value : values) {
      const bool fits = std::any_of(types.begin(), types.end(), [&](const Json& one) {
        return one.is_string() && in(kTypes, one.get<std::string>()) && has_type(value, one.get<std::string>());
      });
      if (!fits) return invalid_argument("{}: {} is not of the type beside it", path, shorten(value.dump()));
    }
    return ok_status();
  }

  Status check_typed(const Json& schema, const std::string& path) {
    bool typed = false;
    if (const auto type = schema.find("type"); type != schema.end()) {
      typed = true;
      const Json types = type->is_array() ? *type : Json::array({*type});
      for (const Json& one : types) {
        if (one.is_string() && in(kTypes, one.get<std::string>())) continue;
        return invalid_argument("{}.type is {}; expected {}", path, shorten(one.dump()),
                                fmt::join(std::begin(kTypes), std::end(kTypes), ", "));
      }
      if (types.empty()) return invalid_argument("{}.type is an empty list", path);
    }
    // Where there is no type, these make it an object or a list.
    const auto has = [&](std::string_view name) { return schema.contains(name); };
    const bool object = has("properties") || has("additionalProperties") || has("unevaluatedProperties");
    const bool array = !object && (has("items") || has("prefixItems") || has("unevaluatedItems"));
    for (const auto& [key, value] : schema.items()) {
      if (key == "type" || is_annotation(key)) continue;
      const bool of_object = in(kObject, key), of_array = in(kArray, key);
      if (!of_object && !of_array && !in(kString, key) && !in(kNumber, key)) {
        return invalid_argument("{}: the keyword {} is not supported", path, quote(key));
      }
      if (!typed && !(object && of_object) && !(array && of_array)) {
        return invalid_argument("{}: {} needs a \"type\" beside it", path, quote(key));
      }
    }
    FOVEA_RETURN_IF_ERROR(check_values(schema, path));
    return check_children(schema, path);
  }

  static Status check_values(const Json& schema, const std::string& path) {
    for (const char* key : {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}) {
      const auto found = schema.find(key);
      if (found == schema.end()) continue;
      if (!found->is_number_integer() || found->get<std::int64_t>() < 0 || found->get<std::int64_t>() > kMaxCount) {
        return invalid_argument("{}.{} is {}; expected 0 to {}", path, key, shorten(found->dump()), kMaxCount);
      }
    }
    for (const char* key : {"pattern", "format"}) {
      if (schema.contains(key) && !schema[key].is_string()) {
        return invalid_argument("{}.{} must be a string", path, key);
      }
    }
    if (const auto pattern = schema.find("pattern"); pattern != schema.end()) {
      const Status status = check_repetitions(pattern->get<std::string>(), false);
      if (!status.ok()) return invalid_argument("{}.pattern: {}", path, status.message());
    }
    if (const auto format = schema.find("format"); format != schema.end()) {
      if (schema.contains("pattern"))
        return invalid_argument("{}: \"format\" beside \"pattern\" is not supported", path);
      if (!in(kFormats, format->get<std::string>())) {
        return invalid_argument("{}: the format {} is not supported", path, quote(format->get<std::string>()));
      }
    }
    if (const auto required = schema.find("required"); required != schema.end()) {
      const bool strings = required->is_array() && std::all_of(required->begin(), required->end(),
                                                               [](const Json& name) { return name.is_string(); });
      if (!strings) return invalid_argument("{}.required must be a list of strings", path);
      const auto declared = schema.find("properties");
      for (const Json& name : *required) {
        if (declared != schema.end() && declared->is_object() && declared->contains(name.get<std::string>())) continue;
        return invalid_argument("{}.required names {}, which is not among its properties", path,
                                quote(name.get<std::string>()));
      }
    }
    return ok_status();
  }

  // Keys that are not named may come twice, and are one property then: they count once.
  static Status check_least_properties(const Json& schema, const std::string& path) {
    const auto least = schema.find("minProperties");
    if (least == schema.end() || !least->is_number_unsigned()) return ok_status();
    const auto opens = [&](const char* key) {
      const auto found = schema.find(key);
      return found != schema.end() && *found != Json(false);
    };
    if (schema.contains("properties") && !opens("additionalProperties") && !opens("unevaluatedProperties"))
      return ok_status();
    const auto required = schema.find("required");
    const std::size_t named = schema.contains("properties") && required != schema.end() ? required->size() : 0;
    if (least->get<std::uint64_t>() <= named + 1) return ok_status();
    return invalid_argument(
        "{}: \"minProperties\" is {}, which keys that are not in \"properties\" could meet by repeating one; list {} "
        "of "
        "them in \"properties\" and \"required\"",
        path, least->get<std::uint64_t>(), least->get<std::uint64_t>() - 1);
  }

  Status check_children(const Json& schema, const std::string& path) {
    for (const char* key :
         {"items", "unevaluatedItems", "additionalProperties", "unevaluatedProperties", "propertyNames"}) {
      if (schema.contains(key)) FOVEA_RETURN_IF_ERROR(check(schema[key], below(path, key), {}));
    }
    for (const char* key : {"properties", "patternProperties"}) {
      const auto found = schema.find(key);
      if (found == schema.end()) continue;
      if (!found->is_object()) return invalid_argument("{}.{} must be an object", path, key);
      for (const auto& [name, child] : found->items()) {
        FOVEA_RETURN_IF_ERROR(check(child, below(below(path, key), name), {}));
      }
    }
    if (schema.contains("patternProperties") && schema.contains("properties")) {
      return invalid_argument("{}: \"patternProperties\" beside \"properties\" is not supported", path);
    }
    if (schema.contains("propertyNames") && schema.contains("properties")) {
      return invalid_argument("{}: \"propertyNames\" beside \"properties\" is not supported", path);
    }
    FOVEA_RETURN_IF_ERROR(check_least_properties(schema, path));
    if (const auto found = schema.find("prefixItems"); found != schema.end()) {
      if (!found->is_array()) return invalid_argument("{}.prefixItems must be a list", path);
      for (std::size_t i = 0; i < found->size(); ++i) {
        FOVEA_RETURN_IF_ERROR(check((*found)[i], fmt::format("{}.prefixItems[{}]", path, i), {}));
      }
    }
    return ok_status();
  }

  const Json* resolve(const std::string& uri) const {
    if (uri == "#") return &root_;
    if (!uri.starts_with("#/")) return nullptr;
    const Json* at = &root_;
    for (std::size_t begin = 2; begin <= uri.size();) {
      const std::size_t end = std::min(uri.find('/', begin), uri.size());
      const auto found = at->is_object() ? at->find(uri.substr(begin, end - begin)) : at->end();
      if (found == at->end()) return nullptr;
      at = &*found;
      begin = end + 1;
    }
    return at;
  }

  const Json& root_;
  std::set<const Json*> seen_;
  int count_ = 0, depth_ = 0;
};

}  // namespace

Status check_json_schema(std::string_view text) {
  FOVEA_ASSIGN_OR_RETURN(const Json root, parse_json(text, "the schema", kLimits));
  return Checker(root).check(root, "schema", {});
}

}  // namespace fovea
