#include "server/openai/tool_format.h"

namespace fovea::server {
namespace {

constexpr ToolFormat kHermes = {"hermes", "<tool_call>", "</tool_call>", false, "\n", "arguments", "\n"};
constexpr ToolFormat kLlama = {"llama3_json", "", "", false, "; ", "parameters", ""};
constexpr ToolFormat kMistral = {"mistral", "[TOOL_CALLS]", "", true, ", ", "arguments", " ", true};
constexpr ToolFormat kMistralNamed = {"mistral_v11", "[TOOL_CALLS]", "", false, "", "", "", true, CallSyntax::kNamed};
constexpr ToolFormat kMarkup = {"qwen3_coder", "<tool_call>", "</tool_call>",     false, "\n", "",
                                "\n",          false,         CallSyntax::kMarkup};
constexpr ToolFormat kPythonic = {"pythonic", "[", "]", false, ", ", "", "", false, CallSyntax::kPythonic};

}  // namespace

const ToolFormat* tool_format_of(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != std::string_view::npos; };
  if (!has("tools")) return nullptr;
  if (has("<arg_key>")) return nullptr;  // of none of these families, though it has their tags
  if (has("<function=")) return has("<tool_call>") ? &kMarkup : nullptr;
  if (has("[TOOL_CALLS]")) return has("[ARGS]") ? &kMistralNamed : &kMistral;
  if (has("<tool_call>")) return &kHermes;
  if (has("<|python_start|>") || has("[func_name1(")) return &kPythonic;
  if (has("<|python_tag|>")) return &kLlama;
  return nullptr;
}

const ToolFormat* tool_format_named(std::string_view name) {
  for (const ToolFormat* format : {&kHermes, &kLlama, &kMistral, &kMistralNamed, &kMarkup, &kPythonic}) {
    if (format->name == name) return format;
  }
  return nullptr;
}

}  // namespace fovea::server
