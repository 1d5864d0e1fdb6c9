// Feeds bytes to the chat template parser and renders what it accepts, with limits that keep one input short.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/template/chat_template.h"

namespace {

const nlohmann::ordered_json& conversation() {
  static const nlohmann::ordered_json context = {
      {"messages",
       {{{"role", "system"}, {"content", "Be brief."}},
        {{"role", "user"}, {"content", "  What colour is the <b>lamp</b>?  "}},
        {{"role", "assistant"}, {"content", "Green."}},
        {{"role", "user"}, {"content", ""}}}},
      {"add_generation_prompt", true},
      {"bos_token", "<s>"},
      {"eos_token", "</s>"},
      {"tools", nullptr},
  };
  return context;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed = fovea::ChatTemplate::parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) {
    if (parsed.status().message().empty()) std::abort();
    return 0;
  }
  const fovea::ChatTemplate::RenderLimits limits = {
      .steps = 100'000, .output_bytes = std::size_t{1} << 20, .memory_bytes = std::size_t{16} << 20};
  const auto text = parsed->render(conversation(), limits);
  if (text.ok() && text->size() > limits.output_bytes) std::abort();
  if (!text.ok() && text.status().message().empty()) std::abort();
  return 0;
}
