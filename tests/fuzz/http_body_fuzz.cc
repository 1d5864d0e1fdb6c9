// Feeds bytes to the parsers of HTTP request bodies; the first byte chooses one. What is accepted must keep the
// promises that the service relies on.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/anthropic/message_request.h"
#include "server/openai/api_request.h"
#include "server/openai/custom_input.h"
#include "server/openai/later_system.h"
#include "server/openai/markup_calls.h"
#include "server/openai/named_calls.h"
#include "server/openai/pythonic_calls.h"
#include "server/openai/reasoning.h"
#include "server/responses/response_request.h"
#include "server/sglang/generate_request.h"

namespace {

constexpr std::int32_t kVocabSize = 1000;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_error(const fovea::server::ApiError& error) {
  require(error.status >= 400 && error.status < 500 && !error.message.empty());
}

void check_params(const fovea::server::GenerationParams& params, const fovea::server::RequestLimits& limits) {
  const fovea::SamplingParams& sampling = params.sampling;
  require(params.n >= 1 && params.n <= limits.max_choices && params.best_of >= params.n);
  require(sampling.temperature >= 0.0f && sampling.top_p >= 0.0f && sampling.top_p <= 1.0f);
  require(sampling.repetition_penalty > 0.0f && sampling.max_tokens >= 0);
  for (const auto& [token, bias] : sampling.logit_bias) require(token >= 0 && token < kVocabSize && bias == bias);
}

void check_messages(std::vector<fovea::ChatMessage> messages) {
  require(!messages.empty());
  fovea::server::fold_later_system(&messages);
  require(!messages.empty());
}

// What a model wrote, cut anywhere.
// Arguments of pythonic calls are JSON, but for the end of one that was cut.
template <class Parser>
void check_calls(std::string_view text, std::size_t cut, bool json) {
  Parser parser(std::vector<std::string>{"f", "g"});
  std::vector<std::string> arguments;
  for (const auto& pieces : {parser.append(text.substr(0, cut)), parser.append(text.substr(cut)), parser.finish()}) {
    for (const fovea::server::ToolDelta& piece : pieces) {
      if (!piece.name.empty()) arguments.emplace_back();
      require(piece.call < static_cast<int>(arguments.size()));
      if (piece.call >= 0) arguments[static_cast<std::size_t>(piece.call)] += piece.arguments;
    }
  }
  require(parser.num_calls() == static_cast<int>(arguments.size()));
  for (const std::string& one : arguments) {
    const bool last = &one == &arguments.back();
    require(!json || fovea::Json::accept(one) || (last && (one.empty() || fovea::Json::accept(one + "}"))));
  }
}

void check_parsers(std::string_view text) {
  for (const std::size_t cut : {text.size() / 2, text.size()}) {
    fovea::server::CustomInput input;
    input.append(text.substr(0, cut));
    input.append(text.substr(cut));
    input.finish();
    const std::vector<fovea::server::Tool> tools = {{"f", R"({"properties":{"a":{"type":"string"}}})"}};
    fovea::server::MarkupCallParser calls(tools);
    std::size_t sent = calls.append(text.substr(0, cut)).size();
    sent += calls.append(text.substr(cut)).size();
    sent += calls.finish().size();
    require(sent <= 3 * text.size() + 1);
    check_calls<fovea::server::NamedCallParser>(text, cut, false);
    check_calls<fovea::server::PythonicCallParser>(text, cut, true);
    for (const char* name : {"think", "mistral"}) {
      fovea::server::ReasoningParser parser(*fovea::server::reasoning_format_named(name), cut == text.size());
      std::size_t size = 0;
      for (const auto& piece : {parser.append(text.substr(0, cut)), parser.append(text.substr(cut)), parser.finish()}) {
        size += piece.reasoning.size() + piece.rest.size();
      }
      require(size <= text.size());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const fovea::server::RequestLimits limits = {.vocab_size = kVocabSize};
  switch (data[0] % 9) {
    case 0: {
      fovea::server::ChatRequest request;
      if (const auto error = fovea::server::parse_chat_request(body, limits, &request)) {
        check_error(*error);
      } else {
        require(!request.messages.empty());
        check_params(request.params, limits);
      }
      break;
    }
    case 1: {
      fovea::server::CompletionRequest request;
      if (const auto error = fovea::server::parse_completion_request(body, limits, &request)) {
        check_error(*error);
      } else {
        require(!request.prompts.empty());
        for (const fovea::server::Prompt& prompt : request.prompts) {
          for (const std::int32_t token : prompt.tokens) require(token >= 0 && token < kVocabSize);
        }
        check_params(request.params, limits);
      }
      break;
    }
    case 2: {
      fovea::server::TokenizeRequest request;
      if (const auto error = fovea::server::parse_tokenize_request(body, limits, &request)) check_error(*error);
      break;
    }
    case 4: {
      fovea::server::ResponseRequest request;
      if (const auto error = fovea::server::parse_response_request(body, limits, &request)) {
        check_error(*error);
      } else {
        check_messages(request.chat.messages);
        check_params(request.chat.params, limits);
      }
      break;
    }
    case 5:
    case 6: {
      fovea::server::MessageRequest request;
      if (const auto error = fovea::server::parse_message_request(body, limits, data[0] % 9 == 6, &request)) {
        check_error(*error);
      } else {
        check_messages(request.chat.messages);
        check_params(request.chat.params, limits);
      }
      break;
    }
    case 7: check_parsers(body); break;
    case 8: {
      fovea::server::GenerateBody request;
      if (const auto error = fovea::server::parse_generate_request(body, limits, &request)) {
        check_error(*error);
      } else {
        check_params(request.params, limits);
      }
      break;
    }
    default: {
      std::vector<std::int32_t> tokens;
      std::string model;
      if (const auto error = fovea::server::parse_detokenize_request(body, kVocabSize, &tokens, &model))
        check_error(*error);
      break;
    }
  }
  return 0;
}
