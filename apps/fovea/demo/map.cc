#include "demo/map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/status.h"
#include "console.h"
#include "workload/needle/document.h"
#include "workload/needle/score.h"

namespace fovea::app {
namespace {

using nlohmann::json;

}  // namespace

std::string question_body(const std::string& document, const std::string& question) {
  return json{{"messages", {{{"role", "user"}, {"content", document + "\n\n" + question}}}},
              {"max_tokens", 48},
              {"temperature", 0},
              {"stream", true},
              {"stream_options", {{"include_usage", true}}}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

std::vector<Result<ApiAnswer>> ask_at_once(const server::Url& address, const std::vector<std::string>& bodies) {
  std::vector<Result<ApiAnswer>> answers(bodies.size(), Result<ApiAnswer>(internal_error("not asked")));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    threads.emplace_back([&, i] {
      auto client = server::HttpClient::connect(address, 600.0);
      answers[i] = client.ok() ? stream_request(**client, "/v1/chat/completions", bodies[i])
                               : Result<ApiAnswer>(client.status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return answers;
}

std::size_t count_tokens(const server::Url& address, std::string_view text) {
  const json body = {{"prompt", std::string(text)}, {"add_special_tokens", false}};
  auto answer = post_body(address, "/tokenize", body.dump(-1, ' ', false, json::error_handler_t::replace));
  if (!answer.ok()) return 0;
  const json parsed = json::parse(*answer, nullptr, false);
  return parsed.is_object() ? parsed.value("count", std::size_t{0}) : 0;
}

bool holds_value(const std::string& answer, const std::string& value) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t at = answer.find(value); at != std::string::npos; at = answer.find(value, at + 1)) {
    const std::size_t end = at + value.size();
    if ((at == 0 || !is_word(answer[at - 1])) && (end == answer.size() || !is_word(answer[end]))) return true;
  }
  return false;
}

Result<NeedleMap> map_needle(const server::Url& address, const std::vector<std::int32_t>& contexts,
                             std::int32_t questions, std::uint64_t seed) {
  NeedleMap map;
  std::vector<NeedleScore> scores;
  Progress progress("heat map", static_cast<std::int64_t>(contexts.size()) * questions);
  for (const std::int32_t context : contexts) {
    NeedleSpec spec;
    spec.seed = seed + static_cast<std::uint64_t>(context);
    spec.facts = static_cast<std::uint32_t>(std::max(context / 64, questions));
    spec.questions = static_cast<std::uint32_t>(questions);
    const NeedleDocument document =
        fit_needle_document(spec, static_cast<std::size_t>(std::max(context - kQuestionRoom, 1)),
                            [&](std::string_view text) { return count_tokens(address, text); });
    std::vector<std::string> bodies;
    for (const NeedleQuestion& question : document.questions) {
      bodies.push_back(question_body(document.text, question.question));
    }
    if (bodies.empty()) return internal_error("a document of {} tokens holds no fact", context);
    // The first question alone reads the document; the others find it in the cache.
    std::vector<Result<ApiAnswer>> answers = ask_at_once(address, {bodies.front()});
    for (auto& answer : ask_at_once(address, {bodies.begin() + 1, bodies.end()})) answers.push_back(std::move(answer));
    NeedleScore score;
    score.context = context;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      if (!answers[i].ok()) return answers[i].status();
      const NeedleQuestion& question = document.questions[i];
      const bool right = holds_value(answers[i]->text, question.value);
      const int depth = std::clamp(static_cast<int>(question.depth * kNeedleDepths), 0, kNeedleDepths - 1);
      score.total.add(right);
      score.value.add(right);
      score.depth[static_cast<std::size_t>(depth)].add(right);
    }
    map.right += score.total.right;
    map.asked += score.total.asked;
    scores.push_back(score);
    progress.set(map.asked);
  }
  map.svg = draw_needle_heat_map(scores, "needle: right answers by length and depth");
  return map;
}

}  // namespace fovea::app
