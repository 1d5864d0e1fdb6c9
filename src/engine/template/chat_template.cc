// Implementation of chat_template.h: the border where the exceptions of the parser and interpreter become a Status.
#include "engine/template/chat_template.h"

#include "base/quote.h"
#include "engine/template/interpreter.h"
#include "engine/template/parser.h"
#include "engine/tokenizer/unicode.h"

namespace fovea {

struct ChatTemplate::Tree {
  jinja::NodePtr root;
};

Result<ChatTemplate> ChatTemplate::parse(std::string source) {
  if (source.size() > kMaxSourceBytes) {
    return out_of_range("chat template of {} bytes, expected at most {}", source.size(), kMaxSourceBytes);
  }
  if (!unicode::is_valid(source)) return invalid_argument("chat template: the source is not valid UTF-8");
  try {
    auto tree = std::make_shared<Tree>();
    tree->root = jinja::parse_template(source);
    ChatTemplate made;
    made.tree_ = std::move(tree);
    return made;
  } catch (const jinja::TemplateError& error) {
    return invalid_argument("chat template, line {}: {}", error.line, shorten(error.what()));
  }
}

Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& context, const RenderLimits& limits) const {
  jinja::Limits inner;
  inner.steps = limits.steps;
  inner.output_bytes = limits.output_bytes;
  inner.memory_bytes = limits.memory_bytes;
  try {
    return jinja::Interpreter(context, inner).run(*tree_->root);
  } catch (const jinja::TemplateError& error) {
    return invalid_argument("chat template, line {}: {}", error.line, shorten(error.what()));
  }
}

}  // namespace fovea
