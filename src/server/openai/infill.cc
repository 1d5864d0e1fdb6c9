#include "server/openai/infill.h"

#include <algorithm>
#include <string_view>

namespace fovea::server {
namespace {

struct Marks {
  std::string_view prefix, suffix, middle;
  bool suffix_first = false;
};
constexpr Marks kMarks[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},  // Qwen's and Gemma's models for code
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},        // StarCoder's vocabulary and its heirs
    {"[PREFIX]", "[SUFFIX]", "", true},                      // Codestral
};

bool is_token(const Engine& engine, std::string_view text) {
  if (text.empty()) return true;
  const Result<std::vector<std::int32_t>> ids = engine.encode(text, false);
  return ids.ok() && ids->size() == 1;
}

}  // namespace

std::optional<ApiError> infill(const Engine& engine, const std::string& suffix, Prompt* prompt) {
  if (!prompt->is_text) return ApiError{400, "suffix goes with a prompt that is text, not tokens", "suffix", ""};
  const auto* const marks = std::find_if(std::begin(kMarks), std::end(kMarks), [&](const Marks& one) {
    return is_token(engine, one.prefix) && is_token(engine, one.suffix) && is_token(engine, one.middle);
  });
  if (marks == std::end(kMarks)) {
    return ApiError{400, "suffix is not supported by this model: its vocabulary has no tokens for it; leave it out",
                    "suffix", "unsupported_parameter"};
  }
  const std::string before = std::string(marks->prefix) + prompt->text;
  const std::string behind = std::string(marks->suffix) + suffix;
  prompt->text = (marks->suffix_first ? behind + before : before + behind) + std::string(marks->middle);
  return std::nullopt;
}

}  // namespace fovea::server
