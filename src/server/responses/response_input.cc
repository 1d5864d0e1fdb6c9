#include "server/responses/response_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/quote.h"
#include "server/openai/json_members.h"
#include "server/openai/request_fields.h"
#include "server/responses/reasoning_blob.h"

namespace fovea::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Records of tools that a service ran; what came of them stands in the messages.
constexpr std::string_view kHistoryOnly[] = {
    "web_search_call",      "file_search_call", "image_generation_call", "code_interpreter_call", "mcp_list_tools",
    "mcp_approval_request", "mcp_call",         "mcp_approval_response", "computer_call",         "program",
    "computer_call_output", "program_output",
};
// Calls whose arguments stand in a member of their own, and the tool that they are calls of.
struct OwnCall {
  std::string_view type, tool;
  const char* arguments;
};
constexpr OwnCall kOwnCalls[] = {
    {"local_shell_call", "local_shell", "action"},
    {"shell_call", "shell", "action"},
    {"apply_patch_call", "apply_patch", "operation"},
    {"tool_search_call", "tool_search", "arguments"},
};
constexpr std::string_view kOutputs[] = {"function_call_output", "custom_tool_call_output", "local_shell_call_output",
                                         "shell_call_output", "apply_patch_call_output"};

bool among(std::string_view name, const auto& list) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

class InputReader {
 public:
  InputReader(FieldReader& fields, ResponseToolReader& tools, std::vector<ChatMessage>* out)
      : fields_(fields), tools_(tools), out_(out) {}

  void system(const std::string& text) {
    if (!out_->empty() && out_->back().role == "system") {
      if (!text.empty()) out_->back().content += (out_->back().content.empty() ? "" : "\n\n") + text;
      return;
    }
    add("system").content = text;
  }

  void item(const Json& item, const OrderedJson& ordered, const std::string& where) {
    where_ = where;
    const std::string role = text_of(item, "role");
    std::string type = text_of(item, "type");
    if (type.empty() && !role.empty()) type = "message";
    if (type == "message" || type == "agent_message") {
      message(item, type == "message" ? role : "user");
    } else if (type == "function_call") {
      call(item, flat_name(text_of(item, "namespace"), text_of(item, "name")), text_of(item, "arguments"));
    } else if (type == "custom_tool_call") {
      call(item, flat_name(text_of(item, "namespace"), text_of(item, "name")),
           Json{{"input", text_of(item, "input")}}.dump(-1, ' ', false, Json::error_handler_t::replace));
    } else if (type == "reasoning") {
      reasoning(item);
    } else if (type == "additional_tools") {
      tools_.read(where_ + ".tools", ordered.value("tools", OrderedJson()));
    } else if (type == "tool_search_output") {
      tools_.read(where_ + ".tools", ordered.value("tools", OrderedJson()));
      if (!text_of(item, "call_id").empty()) output(item, Json("done"));
    } else if (among(type, kOutputs)) {
      const Json* value = member(item, "output");
      output(item, value == nullptr ? Json("") : *value);
    } else if (const auto* own = std::find_if(std::begin(kOwnCalls), std::end(kOwnCalls),
                                              [&](const OwnCall& entry) { return entry.type == type; });
               own != std::end(kOwnCalls)) {
      const Json* arguments = member(item, own->arguments);
      call(item, std::string(own->tool), arguments == nullptr ? "{}" : arguments->dump());
    } else if (type == "item_reference" || type.starts_with("compaction")) {
      fields_.fail(where_ + ".type",
                   fmt::format("{} is of type {}, which needs a server that stores conversations; send the items "
                               "themselves",
                               where_, quote(type)),
                   "unsupported_parameter");
    } else if (!among(type, kHistoryOnly)) {
      fields_.fail(where_ + ".type", fmt::format("{}.type is {}, which is no type of an item", where_, quote(type)));
    }
  }

