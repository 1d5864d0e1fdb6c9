// Draft tokens of a step: what each choice's drafter and grammar propose, and which of that is worth its cost.
#include <algorithm>
#include <map>

#include "engine/engine_core.h"
#include "engine/speculate/ngram_drafter.h"

namespace fovea {
namespace {

// Bounds of the acceptance probability that a draft token must have. Below, it is not worth its cost to anybody; above,
// it is tried whatever it costs, or its cost would never be known better.
constexpr double kLeastAcceptance = 0.05;
constexpr double kSureAcceptance = 0.9;
constexpr double kUnknownCost = 0.25;  // of a draft token, over a step's, until steps have shown it

// Draft tokens that the grammar lets stand after those before them.
void keep_fitting(GrammarMatcher& grammar, DraftTree& tree) {
  DraftTree kept;
  std::vector<std::int32_t> place, path;
  for (const DraftNode& node : tree) {
    place.push_back(-1);
    const std::int32_t parent = node.parent < 0 ? -1 : place[static_cast<std::size_t>(node.parent)];
    if (node.parent >= 0 && parent < 0) continue;
    path = {node.token};
    for (std::int32_t at = parent; at >= 0; at = kept[static_cast<std::size_t>(at)].parent) {
      path.insert(path.begin(), kept[static_cast<std::size_t>(at)].token);
    }
    if (grammar.fitting(path) < path.size()) continue;
    place.back() = static_cast<std::int32_t>(kept.size());
    kept.push_back(node);
    kept.back().parent = parent;
  }
  tree = std::move(kept);
}

}  // namespace

void EngineCore::make_drafts() {
  if (parts_.options.speculate == "off") return;
  std::vector<Choice*> drafting;
  std::size_t decoding = 0;
  for (const auto& [id, request] : active_) {
    for (const auto& choice : request->choices) {
      choice->draft.clear();
      if (choice->state != SequenceState::kRunning || choice->remaining() != 1) continue;
      ++decoding;
      // The step gives a token beyond those of the draft.
      const std::int32_t most = choice->max_tokens - choice->sampling->num_generated() - 1;
      const auto forced = most > 0 ? forced_tokens(*choice) : std::vector<std::int32_t>();
      choice->draft = choice->drafter.draft(choice->tokens, most, runner_->verifies_trees(), forced);
      if (choice->grammar.has_value()) keep_fitting(*choice->grammar, choice->draft);
      if (!choice->draft.empty()) drafting.push_back(choice.get());
    }
  }
  if (!drafting.empty()) cut_drafts(drafting, decoding);
}

// The best draft tokens of all, as long as each promises more tokens for its time than the step gives without it.
void EngineCore::cut_drafts(std::span<Choice* const> choices, std::size_t decoding) {
  struct Candidate {
    Choice* choice;
    float acceptance;
  };
  std::vector<Candidate> candidates;
  for (Choice* const choice : choices) {
    for (const DraftNode& node : choice->draft) candidates.push_back({choice, node.acceptance});
  }
  // Those of a choice stand in this order already.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.acceptance > b.acceptance; });
  const double cost = scheduler_->draft_token_cost().value_or(kUnknownCost);
  auto tokens = static_cast<double>(decoding);
  double time = 1.0;
  std::map<Choice*, std::size_t> counts;
  for (const Candidate& candidate : candidates) {
    if (candidate.acceptance < std::clamp(cost * tokens / time, kLeastAcceptance, kSureAcceptance)) break;
    tokens += static_cast<double>(candidate.acceptance);
    time += cost;
    ++counts[candidate.choice];
  }
  double branches = 0.0;  // expected tokens of those that are not the best after their parents
  for (Choice* const choice : choices) {
    choice->draft.resize(counts[choice]);
    for (const DraftNode& node : choice->draft) branches += static_cast<double>(node.acceptance);
    for (const DraftNode& node : first_chain(choice->draft)) branches -= static_cast<double>(node.acceptance);
  }
  const bool chains = branches < parts_.device->tree_cost() * tokens;
  for (Choice* const choice : choices) {
    if (chains) choice->draft = first_chain(choice->draft);
    sort_by_depth(choice->draft);
  }
}

// Of the text that a grammar leaves no choice about. Another division of it into tokens is as right, so they are
// draft tokens too.
std::vector<std::int32_t> EngineCore::forced_tokens(Choice& choice) const {
  if (!choice.grammar.has_value()) return {};
  const std::string text = choice.grammar->forced();
  if (text.empty()) return {};
  auto tokens = parts_.tokenizer->encode(text, {.add_special_tokens = false, .parse_special = false});
  return tokens.ok() ? *std::move(tokens) : std::vector<std::int32_t>();
}

}  // namespace fovea
