// `fovea eval needle`: right answers by context length and depth, as a table, JSON and a heat map.
#include "eval/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "base/status.h"
#include "commands.h"
#include "console.h"
#include "engine_flags.h"
#include "eval/settings.h"
#include "eval/sparse.h"
#include "eval/sweep.h"

namespace fovea::app {

namespace {

// Tokens of a context kept free for the chat marks, the question and the answer.
constexpr std::int32_t kRoom = 80;
// Questions about one document, at most; more questions are about more documents.
constexpr std::int32_t kPerDocument = 100;

}  // namespace

Status check_needle_options(const Engine& engine, const NeedleEvalOptions& options) {
  if (options.contexts.empty()) return invalid_argument("no context length given");
  if (options.questions < 1) return invalid_argument("questions is {}, expected 1 or more", options.questions);
  for (std::int32_t context : options.contexts) {
    if (context < 256) return invalid_argument("context is {} tokens, expected 256 or more", context);
    if (context > engine.max_context()) {
      return out_of_range("context is {} tokens, but {} takes at most {}; lower --context or raise --max-context",
                          context, engine.model_name(), engine.max_context());
    }
  }
  return ok_status();
}

Result<NeedleDocument> needle_document(const Engine& engine, const NeedleEvalOptions& options, std::int32_t context,
                                       std::uint64_t number, std::int32_t questions) {
  NeedleSpec spec = options.spec;
  spec.facts = static_cast<std::uint32_t>(options.facts > 0 ? options.facts : std::clamp(context / 64, 8, 512));
  const std::int32_t most = std::min<std::int32_t>(kPerDocument, static_cast<std::int32_t>(spec.facts));
  spec.seed = options.seed * 1000003 + static_cast<std::uint64_t>(context) * 1009 + number;
  spec.questions = static_cast<std::uint32_t>(std::min(most, questions));
  Status failed;
  NeedleDocument document =
      fit_needle_document(spec, static_cast<std::size_t>(context - kRoom), [&](std::string_view text) {
        const auto ids = engine.encode(text, false);
        if (!ids.ok()) failed = ids.status();
        return ids.ok() ? ids->size() : std::size_t{1};
      });
  if (!failed.ok()) return failed;
  return document;
}

Result<NeedleReport> evaluate_needle(Engine& engine, const NeedleEvalOptions& options,
                                     const std::function<void(std::int64_t, std::int64_t)>& progress) {
  FOVEA_RETURN_IF_ERROR(check_needle_options(engine, options));
  NeedleReport report;
  const std::int64_t total = static_cast<std::int64_t>(options.contexts.size()) * options.questions;
  std::int64_t done = 0;
  for (std::int32_t context : options.contexts) {
    const auto begin = std::chrono::steady_clock::now();
    NeedleScore score;
    score.context = context;
    const EngineStats before = engine.stats();
    FOVEA_ASSIGN_OR_RETURN(std::optional<SparseCheck> sparse, SparseCheck::create(options.engine));
    std::int32_t left = options.questions;
    for (std::uint64_t number = 0; left > 0; ++number) {
      FOVEA_ASSIGN_OR_RETURN(const NeedleDocument document, needle_document(engine, options, context, number, left));
      AskOptions ask;
      ask.context = context;
      ask.logprobs = options.logprobs;
      ask.question_selects = sparse.has_value() && options.engine.sparse_prefill == "off";
      FOVEA_ASSIGN_OR_RETURN(std::vector<NeedleAnswer> answers,
                             ask_about(engine, document, ask, [&] { progress(++done, total); }));
      for (NeedleAnswer& answer : answers) {
        if (sparse.has_value()) sparse->add(answer.last, ask.question_selects ? answer.own_tokens : 0);
        count_answer(answer, score);
        report.answers.push_back(std::move(answer));
      }
      left -= static_cast<std::int32_t>(document.questions.size());
    }
    engine.flush_cache();  // returns between steps, so that the counts below are complete
    report.stats.push_back({before, engine.stats()});
    if (sparse.has_value()) FOVEA_RETURN_IF_ERROR(sparse->check(before, report.stats.back().second));
    report.scores.push_back(score);
    report.seconds.push_back(seconds_since(begin));
  }
  return report;
}

namespace {

struct EvalState {
  EngineFlags engine;
  NeedleEvalOptions eval;
  std::string filler = "prose";
  std::string text_file, json, svg;
  std::int32_t absent = 0, variety = 0, made_up = 250, own_words = 150;
  bool answers = false, markdown = false;
  std::string settings, maps;
  double minutes = 0.0;
};

nlohmann::json selection_json(const EngineStats& before, const EngineStats& after) {
  const std::uint64_t read = after.sparse_pages_read - before.sparse_pages_read;
  const std::uint64_t kept = after.sparse_pages_kept - before.sparse_pages_kept;
  return {{"queries", after.sparse_queries - before.sparse_queries},
          {"pages_read", read},
          {"pages_kept", kept},
          {"share_read", kept > 0 ? static_cast<double>(read) / static_cast<double>(kept) : 1.0},
          {"records_read", after.sparse_records_read - before.sparse_records_read},
          {"refreshes", after.sparse_refreshes - before.sparse_refreshes},
          {"rescorings", after.sparse_rescorings - before.sparse_rescorings},
          {"reuses", after.sparse_reuses - before.sparse_reuses}};
}

// "1" for each question of a context answered right, "0" for others: runs over the same documents compare by question.
std::string marks(const NeedleReport& report, std::int32_t context) {
  std::string text;
  for (const NeedleAnswer& answer : report.answers) {
    if (answer.context == context) text += answer.right ? '1' : '0';
  }
  return text;
}

nlohmann::json score_json(const NeedleReport& report, std::size_t index) {
  const NeedleScore& score = report.scores[index];
  const auto [low, high] = wilson_interval(score.total);
  nlohmann::json depths = nlohmann::json::array();
  for (const NeedleCount& depth : score.depth) depths.push_back({{"right", depth.right}, {"questions", depth.asked}});
  return {{"context", score.context},
          {"questions", score.total.asked},
          {"right", score.total.right},
          {"accuracy", score.total.accuracy()},
          {"low", low},
          {"high", high},
          {"value_right", score.value.right},
          {"absent", {{"right", score.absent.right}, {"questions", score.absent.asked}}},
          {"depths", std::move(depths)},
          {"answers", marks(report, score.context)},
          {"selection", selection_json(report.stats[index].first, report.stats[index].second)},
          {"seconds", report.seconds[index]}};
}

std::string table(const NeedleReport& report) {
  std::string text = fmt::format("{:>9} {:>9} {:>7} {:>8}  {:<16} {:>8}   by tenth of the document, oldest first\n",
                                 "context", "questions", "right", "share", "95 % interval", "seconds");
  for (std::size_t i = 0; i < report.scores.size(); ++i) {
    const NeedleScore& score = report.scores[i];
    const auto [low, high] = wilson_interval(score.total);
    text += fmt::format("{:>9} {:>9} {:>7} {:>8.3f}  [{:.3f}, {:.3f}]   {:>8.1f}  ", score.context, score.total.asked,
                        score.total.right, score.total.accuracy(), low, high, report.seconds[i]);
    for (const NeedleCount& depth : score.depth)
      text += depth.asked == 0 ? "    -" : fmt::format(" {:.2f}", depth.accuracy());
    text += '\n';
    const auto& [before, after] = report.stats[i];
    const std::uint64_t kept = after.sparse_pages_kept - before.sparse_pages_kept;
    if (kept > 0) {
      text += fmt::format(
          "{:>9} {} of {} pages read by queries that select ({:.1f} %), {} scans, {} rescorings\n", "",
          after.sparse_pages_read - before.sparse_pages_read, kept,
          100.0 * static_cast<double>(after.sparse_pages_read - before.sparse_pages_read) / static_cast<double>(kept),
          after.sparse_refreshes - before.sparse_refreshes, after.sparse_rescorings - before.sparse_rescorings);
    }
  }
  return text;
}

// Many settings instead of the one that the engine's own flags say.
Status run_settings(const EvalState& s) {
  if (!s.svg.empty()) return invalid_argument("--settings writes a map a setting: give --maps FOLDER instead of --svg");
  if (s.engine.options.sparse != "off") return invalid_argument("--settings names the policies: leave --sparse out");
  if (!(s.minutes >= 0.0)) return invalid_argument("minutes is {}, expected 0 or more", s.minutes);
  if (s.engine.starts_ranks()) return invalid_argument("--settings makes an engine after the other: leave --tp out");
  FOVEA_ASSIGN_OR_RETURN(const std::vector<EvalSetting> settings, parse_eval_settings(s.settings, s.engine.resolved()));
  if (!s.maps.empty()) FOVEA_RETURN_IF_ERROR(make_maps_folder(s.maps));
  Result<std::vector<SweepRow>> rows = [&] {
    Progress bar("answers", static_cast<std::int64_t>(settings.size() * s.eval.contexts.size()) * s.eval.questions);
    return sweep_needle(settings, s.eval, s.minutes, [&](std::int64_t done, std::int64_t) { bar.set(done); });
  }();
  if (!rows.ok()) return rows.status();
  if (s.json != "-") fmt::print("{}", sweep_table(*rows, s.markdown));
  if (!s.json.empty()) FOVEA_RETURN_IF_ERROR(write_output(s.json, sweep_json(*rows)));
  return s.maps.empty() ? ok_status() : write_sweep_maps(*rows, s.maps);
}

Status run_eval(EvalState& s) {
  if (!parse_needle_filler(s.filler, s.eval.spec.filler))
    return invalid_argument("no filler is named {}", quote(s.filler));
  for (std::int32_t share : {s.absent, s.variety, s.made_up, s.own_words}) {
    if (share < 0 || share > 1000) return invalid_argument("shares are per mille, 0 to 1000; got {}", share);
  }
  if (s.eval.facts < 0) return invalid_argument("facts is {}, expected 0 or more", s.eval.facts);
  if (s.json == "-" && s.svg == "-") return invalid_argument("--json and --svg cannot both go to stdout");
  if ((s.filler == "text") != !s.text_file.empty()) {
    return invalid_argument("--filler text and --text FILE go together: give both or neither");
  }
  FOVEA_RETURN_IF_ERROR(check_output(s.json));
  FOVEA_RETURN_IF_ERROR(check_output(s.svg));
  std::string text;
  if (!s.text_file.empty()) {
    if (Status status = read_input(s.text_file, &text); !status.ok()) return status;
  }
  NeedleSpec& spec = s.eval.spec;
  spec.absent = static_cast<std::uint32_t>(s.absent);
  spec.variety = static_cast<std::uint32_t>(s.variety);
  spec.made_up = static_cast<std::uint32_t>(s.made_up);
  spec.own_words = static_cast<std::uint32_t>(s.own_words);
  spec.text = text;
  if (!s.settings.empty()) return run_settings(s);
  if (!s.maps.empty() || s.markdown || s.minutes != 0.0) {
    return invalid_argument("--maps, --markdown and --minutes go with --settings");
  }
  FOVEA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, s.engine.create());
  s.eval.engine = s.engine.options;
  Result<NeedleReport> report = [&] {
    Progress bar("answers", static_cast<std::int64_t>(s.eval.contexts.size()) * s.eval.questions);
    return evaluate_needle(*engine, s.eval, [&](std::int64_t done, std::int64_t) { bar.set(done); });
  }();
  if (!report.ok()) return report.status();
  if (s.json != "-" && s.svg != "-") fmt::print("{}", table(*report));
  if (s.answers && s.json != "-" && s.svg != "-") {
    for (const NeedleAnswer& answer : report->answers) {
      if (!answer.right)
        fmt::print("\nfact      {}\nquestion  {}\nexpected  {}\nanswer    {}\n", answer.question.fact,
                   answer.question.question, answer.question.answer, answer.answer);
    }
  }
  if (!s.svg.empty()) {
    const std::string title = fmt::format("{}: right answers by depth and length", engine->model_name());
    if (Status status = write_output(s.svg, draw_needle_heat_map(report->scores, title)); !status.ok()) return status;
  }
  if (!s.json.empty()) {
    nlohmann::json out;
    if (report->scores.size() == 1) {
      out = score_json(*report, 0);
    } else {
      out = {{"rows", nlohmann::json::array()}};
      for (std::size_t i = 0; i < report->scores.size(); ++i) out["rows"].push_back(score_json(*report, i));
    }
    if (Status status = write_output(s.json, out.dump() + "\n"); !status.ok()) return status;
  }
  return ok_status();
}

}  // namespace

