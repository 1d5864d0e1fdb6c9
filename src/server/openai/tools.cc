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

void read_list(FieldReader& fields, const OrderedJson& list, ToolUse* out) {
  if (!list.is_array() || list.size() > kMaxTools) {
    fields.fail("tools", fmt::format("tools must be a list of at most {} tools", kMaxTools));
    return;
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const std::string type = text_of(list[i], "type");
    if (type != "function") {
      fields.fail("tools",
                  fmt::format("{}.type is {}; this server takes tools of type \"function\"", where, quote(type)),
                  "unsupported_parameter");
      return;
    }
    const OrderedJson* function = member(list[i], "function");
    if (function == nullptr || !function->is_object()) {
      fields.fail("tools", where + ".function must be an object with a name");
      return;
    }
    Tool tool = {text_of(*function, "name"), kNoParameters};
    if (!is_tool_name(tool.name)) {
      fields.fail("tools",
                  fmt::format("{}.function.name must have 1 to {} letters, digits, _ and -", where, kMaxNameBytes));
      return;
    }
    if (const OrderedJson* parameters = member(*function, "parameters"); parameters != nullptr) {
      if (!parameters->is_object()) {
        fields.fail("tools", where + ".function.parameters must be a JSON schema: an object");
        return;
      }
      if (!parameters->empty()) tool.parameters = parameters->dump();
    }
    if (std::any_of(out->tools.begin(), out->tools.end(), [&](const Tool& other) { return other.name == tool.name; })) {
      fields.fail("tools", fmt::format("{}.function.name: there are two tools {}", where, quote(tool.name)));
      return;
    }
    out->tools.push_back(std::move(tool));
  }
  out->json = list.dump();
}

void read_choice(FieldReader& fields, const Json& choice, ToolUse* out) {
  if (choice == "none") {
    *out = {};
    return;
  }
  if (choice == "auto") return;
  out->required = true;
  if (choice != "required") {
    const Json* function = member(choice, "function");
    const std::string name = function == nullptr ? std::string() : text_of(*function, "name");
    if (text_of(choice, "type") != "function" || name.empty()) {
      fields.fail("tool_choice",
                  R"(tool_choice must be "none", "auto", "required" or {"type":"function","function":{"name":...}})");
      return;
    }
    std::erase_if(out->tools, [&](const Tool& tool) { return tool.name != name; });
    out->parallel = false;
    if (out->tools.empty()) {
      fields.fail("tool_choice", fmt::format("tool_choice names {}, which is not among tools", quote(name)));
    }
  }
  if (out->tools.empty()) fields.fail("tool_choice", "tool_choice asks for a call, but there are no tools");
}

}  // namespace

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
  const Json* calls = member(message, "tool_calls");
  if (calls != nullptr && !(calls->is_array() && calls->empty())) {
    const std::string field = where + ".tool_calls";
    if (out->role != "assistant" || !calls->is_array()) {
      fields.fail(field, field + " must be a list of calls, in a message of the assistant");
      return false;
    }
    for (std::size_t i = 0; i < calls->size(); ++i) {
      const Json& call = (*calls)[i];
      const Json* function = member(call, "function");
      const std::string name = function == nullptr ? std::string() : text_of(*function, "name");
      const Json* arguments = function == nullptr ? nullptr : member(*function, "arguments");
      if (name.empty() || text_of(call, "id").empty() || arguments == nullptr || !arguments->is_string()) {
        fields.fail(field, fmt::format(R"({}[{}] must be {{"id":...,"type":"function","function":{{"name":...,)"
                                       R"("arguments":"..."}}}})",
                                       field, i));
        return false;
      }
      // Templates write arguments themselves: as an object, not as its text.
      const std::string text = arguments->get<std::string>();
      const Result<Json> parsed = parse_json(text.empty() ? "{}" : text, "arguments");
      if (!parsed.ok() || !parsed->is_object()) {
        fields.fail(field, fmt::format("{}[{}].function.arguments must be the text of a JSON object{}", field, i,
                                       parsed.ok() ? "" : ": " + parsed.status().message()));
        return false;
      }
      extra["tool_calls"].push_back(
          {{"id", text_of(call, "id")},
           {"type", "function"},
           {"function", {{"name", name}, {"arguments", OrderedJson::parse(text.empty() ? "{}" : text)}}}});
    }
  }
  if (const std::string thought = text_of(message, "reasoning_content"); out->role == "assistant" && !thought.empty()) {
    extra["reasoning_content"] = thought;
  }
  if (!extra.is_null()) out->extra_json = extra.dump();
  return true;
}

}  // namespace fovea::server
