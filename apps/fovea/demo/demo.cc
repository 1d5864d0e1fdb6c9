// `fovea demo`, what `make demo` runs: a real server, a long document with facts drawn anew, questions over HTTP with
// streaming, answers beside the truth, and what it took. Exit code 1 when most answers are wrong.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/quote.h"
#include "base/status.h"
#include "client/api_client.h"
#include "client/child_server.h"
#include "commands.h"
#include "console.h"
#include "demo/guide.h"
#include "demo/map.h"
#include "engine_flags.h"
#include "workload/needle/document.h"

namespace fovea::app {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

struct DemoState {
  EngineFlags engine;
  std::int32_t tokens = 8600;  // fitting comes within 2 %: 8k tokens or more
  std::int32_t questions = 4;  // one after another
  std::int32_t together = 8;   // then at once
  std::int32_t facts = 64;
  std::uint64_t seed = 0;
  bool seed_given = false;
  std::string file, out = "build/demo";
  std::int32_t map_questions = 20;  // of each length on the heat map; 0: no map
  std::vector<std::string> asked;   // the user's own questions
};

struct Question {
  std::string text;
  std::string truth;          // value; empty: not known
  std::string sentence = "";  // of the document, that says it
  std::size_t offset = 0;     // of the sentence
};

struct ServerFacts {
  std::string model;
  std::int64_t max_context = 0;
  double kv_read = 0.0, kv_unshared = 0.0;
  std::int64_t pending = 0;  // tokens of prompts that are still to be read
};

Result<ServerFacts> read_server(const server::Url& address) {
  FOVEA_ASSIGN_OR_RETURN(const std::string body, get_body(address, "/server_info"));
  const json parsed = json::parse(body, nullptr, false);
  if (!parsed.is_object()) return data_loss("/server_info is no JSON object");
  return ServerFacts{parsed.value("model", ""), parsed.value("max_model_len", std::int64_t{0}),
                     parsed.value("kv_bytes_read", 0.0), parsed.value("kv_bytes_unshared", 0.0),
                     parsed.value("prompt_tokens_pending", std::int64_t{0})};
}

// Asks the server how much of a prompt is left, and shows it, until stopped.
class PromptProgress {
 public:
  // tokens: of the prompt, about; 0: nothing is shown.
  PromptProgress(const server::Url& address, std::int64_t tokens) {
    if (tokens > 0) thread_ = std::thread([this, address, tokens] { watch(address, tokens); });
  }
  ~PromptProgress() { stop(); }
  PromptProgress(const PromptProgress&) = delete;
  PromptProgress& operator=(const PromptProgress&) = delete;
  // Whether this call stopped it; the bar is gone then.
  bool stop() {
    if (stopped_.exchange(true)) return false;
    if (thread_.joinable()) thread_.join();
    return true;
  }

