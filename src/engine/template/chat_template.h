// Chat templates: the Jinja source that a model folder brings, rendered with a conversation into a prompt. Called by
// the server and the command line.
//
// The language is the part of Jinja2 that chat templates use (docs/chat-templates.md lists it), with the settings of
// the reference: trim_blocks and lstrip_blocks on, no escaping, loop controls, {% generation %} blocks, and the
// functions raise_exception, strftime_now, range, namespace and dict. Templates are untrusted: steps, memory, output
// and recursion are bounded, and nothing outside the context can be reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"

namespace fovea {

class ChatTemplate {
 public:
  static constexpr std::size_t kMaxSourceBytes = 1 << 20;
  struct RenderLimits {
    std::uint64_t steps = 20'000'000;  // nodes evaluated, items visited; about a second
    std::size_t output_bytes = std::size_t{64} << 20;
    std::size_t memory_bytes = std::size_t{256} << 20;  // of values made by the template
  };

  // Fails with the line and what was expected there.
  static Result<ChatTemplate> parse(std::string source);

  // Renders with the members of `context` as variables (messages, add_generation_prompt, bos_token, tools, ...).
  // Dictionaries keep the order of their keys. Fails with the line and the reason, also when the template itself calls
  // raise_exception. Thread-safe.
  Result<std::string> render(const nlohmann::ordered_json& context) const { return render(context, RenderLimits()); }
  Result<std::string> render(const nlohmann::ordered_json& context, const RenderLimits& limits) const;

 private:
  struct Tree;
  std::shared_ptr<const Tree> tree_;
};

}  // namespace fovea
