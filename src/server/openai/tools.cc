#include "server/openai/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/quote.h"
#include "server/openai/json_members.h"

namespace fovea::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kMaxTools = 128;
constexpr std::size_t kMaxNameBytes = 64;

// The member of a tool that holds what it is: `function` or `custom`.
const OrderedJson* body_of(FieldReader& fields, const OrderedJson& tool, const std::string& where) {
  const std::string type = text_of(tool, "type");
  if (type != "function" && type != "custom") {
    fields.fail(
        "tools",
        fmt::format("{}.type is {}; this server takes tools of type \"function\" and \"custom\"", where, quote(type)),
        "unsupported_parameter");
    return nullptr;
  }
  const OrderedJson* body = member(tool, type.c_str());
  if (body != nullptr && body->is_object()) return body;
  fields.fail("tools", fmt::format("{}.{} must be an object with a name", where, type));
  return nullptr;
}

void read_list(FieldReader& fields, const OrderedJson& list, ToolUse* out) {
  if (!list.is_array() || list.size() > kMaxTools) {
    fields.fail("tools", fmt::format("tools must be a list of at most {} tools", kMaxTools));
    return;
  }
  OrderedJson shown = list;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const OrderedJson* body = body_of(fields, list[i], where);
    if (body == nullptr) return;
    Tool tool = {text_of(*body, "name"), kNoParameters, text_of(list[i], "type") == "custom"};
    if (!is_tool_name(tool.name)) {
      fields.fail("tools", fmt::format("{}.{}.name must have 1 to {} letters, digits, _ and -", where,
                                       text_of(list[i], "type"), kMaxNameBytes));
      return;
    }
    if (const OrderedJson* parameters = member(*body, "parameters"); parameters != nullptr && !tool.custom) {
      if (!is_object_schema(*parameters)) {
        fields.fail("tools",
                    where + ".function.parameters must be the JSON schema of an object: {\"type\":\"object\",...}");
        return;
      }
      if (!parameters->empty()) tool.parameters = parameters->dump();
    }
    if (tool.custom) {
      tool.parameters = kTextParameters;
      const OrderedJson* format = member(*body, "format");
      const OrderedJson* grammar = format == nullptr ? nullptr : member(*format, "grammar");
      shown[i] = {{"type", "function"}, {"function", text_function(tool.name, text_of(*body, "description"), grammar)}};
    }
    const OrderedJson* strict = member(*body, "strict");
    tool.strict = strict != nullptr && *strict == true;
    if (std::any_of(out->tools.begin(), out->tools.end(), [&](const Tool& other) { return other.name == tool.name; })) {
      fields.fail("tools", fmt::format("{}: there are two tools {}", where, quote(tool.name)));
      return;
    }
    out->tools.push_back(std::move(tool));
  }
  out->json = shown.dump();
}

// {"type":"function","function":{"name":..}} or {"type":"custom","custom":{"name":..}}; empty: neither.
std::string named_tool(const Json& named) {
  const std::string type = text_of(named, "type");
  if (type != "function" && type != "custom") return {};
  const Json* body = member(named, type.c_str());
  return body == nullptr ? std::string() : text_of(*body, "name");
}

void read_choice(FieldReader& fields, const Json& choice, ToolUse* out) {
  if (choice == "none") {
    *out = {};
    return;
  }
  if (choice == "auto") return;
  const auto keep = [&](const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (std::any_of(out->tools.begin(), out->tools.end(), [&](const Tool& tool) { return tool.name == name; }))
        continue;
      fields.fail("tool_choice", fmt::format("tool_choice names {}, which is not among tools", quote(name)));
    }
    std::erase_if(out->tools,
                  [&](const Tool& tool) { return std::find(names.begin(), names.end(), tool.name) == names.end(); });
  };
  const Json* allowed = member(choice, "allowed_tools");
  const Json* list = allowed == nullptr ? nullptr : member(*allowed, "tools");
  const std::string mode = allowed == nullptr ? std::string() : text_of(*allowed, "mode");
  const std::string name = named_tool(choice);
  if (choice == "required") {
    out->required = true;
  } else if (!name.empty()) {
    out->required = true;
    out->parallel = false;
    keep({name});
  } else if (text_of(choice, "type") == "allowed_tools" && list != nullptr && list->is_array() &&
             (mode == "auto" || mode == "required")) {
    out->required = mode == "required";
    std::vector<std::string> names;
    for (const Json& tool : *list) names.push_back(named_tool(tool));
    keep(names);
  } else {
    fields.fail("tool_choice",
                R"(tool_choice must be "none", "auto", "required", {"type":"function","function":{"name":...}}, )"
                R"({"type":"custom","custom":{"name":...}} or )"
                R"({"type":"allowed_tools","allowed_tools":{"mode":"auto" or "required","tools":[...]}})");
  }
  if (out->required && out->tools.empty()) {
    fields.fail("tool_choice", "tool_choice asks for a call, but there are no tools");
  }
}