 private:
  void watch(const server::Url& address, std::int64_t tokens) {
    Progress progress("reading the document", tokens, "tokens");
    while (!stopped_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const auto facts = read_server(address);
      if (facts.ok() && facts->pending > 0 && !stopped_)
        progress.set(std::max<std::int64_t>(tokens - facts->pending, 0));
    }
  }

  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

std::string with_commas(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

class Demo {
 public:
  Demo(DemoState& state, const ChildServer& child, ServerFacts facts)
      : state_(state), child_(child), facts_(std::move(facts)), color_(stdout_is_terminal()) {}

  Status run();
  int exit_code() const { return judged_ == 0 || right_ * 2 > judged_ ? kExitOk : kExitFailure; }

 private:
  Status prepare();
  Status ask_in_turn();
  Status ask_together();
  Status write_pictures();
  void add_guide();
  void add_facts_to(const std::string& own_text);
  void judge(const Question& question, const ApiAnswer& answer, const std::string& figures);
  std::string document_file() const { return state_.out + "/document.txt"; }
  std::string request_body(const Question& question) const { return question_body(document_, question.text); }
  std::string paint(const char* code, const std::string& text) const {
    return color_ ? fmt::format("\033[{}m{}\033[0m", code, text) : text;
  }

  DemoState& state_;
  const ChildServer& child_;
  ServerFacts facts_;
  bool color_;
  std::string document_;
  std::int64_t document_tokens_ = 0;
  std::vector<Question> questions_;
  std::int32_t right_ = 0, judged_ = 0;
  double first_cold_ = 0.0, first_warm_ = 0.0;
};

Status Demo::prepare() {
  std::string own_text;
  if (!state_.file.empty()) FOVEA_RETURN_IF_ERROR(read_input(state_.file, &own_text));
  if (!state_.asked.empty()) {
    if (state_.file.empty()) return invalid_argument("--question asks about a text of yours: give it with --file");
    if (own_text.empty()) return invalid_argument("{} is empty: there is nothing to ask about", shorten(state_.file));
    document_ = own_text;
    for (const std::string& text : state_.asked) questions_.push_back({text, ""});
    const std::int64_t tokens = static_cast<std::int64_t>(count_tokens(child_.address(), document_));
    document_tokens_ = tokens;
    if (tokens + kQuestionRoom > facts_.max_context) {
      return out_of_range("{} has {} tokens, but the model's context holds {}", shorten(state_.file), tokens,
                          facts_.max_context);
    }
    fmt::print("Document   {}, {} tokens\n\n", state_.file, with_commas(tokens));
    return {};
  }
  if (state_.tokens + kQuestionRoom > facts_.max_context) {
    return out_of_range("--tokens {} leaves no room for an answer in a context of {}", state_.tokens,
                        facts_.max_context);
  }
  if (own_text.empty()) {
    add_guide();
  } else {
    add_facts_to(own_text);
  }
  const std::size_t tokens = count_tokens(child_.address(), document_);
  document_tokens_ = static_cast<std::int64_t>(tokens);
  if (tokens == 0 || questions_.empty()) return internal_error("the server cannot count tokens");
  FOVEA_RETURN_IF_ERROR(write_output(document_file(), document_));
  fmt::print("Document   {}, {} tokens: {}, drawn with --seed {}\n\n", document_file(),
             with_commas(static_cast<std::int64_t>(tokens)),
             own_text.empty() ? std::string("a guide to the houses of a harbour town, a fact about each")
                              : fmt::format("{} with {} facts hidden in it", state_.file, state_.facts),
             state_.seed);
  return {};
}

void Demo::add_guide() {
  const Guide guide = fit_guide(state_.seed, state_.facts, static_cast<std::size_t>(state_.tokens),
                                [this](std::string_view text) { return count_tokens(child_.address(), text); });
  document_ = guide.text;
  const auto count = static_cast<std::size_t>(state_.questions + state_.together);
  for (const GuideFact& fact : choose_facts(guide, state_.seed, count)) {
    questions_.push_back({fact.question, fact.value, fact.sentence, fact.offset});
  }
}

void Demo::add_facts_to(const std::string& own_text) {
  NeedleSpec spec;
  spec.seed = state_.seed;
  spec.facts = static_cast<std::uint32_t>(state_.facts);
  spec.questions = static_cast<std::uint32_t>(state_.questions + state_.together);
  spec.filler = NeedleFiller::kText;
  spec.text = own_text;
  const NeedleDocument made =
      fit_needle_document(spec, static_cast<std::size_t>(state_.tokens),
                          [this](std::string_view text) { return count_tokens(child_.address(), text); });
  document_ = made.text;
  for (const NeedleQuestion& question : made.questions) {
    questions_.push_back({question.question, question.value, question.fact, question.offset});
  }
}

void Demo::judge(const Question& question, const ApiAnswer& answer, const std::string& figures) {
  std::string verdict;
  if (!question.truth.empty()) {
    const bool right = holds_value(answer.text, question.truth);
    ++judged_;
    right_ += right ? 1 : 0;
    verdict = right ? paint("32", "right") : paint("31", "wrong, it is " + question.truth);
  }
  fmt::print("   {}  {}\n", verdict, paint("2", figures));
  if (question.sentence.empty()) return;
  const std::string_view text = document_;
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(question.offset), '\n');
  fmt::print("   line {:>4}: {}\n", line, quote(question.sentence));
}

Status Demo::ask_in_turn() {
  FOVEA_ASSIGN_OR_RETURN(auto client, server::HttpClient::connect(child_.address(), 600.0));
  const std::size_t count = std::min(questions_.size(), static_cast<std::size_t>(state_.questions));
  for (std::size_t i = 0; i < count; ++i) {
    const Question& question = questions_[i];
    fmt::print("Q  {}\n", question.text);
    std::fflush(stdout);
    PromptProgress progress(child_.address(), i == 0 ? document_tokens_ : 0);
    FOVEA_ASSIGN_OR_RETURN(
        const ApiAnswer answer,
        stream_request(*client, "/v1/chat/completions", request_body(question), [&progress](std::string_view piece) {
          if (progress.stop()) std::fputs("A  ", stdout);
          std::fwrite(piece.data(), 1, piece.size(), stdout);
          std::fflush(stdout);
        }));
    if (progress.stop()) std::fputs("A  ", stdout);
    (i == 0 ? first_cold_ : first_warm_) = answer.first_token_s();
    const double per_token = answer.seconds_per_token();
    judge(question, answer,
          fmt::format("first token {}, {:.0f} tokens/s, {} of {} prompt tokens cached",
                      format_seconds(answer.first_token_s()), per_token > 0.0 ? 1.0 / per_token : 0.0,
                      with_commas(answer.cached_tokens), with_commas(answer.prompt_tokens)));
  }
  return {};
}

Status Demo::ask_together() {
  const std::size_t begin = std::min(questions_.size(), static_cast<std::size_t>(state_.questions));
  const std::size_t count = questions_.size() - begin;
  if (count < 2) return {};
  fmt::print("\n{} more questions at once; attention reads the document that they share once for all\n", count);
  FOVEA_ASSIGN_OR_RETURN(const ServerFacts before, read_server(child_.address()));
  std::vector<std::string> bodies;
  for (std::size_t i = 0; i < count; ++i) bodies.push_back(request_body(questions_[begin + i]));
  const auto start = Clock::now();
  const std::vector<Result<ApiAnswer>> answers = ask_at_once(child_.address(), bodies);
  const double seconds = seconds_since(start);
  FOVEA_ASSIGN_OR_RETURN(const ServerFacts after, read_server(child_.address()));
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!answers[i].ok()) return answers[i].status();
    tokens += answers[i]->completion_tokens;
    fmt::print("Q  {}\nA  {}", questions_[begin + i].text, answers[i]->text);
    judge(questions_[begin + i], *answers[i], format_seconds(answers[i]->total_s));
  }
  const double read = after.kv_read - before.kv_read, unshared = after.kv_unshared - before.kv_unshared;
  fmt::print("\nTogether   {} tokens in {} ({:.0f} tokens/s)\n", tokens, format_seconds(seconds),
             static_cast<double>(tokens) / seconds);
  if (read > 0.0) {
    fmt::print("KV read    {}; without sharing {} ({:.1f} times as much)\n", format_bytes(read), format_bytes(unshared),
               unshared / read);
  }
  return {};
}