RunFunction declare_eval_needle(Options& options) {
  auto state = std::make_shared<EvalState>();
  state->eval.contexts = {8192};
  options.add("context", state->eval.contexts, "Tokens of document and question; several make the map's columns");
  options.add("questions", state->eval.questions, "Questions for each context length");
  options.add("seed", state->eval.seed, "Other seed, other documents");
  options.add("facts", state->eval.facts, "Facts in a document; 0: one every 64 tokens, 8 to 512");
  options.add_choice("filler", state->filler, {"templates", "prose", "salad", "junk", "text", "mixed"},
                     "What stands between the facts");
  options.add("text", state->text_file, "Your own text as filler, with --filler text");
  options.add("variety", state->variety, "Per mille of facts and of questions worded in other than the plain way");
  options.add("absent", state->absent, "Per mille of questions about facts that are not in the document");
  options.add("made-up", state->made_up, "Per mille of key words that are made up");
  options.add("own-words", state->own_words, "Per mille of key words taken from the filler");
  options.add_flag("answers", state->answers, "Print the wrong answers");
  options.add("json", state->json, "Write the figures as JSON here; - is stdout");
  options.add("svg", state->svg, "Draw the heat map here; - is stdout");
  options.add("settings", state->settings,
              "Ask the same questions under each of these: names joined by commas, parts of one by +, as "
              "dense,fovea:T/8,quest+every:4,int8+streaming; or all");
  options.add("maps", state->maps, "With --settings: a folder for a heat map of each, and one of all");
  options.add_flag("markdown", state->markdown, "With --settings: print tables as Markdown");
  options.add("minutes", state->minutes, "With --settings: begin nothing after so long; 0: no limit");
  state->engine.options.itl_target_ms = 0.0f;  // nobody reads along, and figures do not depend on the clock
  state->engine.declare(options);
  options.examples(
      "  fovea eval needle --context 16384 --questions 100\n"
      "  fovea eval needle --context 1024,4096,16384 --questions 200 --svg needle.svg\n"
      "  fovea eval needle --context 8192 --variety 300 --absent 100 --answers\n"
      "  fovea eval needle --context 8192 --sparse auto --kv-budget T/8\n"
      "  fovea eval needle --context 8192,16384 --settings all --kv-budget T/8 --maps maps\n"
      "  fovea eval needle --context 4096 --filler text --text README.md --json -");
  return [state] {
    const Status status = run_eval(*state);
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace fovea::app
