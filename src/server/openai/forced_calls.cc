// The grammars of calls of tools (tools.h), in each format: calls alone, and calls in a text.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/openai/json_members.h"
#include "server/openai/tools.h"

namespace fovea::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson text(std::string value) { return {{"type", "const_string"}, {"value", std::move(value)}}; }

OrderedJson sequence(OrderedJson elements) { return {{"type", "sequence"}, {"elements", std::move(elements)}}; }

OrderedJson either(OrderedJson elements) {
  if (elements.size() == 1) return elements[0];
  return {{"type", "or"}, {"elements", std::move(elements)}};
}

// Free whitespace has no end, and models lose themselves in it.
OrderedJson value_by(OrderedJson schema, const char* type = "json_schema") {
  return {{"type", type}, {"json_schema", std::move(schema)}, {"max_whitespace_cnt", 1}};
}

// One call or more, `separator` between them.
OrderedJson repeated(OrderedJson call, const std::string& separator, bool parallel) {
  if (!parallel) return call;
  const OrderedJson more = separator.empty() ? call : sequence({text(separator), call});
  return sequence({call, {{"type", "star"}, {"content", more}}});
}

// [TOOL_CALLS]name[ARGS]{...}
OrderedJson named_call(const Tool& tool, const ToolFormat& format) {
  return sequence(
      {text(std::string(format.opening) + tool.name + "[ARGS]"), value_by(OrderedJson::parse(tool.parameters))});
}

// name(a=1, b="x"): parameters in the order of the schema, those that are required first. Values are JSON, which the
// parser takes as well.
OrderedJson pythonic_call(const Tool& tool) {
  const OrderedJson schema = OrderedJson::parse(tool.parameters);
  const OrderedJson none = OrderedJson::object();
  const OrderedJson* declared = member(schema, "properties");
  const OrderedJson& properties = declared != nullptr ? *declared : none;
  const OrderedJson* needed = member(schema, "required");
  const auto parameter = [&](const std::string& name, OrderedJson value, bool first) {
    for (const char* shared : {"$defs", "definitions"}) {
      const OrderedJson* definitions = member(schema, shared);
      if (definitions != nullptr && value.is_object()) value[shared] = *definitions;
    }
    return sequence({text((first ? "" : ", ") + name + "="), value_by(std::move(value))});
  };
  OrderedJson elements = OrderedJson::array({text(tool.name + "(")});
  std::vector<std::pair<std::string, OrderedJson>> optional;
  bool first = true;
  for (const auto& [name, value] : properties.items()) {
    if (needed == nullptr || std::find(needed->begin(), needed->end(), name) == needed->end()) {
      optional.emplace_back(name, value);
      continue;
    }
    elements.push_back(parameter(name, value, first));
    first = false;
  }
  const auto others = [&](std::size_t from) {
    OrderedJson out = OrderedJson::array();
    for (std::size_t i = from; i < optional.size(); ++i) {
      out.push_back({{"type", "optional"}, {"content", parameter(optional[i].first, optional[i].second, false)}});
    }
    return out;
  };
  if (!first) {
    for (OrderedJson& other : others(0)) elements.push_back(std::move(other));
  } else if (!optional.empty()) {  // whichever comes first has no comma
    OrderedJson choices = OrderedJson::array();
    for (std::size_t i = 0; i < optional.size(); ++i) {
      OrderedJson choice = OrderedJson::array({parameter(optional[i].first, optional[i].second, true)});
      for (OrderedJson& other : others(i + 1)) choice.push_back(std::move(other));
      choices.push_back(sequence(std::move(choice)));
    }
    elements.push_back({{"type", "optional"}, {"content", either(std::move(choices))}});
  }
  elements.push_back(text(")"));
  return sequence(std::move(elements));
}