Status Demo::write_pictures() {
  const std::string plan = state_.out + "/plan.svg";
  FOVEA_ASSIGN_OR_RETURN(const std::string svg, get_body(child_.address(), "/plan.svg"));
  FOVEA_RETURN_IF_ERROR(write_output(plan, svg));
  fmt::print("Plan       {} (workers down, time across, one box a piece of work)\n", plan);
  if (state_.map_questions == 0 || !state_.asked.empty()) return {};
  const std::string map = state_.out + "/needle.svg";
  std::vector<std::int32_t> contexts;
  for (std::int32_t context = 1024; context < state_.tokens; context *= 2) contexts.push_back(context);
  if (contexts.empty()) return {};
  FOVEA_ASSIGN_OR_RETURN(const NeedleMap made,
                         map_needle(child_.address(), contexts, state_.map_questions, state_.seed + 1));
  FOVEA_RETURN_IF_ERROR(write_output(map, made.svg));
  fmt::print("Heat map   {} ({} of {} right, by length of the document and depth of the fact)\n", map, made.right,
             made.asked);
  return {};
}

Status Demo::run() {
  std::error_code error;
  std::filesystem::create_directories(state_.out, error);
  if (error) return not_found("cannot make the folder {}: {}", shorten(state_.out), error.message());
  FOVEA_RETURN_IF_ERROR(prepare());
  if (!state_.asked.empty()) state_.questions = static_cast<std::int32_t>(questions_.size());
  FOVEA_RETURN_IF_ERROR(ask_in_turn());
  FOVEA_RETURN_IF_ERROR(ask_together());
  FOVEA_RETURN_IF_ERROR(write_pictures());
  if (first_warm_ > 0.0) {
    fmt::print("Cache      first token after {} cold, {} with the document cached\n", format_seconds(first_cold_),
               format_seconds(first_warm_));
  }
  if (judged_ > 0) fmt::print("Answers    {} of {} right\n", right_, judged_);
  return {};
}

int run_demo(DemoState& state) {
  if (state.tokens < 256 || state.questions < 1 || state.together < 0 || state.facts < 1 || state.map_questions < 0) {
    return fail(
        invalid_argument("--tokens must be at least 256, --questions and --facts 1, --together and "
                         "--map-questions 0"));
  }
  if (!state.seed_given) state.seed = std::random_device{}() % 1000000;
  const auto begin = Clock::now();
  auto child = ChildServer::start(state.engine.arguments());
  if (!child.ok()) return fail(child.status());
  auto facts = read_server((*child)->address());
  if (!facts.ok()) return fail(facts.status());
  fmt::print("Server     {} at {}, up in {}\n", facts->model, (*child)->url(), format_seconds(seconds_since(begin)));
  Demo demo(state, **child, std::move(*facts));
  if (Status status = demo.run(); !status.ok()) return fail(status);
  return demo.exit_code();
}

}  // namespace

RunFunction declare_demo(Options& options) {
  auto state = std::make_shared<DemoState>();
  options.add("tokens", state->tokens, "Tokens of the document");
  options.add("questions", state->questions, "Questions asked one after another");
  options.add("together", state->together, "Questions then asked at once");
  options.add("facts", state->facts, "Houses of the guide, a fact about each; or facts hidden in the file");
  options.add("map-questions", state->map_questions, "Questions of each length on the heat map; 0: no map");
  options.add("seed", state->seed, "Seed of document and questions; drawn anew where not given");
  options.add("file", state->file, "A text of yours: asked about with --question, else the facts are hidden in it");
  options.add("question", state->asked, "A question about the file; may be repeated");
  options.add("out", state->out, "Folder for the pictures");
  state->engine.declare(options);
  options.examples(
      "  fovea demo\n"
      "  fovea demo --tokens 16000 --seed 7\n"
      "  fovea demo --file notes.txt\n"
      "  fovea demo --file notes.txt --question \"Who is the keeper of the northern gate?\"");
  Options* table = &options;
  return [state, table] {
    state->seed_given = table->given("seed");
    return run_demo(*state);
  };
}

}  // namespace fovea::app
