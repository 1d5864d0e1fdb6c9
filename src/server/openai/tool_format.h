// How a model writes calls of tools: by family, told from its chat template. Used by the parser of calls (tool_calls.h)
// and by the grammar that forces them (tools.h).
#pragma once

#include <string_view>

namespace fovea::server {

enum class CallSyntax {
  kJson,      // a JSON object with name and arguments (tool_calls.h)
  kMarkup,    // tags, a parameter each (markup_calls.h)
  kNamed,     // the name, then the arguments as JSON (named_calls.h)
  kPythonic,  // a list of calls in Python (pythonic_calls.h)
};

// Formats of one syntax differ in what stands around a call.
struct ToolFormat {
  std::string_view name;       // as --tool-parser takes it
  std::string_view opening;    // before calls; empty: an answer that begins with { is a call
  std::string_view closing;    // behind each; empty: nothing
  bool listed = false;         // calls stand in a list
  std::string_view separator;  // between calls
  std::string_view arguments;  // the key of the arguments
  std::string_view layout;     // behind the opening and in front of the closing, as models were trained to write it
  bool short_ids = false;      // the template takes ids of nine letters and digits only
  CallSyntax syntax = CallSyntax::kJson;
};

// Null where the template takes no tools, or writes calls in none of these formats.
const ToolFormat* tool_format_of(std::string_view chat_template);
// Null where there is none of that name.
const ToolFormat* tool_format_named(std::string_view name);

}  // namespace fovea::server
