// From logits to events: sampling of each choice, forks, stops, text.
#include <algorithm>

#include "base/log.h"
#include "base/status.h"
#include "engine/engine_core.h"

namespace fovea {

void EngineCore::sample_items(const Flight& flight) {
  std::size_t row = 0;
  for (const StepItem& item : flight.items) {
    const std::size_t scored = row;
    const std::size_t first = row + static_cast<std::size_t>(item.scores);
    row += item.results();
    if (item.sequence == nullptr) continue;
    auto& choice = *static_cast<Choice*>(item.sequence);
    // A choice may have ended in this loop, with its request.
    if (choice.state != SequenceState::kRunning) continue;
    if (flight.followed && item.sample && runner_->best(first) == abi::kDrawOnHost) {
      take_back(choice);
      next_draws_on_host_ = true;
      continue;
    }
    if (item.scores > 0) take_scores(choice, item, scored);
    if (!item.sample) continue;
    if (choice.request->request.prompt_only) {
      counters_.cached_tokens += static_cast<std::uint64_t>(choice.cached_tokens);
      GenerationEvent event;
      event.finish = FinishReason::kLength;
      end_choice(choice, std::move(event));
      continue;
    }
    if (!choice.request->forked) fork_choices(choice, first);
    if (choice.state == SequenceState::kRunning) verify_draft(choice, first, item);
  }
}

void EngineCore::take_scores(Choice& choice, const StepItem& item, std::size_t row) {
  ActiveRequest& request = *choice.request;
  for (std::int32_t i = 0; i < item.scores; ++i, ++choice.scored) {
    const std::int32_t next = choice.tokens[static_cast<std::size_t>(item.score_begin + i + 1)];
    SampledToken score =
        sampler_.score(runner_->logits(row + static_cast<std::size_t>(i)), next, request.request.prompt_logprobs);
    request.prompt_logprobs.push_back({next, score.logprob});
    request.prompt_top_logprobs.push_back(std::move(score.top));
    request.prompt_ranks.push_back(score.rank);
  }
}

// Each token is sampled as if it were alone, from logits that are right as long as the draft tokens before it are
// accepted.
void EngineCore::verify_draft(Choice& choice, std::size_t row, const StepItem& item) {
  const std::span<const DraftNode> tree = item.draft_tree();
  counters_.draft_tokens += tree.size();
  choice.draft_tokens += item.drafts;
  sample_choice(choice, row);
  std::int32_t last = -1;
  for (std::int32_t place = 0;; ++place) {
    const std::int32_t next = find_child(tree, last, choice.tokens.back());
    if (next < 0) break;
    last = next;
    if (choice.state != SequenceState::kRunning) break;
    runner_->keep_accepted(item, next, place);
    scheduler_->accept_draft(&choice);
    ++counters_.accepted_tokens;
    // Siblings stand in the order of their acceptance probability.
    const std::int32_t parent = tree[static_cast<std::size_t>(next)].parent;
    const auto first = std::find_if(tree.begin(), tree.end(), [&](const DraftNode& n) { return n.parent == parent; });
    if (first - tree.begin() != next) ++counters_.accepted_branches;
    ++choice.accepted_tokens;
    sample_choice(choice, row + 1 + static_cast<std::size_t>(next));
  }
  choice.drafter.verified(tree, last);
}

void EngineCore::fork_choices(Choice& first, std::size_t row) {
  ActiveRequest& request = *first.request;
  request.forked = true;
  counters_.cached_tokens += static_cast<std::uint64_t>(first.cached_tokens);
  if (!first.grammar.has_value()) first.draw = first.sampling->draw_setting();
  for (std::size_t i = 1; i < request.choices.size(); ++i) {
    Choice& child = *request.choices[i];
    if (scheduler_->fork(first, &child)) {
      sample_choice(child, row);
    } else {
      scheduler_->add(&child);
    }
    if (request.open == 0) return;
  }
}

Result<SampledToken> EngineCore::sample_token(Choice& choice, std::size_t row) {
  const std::span<const float> logits = runner_->logits(row);
  if (logits.empty()) {
    SampledToken best;
    best.token = runner_->best(row);
    if (best.token < 0) return internal_error("the model's logits are not finite");
    return best;
  }
  if (!choice.grammar.has_value()) return sampler_.sample(logits, *choice.sampling);
  for (std::uint32_t attempt = 0;; ++attempt) {
    FOVEA_ASSIGN_OR_RETURN(const std::span<const std::int32_t> allowed, choice.grammar->allowed());
    FOVEA_ASSIGN_OR_RETURN(SampledToken sampled, sampler_.sample(logits, *choice.sampling, allowed, attempt));
    FOVEA_ASSIGN_OR_RETURN(const bool accepted, choice.grammar->accept(sampled.token));
    if (accepted) return sampled;
  }
}

void EngineCore::sample_choice(Choice& choice, std::size_t row) {
  auto sampled = sample_token(choice, row);
  if (!sampled.ok()) {
    end_request(*choice.request, FinishReason::kError, sampled.status());
    return;
  }
  deliver_token(choice, std::move(*sampled));
}

void EngineCore::deliver_token(Choice& choice, SampledToken sampled) {
  const SamplingParams& params = choice.sampling->params();
  const std::int32_t token = sampled.token;
  if (std::exchange(choice.awaits_token, false)) {
    choice.tokens.back() = token;
  } else {
    scheduler_->append_token(&choice, token);
  }
  choice.sampling->add_token(token);
  ++counters_.generated_tokens;
  const std::int32_t generated = choice.sampling->num_generated();
  GenerationEvent event;
  event.choice = choice.index;

  const auto holds = [token](const std::vector<std::int32_t>& tokens) {
    return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
  };
  // Where the grammar is complete there is nothing to go on with.
  const bool complete = choice.grammar.has_value() && choice.grammar->finished();
  if (((complete || !params.ignore_eos) && holds(eos_tokens())) || holds(params.stop_token_ids)) {
    event.finish = FinishReason::kStop;
    event.stop_token = token;
    event.stop_logprob = {token, sampled.logprob};
    event.stop_top_logprobs = std::move(sampled.top);
  } else {
    event.tokens.push_back(token);
    if (params.logprobs >= 0) {
      event.logprobs.push_back({token, sampled.logprob});
      event.top_logprobs.push_back(std::move(sampled.top));
    }
    if (generated >= choice.max_tokens) event.finish = FinishReason::kLength;
    if (complete) event.finish = FinishReason::kStop;
  }
  if (choice.decoder.has_value()) {
    std::string piece;
    if (event.stop_token < 0) piece = choice.decoder->append(token);
    if (event.finish != FinishReason::kNone) piece += choice.decoder->finish();
    if (generated < params.min_tokens) {
      event.text = std::move(piece);
    } else {
      StopMatcher::Output output = choice.stops->append(piece);
      event.text = std::move(output.text);
      if (output.matched) {
        event.finish = FinishReason::kStop;
        event.stop_text = std::move(output.stop);
      } else if (event.finish != FinishReason::kNone) {
        event.text += choice.stops->finish();
      }
    }
  }
  if (event.finish != FinishReason::kNone) {
    end_choice(choice, std::move(event));
  } else {
    send(*choice.request, std::move(event));
  }
}

void EngineCore::end_choice(Choice& choice, GenerationEvent event) {
  ActiveRequest& request = *choice.request;
  leave_flight(choice);
  scheduler_->remove(&choice);
  const Choice& first = *request.choices.front();
  if (first.admitted_before) {
    event.queue_seconds = std::chrono::duration<double>(first.admitted_at - request.arrival).count();
  }
  event.prompt_tokens = choice.prompt_length;
  event.cached_tokens = choice.cached_tokens;
  event.completion_tokens = choice.sampling->num_generated();
  event.draft_tokens = choice.draft_tokens;
  event.accepted_tokens = choice.accepted_tokens;
  const bool failed = event.finish == FinishReason::kError;
  const bool cancelled = event.finish == FinishReason::kCancelled;
  if (--request.open == 0) {
    ++(failed ? counters_.requests_failed : cancelled ? counters_.requests_cancelled : counters_.requests_finished);
    ended_.push_back(request.id);
  }
  send(request, std::move(event));
}

void EngineCore::send(ActiveRequest& request, GenerationEvent event) {
  if (!request.prompt_logprobs.empty()) {
    event.prompt_logprobs = std::exchange(request.prompt_logprobs, {});
    event.prompt_top_logprobs = std::exchange(request.prompt_top_logprobs, {});
    event.prompt_ranks = std::exchange(request.prompt_ranks, {});
  }
  try {
    request.callback(event);
  } catch (const std::exception& error) {
    // The caller's own failure: its request goes, the engine stays.
    log_error("the callback of request {} threw: {}", request.id, error.what());
    cancel(request.id);
  }
}

}  // namespace fovea
