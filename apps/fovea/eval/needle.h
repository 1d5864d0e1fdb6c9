// Asks an Engine questions about generated documents and counts right answers. Used by `fovea eval needle` and `fovea
// profile heads`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "eval/questions.h"
#include "fovea/engine.h"
#include "workload/needle/document.h"
#include "workload/needle/score.h"

namespace fovea::app {

struct NeedleEvalOptions {
  std::vector<std::int32_t> contexts;  // tokens of document, question and answer together, each at least 256
  std::int32_t questions = 100;        // for each context
  std::uint64_t seed = 0;
  bool logprobs = false;   // fill NeedleAnswer::logprob
  std::int32_t facts = 0;  // in a document; 0: one every 64 tokens, 8 to 512
  EngineOptions engine;    // what the engine was made with; its page selection is checked to have run
  NeedleSpec spec;         // split, filler, absent, made_up, own_words, variety, text; the rest is set here
};

struct NeedleReport {
  std::vector<NeedleScore> scores;  // one a context
  std::vector<NeedleAnswer> answers;
  std::vector<std::pair<EngineStats, EngineStats>> stats;  // one a context: before and after it
  std::vector<double> seconds;                             // one a context: prefill, questions and answers
};

// kInvalidArgument, or kOutOfRange where a context is longer than the engine's.
Status check_needle_options(const Engine& engine, const NeedleEvalOptions& options);
// Document `number` of a context, with at most so many questions.
Result<NeedleDocument> needle_document(const Engine& engine, const NeedleEvalOptions& options, std::int32_t context,
                                       std::uint64_t number, std::int32_t questions);

// Each document is read once: its first question is asked alone, and the others find it in the prefix cache and are
// asked together. Where the engine selects pages, the question's tokens and the answer's do, the
// document's do not, unless prompts select (EngineOptions::sparse_prefill): then the question's do as a part of them.
// `progress` gets (answers so far, answers in all). kOutOfRange where a context is longer than the engine's; kInternal
// where selection did not read the pages it must have read.
Result<NeedleReport> evaluate_needle(Engine& engine, const NeedleEvalOptions& options,
                                     const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace fovea::app
