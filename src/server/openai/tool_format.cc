#include "server/openai/tool_format.h"

namespace fovea::server {
namespace {

constexpr ToolFormat kHermes = {"hermes", "<tool_call>", "</tool_call>", false, "\n", "arguments", "\n"};
constexpr ToolFormat kLlama = {"llama3_json", "", "", false, "; ", "parameters", ""};
constexpr ToolFormat kMistral = {"mistral", "[TOOL_CALLS]", "", true, ", ", "arguments", " ", true};

constexpr ToolFormat kMarkup = {"qwen3_coder", "<tool_call>", "</tool_call>", false, "\n", "", "\n", false, true};

}  // namespace

const ToolFormat* tool_format_of(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != std::string_view::npos; };
  if (!has("tools")) return nullptr;
  // Of the same families, but their calls are no JSON objects.
  if (has("[ARGS]") || has("<arg_key>")) return nullptr;
  if (has("<function=")) return has("<tool_call>") ? &kMarkup : nullptr;
  if (has("[TOOL_CALLS]")) return &kMistral;
  if (has("<tool_call>")) return &kHermes;
  if (has("<|python_tag|>")) return &kLlama;
  return nullptr;
}

const ToolFormat* tool_format_named(std::string_view name) {
  for (const ToolFormat* format : {&kHermes, &kLlama, &kMistral, &kMarkup}) {
    if (format->name == name) return format;
  }
  return nullptr;
}

}  // namespace fovea::server
