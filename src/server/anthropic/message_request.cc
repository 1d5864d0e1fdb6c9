#include "server/anthropic/message_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/quote.h"
#include "server/anthropic/message_blocks.h"
#include "server/openai/json_members.h"
#include "server/openai/other_fields.h"
#include "server/openai/request_fields.h"
#include "server/openai/response_format.h"
#include "server/openai/tools.h"

namespace fovea::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Hints and identities; thinking blocks and cached prefixes are the server's own affair.
constexpr const char* kNoEffect[] = {"cache_control", "metadata",     "service_tier",    "speed",
                                     "inference_geo", "workspace_id", "user_profile_id", "context_management"};

void read_tools(FieldReader& fields, const OrderedJson& list, ToolUse* out) {
  OrderedJson shown = OrderedJson::array();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const std::string type = text_of(list[i], "type");
    if (!list[i].is_object() || (!type.empty() && type != "custom")) {
      fields.fail(
          "tools",
          fmt::format("{} is of type {}; this server takes tools with a name and an input_schema", where, quote(type)),
          "unsupported_parameter");
      return;
    }
    Tool tool = {text_of(list[i], "name"), kNoParameters};
    const OrderedJson* schema = member(list[i], "input_schema");
    if (!is_tool_name(tool.name) || (schema != nullptr && !is_object_schema(*schema))) {
      fields.fail("tools", where +
                               " must have a name of 1 to 64 letters, digits, _ and -, and the schema of an object "
                               "as input_schema: {\"type\":\"object\",...}");
      return;
    }
    if (schema != nullptr && !schema->empty()) tool.parameters = schema->dump();
    const OrderedJson* strict = member(list[i], "strict");
    tool.strict = strict != nullptr && *strict == true;
    if (std::any_of(out->tools.begin(), out->tools.end(), [&](const Tool& other) { return other.name == tool.name; })) {
      fields.fail("tools", fmt::format("{}: there are two tools {}", where, quote(tool.name)));
      return;
    }
    OrderedJson function = {{"name", tool.name}};
    if (const std::string text = text_of(list[i], "description"); !text.empty()) function["description"] = text;
    function["parameters"] = OrderedJson::parse(tool.parameters);
    shown.push_back({{"type", "function"}, {"function", std::move(function)}});
    out->tools.push_back(std::move(tool));
  }
  if (!out->tools.empty()) out->json = shown.dump();
}

void read_choice(FieldReader& fields, const Json& choice, ToolUse* out) {
  const std::string type = text_of(choice, "type");
  const Json* single = member(choice, "disable_parallel_tool_use");
  out->parallel = !(single != nullptr && *single == true);
  if (type == "none") {
    *out = {};
  } else if (type == "any") {
    out->required = true;
  } else if (type == "tool") {
    const std::string name = text_of(choice, "name");
    std::erase_if(out->tools, [&](const Tool& tool) { return tool.name != name; });
    out->required = true;
    out->parallel = false;
  } else if (type != "auto") {
    fields.fail("tool_choice", "tool_choice must be an object of type auto, any, tool (with a name) or none");
  }
  if (out->required && out->tools.empty()) {
    fields.fail("tool_choice", "tool_choice asks for a call of a tool that is not among tools");
  }
}

// What templates of models that reason read.
std::string read_thinking(FieldReader& fields, const OrderedJson& request, GenerationParams* params) {
  Json variables;
  if (const Json* thinking = fields.find("thinking"); thinking != nullptr) {
    const std::string type = text_of(*thinking, "type");
    if (type != "enabled" && type != "disabled" && type != "adaptive" && type != "between_tools") {
      fields.fail("thinking", "thinking must be an object of type enabled, disabled, adaptive or between_tools");
    }
    variables["enable_thinking"] = type != "disabled";
  }
  if (const Json* config = fields.find("output_config"); config != nullptr) {
    if (!config->is_object()) {
      fields.fail("output_config", "output_config must be an object");
      return "";
    }
    if (const std::string effort = text_of(*config, "effort"); !effort.empty()) {
      variables["reasoning_effort"] = effort;
    }
    if (const OrderedJson* format = member(request["output_config"], "format")) {
      read_flat_format(fields, "output_config.format", *format, params);
    }
    refuse_other_members(fields, "output_config", *config, {"effort", "format"});
  }
  return variables.is_null() ? "" : variables.dump();
}

void read_lengths(FieldReader& fields, bool counting, MessageRequest* out) {
  GenerationParams& params = out->chat.params;
  if (fields.integer("max_tokens", std::int32_t{1}, kMaxTokens, &out->max_tokens)) {
    params.sampling.max_tokens = out->max_tokens;  // the context may hold less, which is no error here
  } else if (!counting) {
    fields.fail("max_tokens", "max_tokens is missing");
  }
  fields.strings("stop_sequences", &params.sampling.stop);
  std::erase(params.sampling.stop, "");
}

}  // namespace

std::optional<ApiError> parse_message_request(std::string_view body, const RequestLimits& limits, bool counting,
                                              MessageRequest* out) {
  Json object;
  if (auto error = parse_object(body, &object)) return error;
  const OrderedJson ordered = OrderedJson::parse(body);  // it was parsed before, within limits
  FieldReader fields(object, limits.lenient);
  ChatRequest& chat = out->chat;
  for (const char* name : kNoEffect) fields.find(name);
  fields.string("model", &chat.model);
  read_sampling(fields, limits, &chat.params);
  fields.boolean("stream", &chat.params.stream);
  read_lengths(fields, counting, out);
  chat.template_json = read_thinking(fields, ordered, &chat.params);
  if (const Json* tools = fields.find("tools"); tools != nullptr) {
    if (tools->is_array()) {
      read_tools(fields, ordered["tools"], &chat.tools);
    } else {
      fields.fail("tools", "tools must be a list of tools");
    }
  }
  const Json* choice = fields.find("tool_choice");
  if (choice != nullptr && !fields.failed()) read_choice(fields, *choice, &chat.tools);
  const Json* system = fields.find("system");
  const Json* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    fields.fail("messages", "messages must be a list of at least one message");
  } else if (!fields.failed()) {
    read_messages_and_blocks(system, *messages, fields, &chat.messages);
  }
  return finish(fields, &chat.params.ignored);
}

}  // namespace fovea::server
