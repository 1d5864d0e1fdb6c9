// See eval/sweep.h.
#include "eval/sweep.h"

#include <chrono>
#include <map>
#include <memory>
#include <thread>

#include "base/status.h"
#include "console.h"
#include "eval/sparse.h"

namespace fovea::app {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t ended(const EngineStats& stats) {
  return stats.requests_finished + stats.requests_cancelled + stats.requests_failed;
}

// Callbacks come before the counts of their step: waits for those of `requests` more than `before` had.
EngineStats stats_after(const Engine& engine, const EngineStats& before, std::size_t requests) {
  while (true) {
    EngineStats stats = engine.stats();
    if (ended(stats) >= ended(before) + requests || !stats.healthy) return stats;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Reads the document into the prefix cache, as far as all of its questions share it.
Status read_document(Engine& engine, const NeedleDocument& document, const EngineOptions& setting) {
  GenerateRequest request;
  FOVEA_ASSIGN_OR_RETURN(request.prompt, engine.encode_chat({{"user", document.text}}, true, ""));
  const std::string question = "\n\n" + document.questions.front().question;
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::int32_t> asked,
                         engine.encode_chat({{"user", document.text + question}}, true, ""));
  std::size_t common = 0;
  while (common + 1 < std::min(request.prompt.size(), asked.size()) && request.prompt[common] == asked[common])
    ++common;
  request.prompt.resize(std::max<std::size_t>(common, 1));
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = 1;
  // Documents that select their pages are found by requests that select alike.
  const bool selects = setting.sparse_prefill != "off";
  request.sparse = selects ? setting.sparse : "off";
  if (selects) request.kv_budget = setting.kv_budget;
  const auto tokens = static_cast<std::int32_t>(request.prompt.size());
  const EngineStats before = engine.stats();
  const Result<RequestId> id = engine.submit(std::move(request), [](const GenerationEvent&) {});
  if (!id.ok()) return id.status();
  const EngineStats after = stats_after(engine, before, 1);
  if (!selects) return ok_status();
  FOVEA_ASSIGN_OR_RETURN(const std::uint64_t expected, prompt_pages_expected(setting, tokens));
  const std::uint64_t read = after.sparse_prompt_pages_read - before.sparse_prompt_pages_read;
  const bool fewer = (*find_select_policy(setting.sparse))->mass > 0.0f;
  if (read == expected * after.sparse_heads) return ok_status();
  if (fewer && read > 0 && read < expected * after.sparse_heads) return ok_status();
  return internal_error("a document of {} tokens read {} pages; expected {}", tokens, read,
                        expected * after.sparse_heads);
}

class Sweep {
 public:
  Sweep(const std::vector<EvalSetting>& settings, const NeedleEvalOptions& options, double minutes,
        const std::function<void(std::int64_t, std::int64_t)>& progress)
      : options_(options), minutes_(minutes), progress_(progress) {
    for (const EvalSetting& setting : settings) rows_.push_back({setting, 0, {}});
    for (SweepRow& row : rows_) {
      row.cells.resize(options.contexts.size());
      for (std::size_t c = 0; c < row.cells.size(); ++c) row.cells[c].score.context = options.contexts[c];
    }
    total_ = static_cast<std::int64_t>(settings.size() * options.contexts.size()) * options.questions;
  }

  Result<std::vector<SweepRow>> run() {
    std::vector<EvalSetting> settings;
    for (const SweepRow& row : rows_) settings.push_back(row.setting);
    for (const EvalGroup& group : group_eval_settings(settings)) FOVEA_RETURN_IF_ERROR(run_group(group));
    return std::move(rows_);
  }

 private:
  Status run_group(const EvalGroup& group) {
    if (out_of_time()) return ok_status();
    FOVEA_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(group.engine));
    FOVEA_RETURN_IF_ERROR(check_needle_options(*engine, options_));
    for (std::size_t c = 0; c < options_.contexts.size(); ++c) {
      std::int32_t left = options_.questions;
      for (std::uint64_t number = 0; left > 0 && !out_of_time(); ++number) {
        FOVEA_ASSIGN_OR_RETURN(const NeedleDocument* document, document_of(*engine, c, number, left));
        left -= static_cast<std::int32_t>(document->questions.size());
        const Clock::time_point begin = Clock::now();
        FOVEA_RETURN_IF_ERROR(read_document(*engine, *document, group.engine));
        const double seconds = seconds_since(begin);
        for (const std::size_t index : group.settings) {
          rows_[index].cells[c].read_seconds += seconds;
          FOVEA_RETURN_IF_ERROR(ask(*engine, *document, rows_[index], c));
        }
        engine->flush_cache();
      }
    }
    return ok_status();
  }

  bool out_of_time() const { return minutes_ > 0.0 && seconds_since(begin_) > 60.0 * minutes_; }

  // Made once, for all engines: they have the same tokenizer.
  Result<const NeedleDocument*> document_of(const Engine& engine, std::size_t c, std::uint64_t number,
                                            std::int32_t questions) {
    const auto found = documents_.find({c, number});
    if (found != documents_.end()) return &found->second;
    FOVEA_ASSIGN_OR_RETURN(NeedleDocument document,
                           needle_document(engine, options_, options_.contexts[c], number, questions));
    return &documents_.emplace(std::pair(c, number), std::move(document)).first->second;
  }

  Status ask(Engine& engine, const NeedleDocument& document, SweepRow& row, std::size_t c) {
    SweepCell& cell = row.cells[c];
    FOVEA_ASSIGN_OR_RETURN(std::optional<SparseCheck> check, SparseCheck::create(row.setting.engine));
    AskOptions ask;
    ask.context = options_.contexts[c];
    ask.sparse = row.setting.engine.sparse;
    // Where prompts select in blocks, questions are a part of them.
    ask.question_selects = check.has_value() && row.setting.engine.sparse_prefill == "off";
    if (check.has_value()) ask.kv_budget = row.setting.engine.kv_budget;
    const EngineStats before = engine.stats();
    const Clock::time_point begin = Clock::now();
    FOVEA_ASSIGN_OR_RETURN(const std::vector<NeedleAnswer> answers,
                           ask_about(engine, document, ask, [&] { progress_(++done_, total_); }));
    cell.answer_seconds += seconds_since(begin);
    const EngineStats after = stats_after(engine, before, answers.size());
    for (const NeedleAnswer& answer : answers) {
      if (check.has_value()) check->add(answer.last, ask.question_selects ? answer.own_tokens : 0);
      count_answer(answer, cell.score);
      cell.marks += answer.right ? '1' : '0';
      cell.answer_tokens += answer.last.completion_tokens;
    }
    if (!check.has_value()) return ok_status();
    FOVEA_RETURN_IF_ERROR(check->check(before, after));
    const bool has_stat = check->policy().stat != abi::StatKind::kNone;
    row.stat_bytes = has_stat ? after.sparse_record_bytes / abi::kSubPageTokens : 0;
    cell.pages_read += after.sparse_pages_read - before.sparse_pages_read;
    cell.pages_kept += after.sparse_pages_kept - before.sparse_pages_kept;
    cell.pages_expected += check->pages_expected() * after.sparse_heads;
    cell.scans += after.sparse_refreshes - before.sparse_refreshes;
    cell.rescorings += after.sparse_rescorings - before.sparse_rescorings;
    return ok_status();
  }

  const NeedleEvalOptions& options_;
  double minutes_;
  const std::function<void(std::int64_t, std::int64_t)>& progress_;
  Clock::time_point begin_ = Clock::now();
  std::vector<SweepRow> rows_;
  std::map<std::pair<std::size_t, std::uint64_t>, NeedleDocument> documents_;
  std::int64_t done_ = 0, total_ = 0;
};

}  // namespace

Result<std::vector<SweepRow>> sweep_needle(const std::vector<EvalSetting>& settings, const NeedleEvalOptions& options,
                                           double minutes,
                                           const std::function<void(std::int64_t, std::int64_t)>& progress) {
  return Sweep(settings, options, minutes, progress).run();
}

}  // namespace fovea::app
