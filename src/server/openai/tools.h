// Tools of a chat: the fields tools, tool_choice and parallel_tool_calls, calls and results in messages, and the
// grammar that forces calls. Called by the parsers of request bodies, Service and forced_calls.cc.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "fovea/engine.h"
#include "server/openai/api_request.h"
#include "server/openai/field_reader.h"
#include "server/openai/tool_format.h"

namespace fovea::server {

// JSON schema of functions that take nothing.
inline constexpr const char* kNoParameters = R"({"type":"object","properties":{}})";

// Of custom tools, which take text.
inline constexpr const char* kTextParameters =
    R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false})";

// A custom tool as the function that the model sees. grammar: of its text, an object with syntax and definition, or
// null.
nlohmann::ordered_json text_function(const std::string& name, std::string description,
                                     const nlohmann::ordered_json* grammar);

// Whether calls by this schema have an object of arguments, as far as it says: {} and references may.
bool is_object_schema(const nlohmann::ordered_json& schema);

// Letters, digits, _ and -, at most 64.
bool is_tool_name(const std::string& name);

// Errors go to fields. body: what fields reads; tools are taken from it again for the order of their keys.
void read_tools(FieldReader& fields, std::string_view body, ToolUse* out);

// Calls and reasoning in a message of the assistant, and whose result a message of the role tool is. where: of the
// message, for errors, which go to fields; false then.
bool read_tool_members(const Json& message, const std::string& where, FieldReader& fields, ChatMessage* out);

// Lets through calls of these tools in this format, and nothing else but, where there is a schema, an answer by it.
GrammarSpec forced_calls(const ToolUse& use, const ToolFormat& format, const std::string& schema = "");

// Lets through any text, and calls of these tools where calls begin; those that are strict hold to their schema. None
// where no tool is, or where text alone does not tell that a call begins.
std::optional<GrammarSpec> checked_calls(const ToolUse& use, const ToolFormat& format);

// The keyword of a tool's schema that forced calls in this format could not be held to; empty: there is none.
std::string unforceable(const ToolUse& use, const ToolFormat& format);

}  // namespace fovea::server