// A tag a tool, around its arguments; checked: those of strict tools hold to their schema, of others to the syntax.
OrderedJson tags_of(const ToolUse& use, const ToolFormat& format, bool checked) {
  const std::string opening = std::string(format.opening) + std::string(format.layout);
  const std::string closing = format.closing.empty() ? "" : std::string(format.layout) + std::string(format.closing);
  OrderedJson tags = OrderedJson::array();
  for (const Tool& tool : use.tools) {
    OrderedJson& tag = tags.emplace_back();
    tag["type"] = "tag";
    if (format.syntax == CallSyntax::kMarkup) {
      tag["begin"] = fmt::format("{}<function={}>\n", opening, tool.name);
      tag["content"] = checked && !tool.strict ? OrderedJson{{"type", "any_text"}}
                                               : value_by(OrderedJson::parse(tool.parameters), "qwen_xml_parameter");
      tag["end"] = "\n</function>" + closing;
      continue;
    }
    tag["begin"] = fmt::format(R"({}{{"name": "{}", "{}": )", format.listed ? "" : opening, tool.name,
                               std::string(format.arguments));
    tag["content"] = value_by(OrderedJson::parse(checked && !tool.strict ? R"({"type":"object"})" : tool.parameters));
    tag["end"] = "}" + (format.listed ? std::string() : closing);
  }
  return tags;
}

// Calls that stand in tags of their own: JSON objects and markup.
OrderedJson tagged_calls(const ToolUse& use, const ToolFormat& format) {
  OrderedJson calls = {{"type", "tags_with_separator"},
                       {"tags", tags_of(use, format, false)},
                       {"separator", std::string(format.separator)},
                       {"at_least_one", true},
                       {"stop_after_first", !use.parallel}};
  if (!format.listed) return calls;
  const std::string layout(format.layout);
  const std::string closing = format.closing.empty() ? "" : layout + std::string(format.closing);
  return sequence({text(std::string(format.opening) + layout + "["), std::move(calls), text("]" + closing)});
}

OrderedJson calls_of(const ToolUse& use, const ToolFormat& format) {
  const bool pythonic = format.syntax == CallSyntax::kPythonic;
  if (!pythonic && format.syntax != CallSyntax::kNamed) return tagged_calls(use, format);
  OrderedJson each = OrderedJson::array();
  for (const Tool& tool : use.tools) each.push_back(pythonic ? pythonic_call(tool) : named_call(tool, format));
  OrderedJson calls = repeated(either(std::move(each)), std::string(format.separator), use.parallel);
  if (!pythonic) return calls;
  return sequence({text(std::string(format.opening)), std::move(calls), text(std::string(format.closing))});
}

}  // namespace

std::string unforceable(const ToolUse& use, const ToolFormat& format) {
  if (format.syntax != CallSyntax::kPythonic) return {};  // whole schemas are checked where the grammar is compiled
  constexpr std::string_view kKnown[] = {"type",    "properties",  "required", "additionalProperties",
                                         "$defs",   "definitions", "title",    "description",
                                         "$schema", "strict",      "$id"};
  for (const Tool& tool : use.tools) {
    const OrderedJson schema = OrderedJson::parse(tool.parameters);
    for (const auto& [keyword, value] : schema.items()) {
      if (std::find(std::begin(kKnown), std::end(kKnown), keyword) == std::end(kKnown)) return keyword;
    }
  }
  return {};
}

GrammarSpec forced_calls(const ToolUse& use, const ToolFormat& format, const std::string& schema) {
  OrderedJson calls = calls_of(use, format);
  if (!schema.empty()) calls = either({value_by(OrderedJson::parse(schema)), std::move(calls)});
  const OrderedJson tag = {{"type", "structural_tag"}, {"format", std::move(calls)}};
  return {GrammarKind::kStructuralTag, tag.dump()};
}

std::optional<GrammarSpec> checked_calls(const ToolUse& use, const ToolFormat& format) {
  const bool strict = std::any_of(use.tools.begin(), use.tools.end(), [](const Tool& tool) { return tool.strict; });
  const bool tagged = format.syntax == CallSyntax::kJson || format.syntax == CallSyntax::kMarkup;
  if (!strict || !tagged || format.listed || format.opening.empty()) return std::nullopt;
  const OrderedJson tag = {{"type", "structural_tag"},
                           {"format",
                            {{"type", "triggered_tags"},
                             {"triggers", {std::string(format.opening)}},
                             {"tags", tags_of(use, format, true)},
                             {"at_least_one", false},
                             {"stop_after_first", !use.parallel}}}};
  return GrammarSpec{GrammarKind::kStructuralTag, tag.dump()};
}

}  // namespace fovea::server
