#include "server/anthropic/message_blocks.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/quote.h"
#include "server/openai/json_members.h"

namespace fovea::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

// A client's accounting, another in each request: a prefix that begins with it is never found in the cache.
constexpr std::string_view kAccounting = "x-anthropic-billing-header";

class BlockReader {
 public:
  BlockReader(FieldReader& fields, std::vector<ChatMessage>* out) : fields_(fields), out_(out) {}

  void system(const Json& value) {
    std::string text;
    if (read_text(value, "system", &text) && !text.empty()) out_->push_back({"system", std::move(text)});
  }

  void message(const Json& message, const std::string& where) {
    const std::string role = text_of(message, "role");
    const Json* content = member(message, "content");
    const Json nothing = "";
    if (content == nullptr) content = &nothing;
    if (role == "user") {
      user(*content, where + ".content");
    } else if (role == "assistant") {
      assistant(*content, where + ".content");
    } else if (role == "system") {
      std::string text;
      if (read_text(*content, where + ".content", &text)) inline_system(text);
    } else {
      fields_.fail(where + ".role", where + ".role must be user, assistant or system");
    }
  }

  // What stood behind the last message of the user.
  void finish() {
    if (!pending_.empty()) out_->push_back({"user", std::exchange(pending_, {})});
    ChatMessage& last = out_->back();
    last.unfinished = last.role == "assistant" && !last.content.empty() && last.extra_json.empty();
  }

 private:
  // A string, or blocks of text.
  bool read_text(const Json& value, const std::string& where, std::string* out) {
    if (value.is_string()) {
      *out = value.get<std::string>();
      return true;
    }
    if (!value.is_array()) {
      fields_.fail(where, fmt::format("{} is {}, expected a string or a list of blocks", where, json_type(value)));
      return false;
    }
    for (const Json& block : value) {
      if (!read_block_text(block, where, out)) return false;
    }
    return true;
  }

  bool read_block_text(const Json& block, const std::string& where, std::string* out) {
    const std::string type = text_of(block, "type");
    const Json* source = member(block, "source");
    if (type == "text" && member(block, "text") != nullptr && block["text"].is_string()) {
      const std::string text = text_of(block, "text");
      if (!text.starts_with(kAccounting)) *out += (out->empty() || text.empty() ? "" : "\n") + text;
      return true;
    }
    if (type == "document" && source != nullptr && text_of(*source, "type") == "text") {
      *out += (out->empty() ? "" : "\n") + text_of(*source, "data");
      return true;
    }
    if (type == "tool_reference") return true;  // in the result of a search for tools: all tools are shown
    fields_.fail(where,
                 fmt::format("{} holds a block of type {}; this server reads blocks of text", where, quote(type)),
                 "unsupported_parameter");
    return false;
  }

  // Results stand before the text, whatever their order was: templates want them behind their calls.
  void user(const Json& content, const std::string& where) {
    std::string text;
    const std::size_t before = out_->size();
    if (!content.is_array()) {
      if (!read_text(content, where, &text)) return;
    } else {
      for (const Json& block : content) {
        if (text_of(block, "type") == "tool_result") {
          result(block, where);
        } else {
          read_block_text(block, where, &text);
        }
        if (fields_.failed()) return;
      }
    }
    const bool results = out_->size() > before;
    text = std::exchange(pending_, {}) + text;
    if (!results || !text.empty()) out_->push_back({"user", std::move(text)});
  }

  void result(const Json& block, const std::string& where) {
    ChatMessage& message = out_->emplace_back();
    message.role = "tool";
    const std::string id = text_of(block, "tool_use_id");
    const Json* content = member(block, "content");
    if (id.empty()) {
      fields_.fail(where, where + ": a tool_result must name its call as tool_use_id");
    } else if (content == nullptr || read_text(*content, where, &message.content)) {
      const Json* failed = member(block, "is_error");
      if (failed != nullptr && *failed == true) message.content = "Error: " + message.content;
      message.extra_json = OrderedJson{{"tool_call_id", id}}.dump();
    }
  }

  void assistant(const Json& content, const std::string& where) {
    ChatMessage& message = out_->emplace_back();
    message.role = "assistant";
    if (content.is_string()) {
      message.content = content.get<std::string>();
      return;
    }
    if (!content.is_array()) {
      fields_.fail(where, fmt::format("{} is {}, expected a string or a list of blocks", where, json_type(content)));
      return;
    }
    OrderedJson extra;
    for (const Json& block : content) {
      const std::string type = text_of(block, "type");
      if (type == "thinking") {
        const std::string before = extra.is_object() ? extra.value("reasoning_content", std::string()) : std::string();
        extra["reasoning_content"] = before + text_of(block, "thinking");
      } else if (type == "tool_use") {
        const Json* input = member(block, "input");
        if (text_of(block, "id").empty() || text_of(block, "name").empty() ||
            (input != nullptr && !input->is_object())) {
          fields_.fail(where, where + ": a tool_use must have an id, a name and an object as input");
          return;
        }
        const OrderedJson arguments = input == nullptr ? OrderedJson::object() : OrderedJson::parse(input->dump());
        extra["tool_calls"].push_back({{"id", text_of(block, "id")},
                                       {"type", "function"},
                                       {"function", {{"name", text_of(block, "name")}, {"arguments", arguments}}}});
      } else if (type == "redacted_thinking" || type == "server_tool_use" || type.ends_with("_tool_result")) {
        continue;  // records of what a service did; what came of it is in the text
      } else if (!read_block_text(block, where, &message.content)) {
        return;
      }
    }
    if (!extra.is_null()) message.extra_json = extra.dump();
  }

  // Into the neighbouring message of the user: never to the head, where it would change the cached prefix, and never
  // between a call and its result.
  void inline_system(const std::string& text) {
    const std::string marked = "<system>\n" + text + "\n</system>";
    if (!out_->empty() && (out_->back().role == "user" || out_->back().role == "tool")) {
      out_->back().content += "\n\n" + marked;
    } else {
      pending_ += marked + "\n\n";
    }
  }

  FieldReader& fields_;
  std::vector<ChatMessage>* out_;
  std::string pending_;
};

}  // namespace

void read_messages_and_blocks(const Json* system, const Json& messages, FieldReader& fields,
                              std::vector<ChatMessage>* out) {
  BlockReader reader(fields, out);
  if (system != nullptr) reader.system(*system);
  for (std::size_t i = 0; i < messages.size() && !fields.failed(); ++i) {
    reader.message(messages[i], fmt::format("messages[{}]", i));
  }
  if (!fields.failed()) reader.finish();
}

}  // namespace fovea::server
