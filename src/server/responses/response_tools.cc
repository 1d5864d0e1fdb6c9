#include "server/responses/response_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/quote.h"
#include "server/openai/json_members.h"
#include "server/openai/tools.h"

namespace fovea::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kMaxTools = 512;

// Tools that a service or the client's own harness runs: offered with any request, and never called here.
bool is_of_a_service(std::string_view type) {
  static constexpr std::string_view kExact[] = {"tool_search",      "file_search",      "mcp",
                                                "code_interpreter", "local_shell",      "shell",
                                                "apply_patch",      "image_generation", "programmatic_tool_calling"};
  return std::find(std::begin(kExact), std::end(kExact), type) != std::end(kExact) || type.starts_with("web_search") ||
         type.starts_with("computer");  // dated versions
}

}  // namespace

std::string flat_name(const std::string& space, const std::string& name) {
  return space.empty() || space == "functions" ? name : space + "__" + name;
}

void ResponseToolReader::add(const std::string& where, const OrderedJson& tool, const std::string& space, bool custom) {
  const std::string name = text_of(tool, "name");
  if (!is_tool_name(name)) {
    fields_.fail(where + ".name", fmt::format("{}.name must have 1 to 64 letters, digits, _ and -", where));
    return;
  }
  const std::string flat = flat_name(space, name);
  const std::string description = text_of(tool, "description");
  OrderedJson function = {{"name", flat}};
  if (custom) {
    const OrderedJson* format = member(tool, "format");
    const bool grammar = format != nullptr && text_of(*format, "type") == "grammar";
    function = text_function(flat, description, grammar ? format : nullptr);
  } else {
    if (!description.empty()) function["description"] = description;
    function["parameters"] = OrderedJson::parse(kNoParameters);
    if (const OrderedJson* given = member(tool, "parameters"); given != nullptr) {
      if (!is_object_schema(*given)) {
        fields_.fail(where + ".parameters",
                     where + ".parameters must be the JSON schema of an object: {\"type\":\"object\",...}");
        return;
      }
      if (!given->empty()) function["parameters"] = *given;
    }
  }
  const ResponseTool known = {name, space == "functions" ? "" : space, custom};
  const auto [found, added] = names_->emplace(flat, known);
  if (!added && !(found->second == known)) {
    fields_.fail(where + ".name",
                 fmt::format("{}: there are two tools that the model would see as {}", where, quote(flat)));
    return;
  }
  const OrderedJson* strict = member(tool, "strict");
  Tool entry = {flat, function["parameters"].dump(), custom, strict != nullptr && *strict == true};
  OrderedJson shown = {{"type", "function"}, {"function", std::move(function)}};
  if (added) {
    tools_.push_back(std::move(entry));
    shown_.push_back(std::move(shown));
    return;
  }
  // Sent again with a later item: the newer one counts.
  const auto old = std::find_if(tools_.begin(), tools_.end(), [&](const Tool& other) { return other.name == flat; });
  shown_[static_cast<std::size_t>(old - tools_.begin())] = std::move(shown);
  *old = std::move(entry);
}

void ResponseToolReader::read(const std::string& where, const OrderedJson& list, const std::string& space) {
  if (!list.is_array() || list.size() > kMaxTools) {
    fields_.fail(where, fmt::format("{} must be a list of at most {} tools", where, kMaxTools));
    return;
  }
  for (std::size_t i = 0; i < list.size() && !fields_.failed(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    const std::string type = text_of(list[i], "type");
    if (type.empty()) {
      fields_.fail(at, at + " must be an object with a type");
    } else if (type == "function" || type == "custom") {
      add(at, list[i], space, type == "custom");
    } else if (type == "namespace" && space.empty()) {
      const std::string name = text_of(list[i], "name");
      const OrderedJson* inner = member(list[i], "tools");
      if (!is_tool_name(name) || inner == nullptr) {
        fields_.fail(at, at + " must have a name and a list of tools");
      } else {
        read(at + ".tools", *inner, name);
      }
    } else if (!is_of_a_service(type)) {
      fields_.refuse(at + ".type",
                     fmt::format("{}.type is {}, which is no type of a tool; expected function, custom or namespace",
                                 at, quote(type)),
                     "unsupported_parameter");
    }
  }
  if (tools_.size() > kMaxTools) fields_.fail(where, fmt::format("more than {} tools", kMaxTools));
}

void ResponseToolReader::choose(const Json& choice, ToolUse* out) {
  static constexpr const char* kForms =
      R"(tool_choice must be "none", "auto", "required", {"type":"function","name":...}, {"type":"custom","name":...} )"
      R"(or {"type":"allowed_tools","mode":...,"tools":[...]})";
  if (choice == "none") {
    *out = {};
    return;
  }
  if (choice == "auto") return;
  const std::string type = text_of(choice, "type");
  const auto flat = [](const Json& named) { return flat_name(text_of(named, "namespace"), text_of(named, "name")); };
  if (choice == "required") {
    out->required = true;
  } else if (type == "function" || type == "custom") {
    out->required = true;
    out->parallel = false;
    const std::string name = flat(choice);
    std::erase_if(out->tools, [&](const Tool& tool) { return tool.name != name; });
    if (out->tools.empty()) {
      fields_.fail("tool_choice", fmt::format("tool_choice names {}, which is not among tools", quote(name)));
    }
  } else if (type == "allowed_tools" && member(choice, "tools") != nullptr && choice["tools"].is_array()) {
    out->required = text_of(choice, "mode") == "required";
    std::vector<std::string> allowed;
    for (const Json& tool : choice["tools"]) allowed.push_back(flat(tool));
    std::erase_if(out->tools, [&](const Tool& tool) {
      return std::find(allowed.begin(), allowed.end(), tool.name) == allowed.end();
    });
  } else if (!type.empty() && type != "allowed_tools") {
    fields_.fail("tool_choice",
                 fmt::format("tool_choice asks for a tool of type {}, which this server does not have", quote(type)),
                 "unsupported_parameter");
  } else {
    fields_.fail("tool_choice", kForms);
  }
  if (out->required && out->tools.empty()) {
    fields_.fail("tool_choice", "tool_choice asks for a call, but there are no tools that this server can call");
  }
}

void ResponseToolReader::finish(const Json* choice, bool parallel, ToolUse* out) {
  out->tools = tools_;
  out->parallel = parallel;
  if (choice != nullptr && !fields_.failed()) choose(*choice, out);
  if (!out->tools.empty()) out->json = shown_.dump();
}

}  // namespace fovea::server