 private:
  ChatMessage& add(std::string role) {
    extra_ = OrderedJson();
    ChatMessage& message = out_->emplace_back();
    message.role = std::move(role);
    return message;
  }
  // The assistant's turn may come in several items.
  ChatMessage& assistant() {
    return !out_->empty() && out_->back().role == "assistant" ? out_->back() : add("assistant");
  }
  void save_extra() { out_->back().extra_json = extra_.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

  void message(const Json& item, const std::string& role) {
    std::string text;
    if (!read_content(item, where_, fields_, &text)) return;
    if (role == "system" || role == "developer") {
      system(text);
    } else if (role == "assistant") {
      ChatMessage& turn = assistant();
      if (!text.empty()) turn.content += (turn.content.empty() ? "" : "\n") + text;
    } else if (role == "user") {
      add("user").content = std::move(text);
    } else {
      fields_.fail(where_ + ".role",
                   fmt::format("{}.role is {}, expected user, assistant, system or developer", where_, quote(role)));
    }
  }

  void call(const Json& item, const std::string& name, const std::string& arguments) {
    std::string id = text_of(item, "call_id");
    if (id.empty()) id = text_of(item, "id");
    if (name.empty() || id.empty()) {
      fields_.fail(where_, where_ + " must have a name and a call_id");
      return;
    }
    assistant();
    // Templates write arguments themselves, as an object; what a model once wrote wrong goes on as its text.
    const Result<Json> parsed = parse_json(arguments.empty() ? "{}" : arguments, "arguments");
    const bool object = parsed.ok() && parsed->is_object();
    extra_["tool_calls"].push_back({{"id", id},
                                    {"type", "function"},
                                    {"function",
                                     {{"name", name},
                                      {"arguments", object ? OrderedJson::parse(arguments.empty() ? "{}" : arguments)
                                                           : OrderedJson(arguments)}}}});
    save_extra();
  }

  void output(const Json& item, const Json& value) {
    std::string id = text_of(item, "call_id");
    if (id.empty()) id = text_of(item, "id");
    if (id.empty()) {
      fields_.fail(where_ + ".call_id", where_ + ".call_id must name the call that this is the output of");
      return;
    }
    std::string text;
    if (value.is_object()) {
      text = value.dump();
    } else if (value.is_array() && !value.empty() && member(value[0], "stdout") != nullptr) {
      for (const Json& part : value) text += text_of(part, "stdout") + text_of(part, "stderr");  // of a shell
    } else if (!read_content(Json{{"content", value}}, where_ + ".output", fields_, &text)) {
      return;
    }
    add("tool").content = std::move(text);
    extra_["tool_call_id"] = id;
    if (const std::string name = text_of(item, "name"); !name.empty()) extra_["name"] = name;
    save_extra();
  }

  // The text itself, or what this server once sealed, or else the summary.
  void reasoning(const Json& item) {
    std::string text = joined(item, "content");
    if (text.empty()) text = open_reasoning(text_of(item, "encrypted_content")).value_or("");
    if (text.empty()) text = joined(item, "summary");
    if (text.empty()) return;
    assistant();
    const std::string before = extra_.is_object() ? extra_.value("reasoning_content", std::string()) : std::string();
    extra_["reasoning_content"] = before.empty() ? text : before + "\n" + text;
    save_extra();
  }

  static std::string joined(const Json& item, const char* key) {
    std::string text;
    const Json* parts = member(item, key);
    if (parts == nullptr || !parts->is_array()) return text;
    for (const Json& part : *parts) text += text_of(part, "text");
    return text;
  }

  FieldReader& fields_;
  ResponseToolReader& tools_;
  std::vector<ChatMessage>* out_;
  OrderedJson extra_;  // of the latest message
  std::string where_;
};

}  // namespace

void read_response_input(const Json& input, const OrderedJson& ordered, const std::string& instructions,
                         FieldReader& fields, ResponseToolReader& tools, std::vector<ChatMessage>* out) {
  InputReader reader(fields, tools, out);
  if (!instructions.empty()) reader.system(instructions);
  if (input.is_string()) {
    out->push_back({"user", input.get<std::string>()});
  } else if (!input.is_array()) {
    fields.fail("input", fmt::format("input is {}, expected a string or a list of items", json_type(input)));
  } else {
    for (std::size_t i = 0; i < input.size() && !fields.failed(); ++i) {
      reader.item(input[i], ordered[i], fmt::format("input[{}]", i));
    }
  }
  // Clients ask with nothing to see whether the server is there.
  const bool spoken = std::any_of(out->begin(), out->end(), [](const ChatMessage& m) { return m.role != "system"; });
  if (!spoken) out->push_back({"user", ""});
}

}  // namespace fovea::server
