// Asking a server about needle documents: request bodies, many questions at once, judging, and a heat map of right
// answers by length and depth. Used by demo/demo.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/api_client.h"
#include "server/http/client.h"

namespace fovea::app {

inline constexpr std::int32_t kQuestionRoom = 96;  // tokens of the context for chat marks, question and answer

// A streamed, greedy chat request that asks one question about the document.
std::string question_body(const std::string& document, const std::string& question);
// Sends all bodies at the same time, each on a connection of its own.
std::vector<Result<ApiAnswer>> ask_at_once(const server::Url& address, const std::vector<std::string>& bodies);
// Tokens of a text by the server's own tokenizer; 0 when it cannot be asked.
std::size_t count_tokens(const server::Url& address, std::string_view text);
// The value stands in the answer as words of its own.
bool holds_value(const std::string& answer, const std::string& value);

struct NeedleMap {
  std::string svg;
  std::int64_t right = 0, asked = 0;
};

// One document a context length (tokens), `questions` about each.
Result<NeedleMap> map_needle(const server::Url& address, const std::vector<std::int32_t>& contexts,
                             std::int32_t questions, std::uint64_t seed);

}  // namespace fovea::app