// A call in a message of the assistant, as templates take it: arguments as an object, not as its text. Null, with the
// error in fields, where it is none.
OrderedJson read_call(const Json& call, const std::string& field, std::size_t i, FieldReader& fields) {
  std::string name, text;
  if (text_of(call, "type") == "custom") {
    const Json* custom = member(call, "custom");
    if (custom != nullptr) name = text_of(*custom, "name");
    text = Json{{"input", custom == nullptr ? std::string() : text_of(*custom, "input")}}.dump();
  } else if (const Json* function = member(call, "function"); function != nullptr) {
    const Json* arguments = member(*function, "arguments");
    if (arguments != nullptr && arguments->is_string()) name = text_of(*function, "name");
    text = text_of(*function, "arguments");
  }
  if (name.empty() || text_of(call, "id").empty()) {
    fields.fail(field, fmt::format(R"({}[{}] must be {{"id":...,"type":"function","function":{{"name":...,)"
                                   R"("arguments":"..."}}}} or {{"id":...,"type":"custom","custom":{{"name":...,)"
                                   R"("input":"..."}}}})",
                                   field, i));
    return nullptr;
  }
  if (text.empty()) text = "{}";
  const Result<Json> parsed = parse_json(text, "arguments");
  if (!parsed.ok() || !parsed->is_object()) {
    fields.fail(field, fmt::format("{}[{}].function.arguments must be the text of a JSON object{}", field, i,
                                   parsed.ok() ? "" : ": " + parsed.status().message()));
    return nullptr;
  }
  return {{"id", text_of(call, "id")},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", OrderedJson::parse(text)}}}};
}

}  // namespace

OrderedJson text_function(const std::string& name, std::string description, const OrderedJson* grammar) {
  if (grammar != nullptr) {
    description += fmt::format("{}The input is text by this {} grammar:\n{}", description.empty() ? "" : "\n\n",
                               text_of(*grammar, "syntax"), text_of(*grammar, "definition"));
  }
  OrderedJson function = {{"name", name}};
  if (!description.empty()) function["description"] = std::move(description);
  function["parameters"] = OrderedJson::parse(kTextParameters);
  return function;
}

bool is_object_schema(const OrderedJson& schema) {
  if (!schema.is_object() || schema.empty()) return schema.is_object();
  if (const OrderedJson* type = member(schema, "type"); type != nullptr) return *type == "object";
  constexpr const char* kMayBe[] = {"properties", "$ref", "anyOf", "oneOf", "allOf"};
  return std::any_of(std::begin(kMayBe), std::end(kMayBe), [&](const char* key) { return schema.contains(key); });
}

bool is_tool_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

void read_tools(FieldReader& fields, std::string_view body, ToolUse* out) {
  fields.boolean("parallel_tool_calls", &out->parallel);
  // The body was parsed before, within limits.
  if (fields.find("tools") != nullptr) read_list(fields, OrderedJson::parse(body)["tools"], out);
  const Json* choice = fields.find("tool_choice");
  if (choice != nullptr && !fields.failed()) read_choice(fields, *choice, out);
}

bool read_tool_members(const Json& message, const std::string& where, FieldReader& fields, ChatMessage* out) {
  OrderedJson extra;
  if (out->role == "tool") {
    extra["tool_call_id"] = text_of(message, "tool_call_id");
    if (extra["tool_call_id"] == "") {
      fields.fail(where + ".tool_call_id", where + ".tool_call_id must name the call that this is the result of");
      return false;
    }
    if (const std::string name = text_of(message, "name"); !name.empty()) extra["name"] = name;
  }
  if (member(message, "function_call") != nullptr) {
    fields.fail(where + ".function_call", where + ".function_call is of an older API; send the call as tool_calls",
                "unsupported_parameter");
    return false;
  }
  const Json* calls = member(message, "tool_calls");
  if (calls != nullptr && !(calls->is_array() && calls->empty())) {
    const std::string field = where + ".tool_calls";
    if (out->role != "assistant" || !calls->is_array()) {
      fields.fail(field, field + " must be a list of calls, in a message of the assistant");
      return false;
    }
    for (std::size_t i = 0; i < calls->size(); ++i) {
      OrderedJson call = read_call((*calls)[i], field, i, fields);
      if (call.is_null()) return false;
      extra["tool_calls"].push_back(std::move(call));
    }
  }
  if (out->role == "assistant") {
    std::string thought = text_of(message, "reasoning_content");
    if (thought.empty()) thought = text_of(message, "reasoning");
    if (!thought.empty()) extra["reasoning_content"] = thought;
  }
  if (!extra.is_null()) out->extra_json = extra.dump();
  return true;
}

}  // namespace fovea::server
