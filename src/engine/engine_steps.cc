// Steps of the engine's thread. Where a device computes by itself, a step is launched before the tokens of the one
// before are read: they stay on the device, and what they end is ended a step late, which nobody sees.
#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "device/group/process_group.h"
#include "engine/engine_core.h"

namespace fovea {
namespace {

// Who comes while a step runs waits for the step behind it too, so that steps with prompts that take longer have none;
// beside so much the host's part is little.
constexpr double kMostAheadSeconds = 0.05;

bool is_draw_of_host(const Choice& choice) { return !choice.greedy && !choice.draw.draws(); }

// Whether the token that is not read yet is its last, whatever it is.
bool ends_by_length(const Choice& choice) {
  return choice.request->request.prompt_only || choice.sampling->num_generated() + 1 >= choice.max_tokens;
}

}  // namespace

void EngineCore::prepare_masks(const Flight& flight) {
  for (const StepItem& item : flight.items) {
    if (item.sequence == nullptr || !item.sample || item.part) continue;
    auto& choice = *static_cast<Choice*>(item.sequence);
    // What is wrong is said again where the token is sampled.
    if (choice.grammar.has_value()) (void)choice.grammar->allowed();
  }
}

const char* EngineCore::why_not_ahead(const Flight& flight) {
  if (!parts_.options.overlap_steps) return "overlap_steps is off";
  if (const char* const why = runner_->why_not_ahead(); why != nullptr) return why;
  // Its copies of pages count on steps that are over when the next begins.
  if (tier_ != nullptr) return "pages are kept beyond the cache";
  if (parts_.options.speculate != "off") return "the next tokens are drafted";
  // Of this step, or of the next, whose logits must stay.
  if (flight.draws_on_host || next_draws_on_host_) return "a token is left to the host";
  // It has no prompts for that; the step behind it would have none either, for the same reason.
  if (scheduler_->measures_decodes()) return "decodes alone are measured";
  if (flight.has_prompts && scheduler_->predict(flight.work) > kMostAheadSeconds) return "the step takes long";
  std::size_t end = 0;
  for (const StepItem& item : flight.items) {
    if (item.sequence == nullptr) continue;
    const auto& choice = *static_cast<const Choice*>(item.sequence);
    if (item.scores > 0) return "the host reads logits of prompts";
    if (!item.sample) continue;
    if (is_draw_of_host(choice)) return "the host samples";
    if (!choice.request->forked && choice.request->choices.size() > 1) return "several choices begin";
    end += ends_by_length(choice) ? 1 : 0;
  }
  if (end == scheduler_->num_running() && scheduler_->num_waiting() == 0) return "all answers end";
  if (!scheduler_->make_room_for_decodes()) return "pages run out";
  return nullptr;
}

bool EngineCore::may_run_ahead(const Flight& flight) {
  const char* const why = why_not_ahead(flight);
  if (why != nullptr && why != why_not_) log_debug("steps do not run ahead: {}", why);
  why_not_ = why;
  return why == nullptr;
}

const Step& EngineCore::schedule(bool ahead) {
  const StepLog::Phase phase(step_log_.get(), "schedule");
  return scheduler_->schedule(ahead);
}

EngineCore::Flight EngineCore::flight_of(const Step& step) const {
  Flight flight{.items = step.items, .work = scheduler_->work()};
  flight.has_prompts = std::any_of(step.items.begin(), step.items.end(), [](const StepItem& item) {
    return item.count - item.drafts > 1 || item.begin < item.sequence->prompt_length;
  });
  return flight;
}

Status EngineCore::launch(const Step& step, std::span<const std::int32_t> token_rows) {
  counters_.kv_bytes_peak = std::max(counters_.kv_bytes_peak, kv_bytes_in_use());
  FOVEA_RETURN_IF_ERROR(runner_->launch(step, token_rows));
  counters_.kv_bytes_read += runner_->kv_bytes();
  counters_.step_kv_bytes = runner_->kv_bytes() + runner_->statistics_read();
  counters_.kv_bytes_unshared += runner_->kv_bytes_unshared();
  return ok_status();
}

Status EngineCore::launch_ahead(Flight& flight) {
  flight.followed = true;
  scheduler_->commit(true);
  std::map<const Sequence*, std::int32_t> row_of;  // of sequences whose token the flight gives
  std::int32_t results = 0;
  for (const StepItem& item : flight.items) {
    const std::int32_t row = std::exchange(results, results + static_cast<std::int32_t>(item.results()));
    if (item.sequence == nullptr || !item.sample) continue;
    auto& choice = *static_cast<Choice*>(item.sequence);
    if (ends_by_length(choice)) continue;  // with nothing to compute it is in no step
    scheduler_->append_token(&choice, 0);
    choice.awaits_token = true;
    row_of[&choice] = row;
  }
  const Step& step = schedule(true);
  if (step.items.empty()) return ok_status();
  flight_ = flight_of(step);
  std::vector<std::int32_t> rows;
  for (const StepItem& item : step.items) {
    const auto awaited = row_of.find(item.sequence);
    rows.insert(rows.end(), static_cast<std::size_t>(item.count), awaited == row_of.end() ? -1 : awaited->second);
  }
  FOVEA_RETURN_IF_ERROR(launch(step, rows));
  ++counters_.steps_ahead;
  return ok_status();
}

void EngineCore::run_step() {
  Flight flight;
  if (flight_.has_value()) {
    flight = *std::exchange(flight_, std::nullopt);
  } else {
    const double begin = now();
    const bool draws_on_host = std::exchange(next_draws_on_host_, false);
    make_drafts();
    const Step& step = schedule(false);
    starved_ = step.items.empty() && scheduler_->num_running() == 0 && scheduler_->is_restoring();
    if (starved_) return;
    if (step.items.empty()) {
      fail_all(internal_error("requests wait, but none can run"));
      return;
    }
    flight = flight_of(step);
    flight.begin = begin;
    flight.draws_on_host = draws_on_host;
    const bool has_part = step.items.back().part;
    // What is between two steps is part of the gap between their tokens.
    if (has_part) clock_.begin_step(std::max(step_end_, flight.begin - step.seconds / 4), step.seconds);
    const Status status = launch(step, {});
    if (has_part && status.ok()) scheduler_->end_part(runner_->chunk_is_whole());
    flight.items = step.items;  // as the part has ended
    if (!status.ok()) return fail_step(flight, status);
  }
  const Status ahead = may_run_ahead(flight) ? launch_ahead(flight) : ok_status();
  prepare_masks(flight);
  finish(flight);
  if (!ahead.ok() && flight_.has_value()) fail_step(*std::exchange(flight_, std::nullopt), ahead);
  const bool was_left = !flight.items.empty() && flight.items.back().part && !flight.items.back().whole;
  if (was_left) clock_.end_step();
  step_end_ = now();
  const double seconds = step_end_ - flight.begin;
  if (flight_.has_value()) flight_->begin = flight.begin + seconds;
  scheduler_->observe(flight.work, seconds);
  counters_.step_seconds += seconds;
}

void EngineCore::finish(const Flight& flight) {
  const Status status = runner_->collect(flight.items, !flight.followed);
  if (!status.ok()) return fail_step(flight, status);
  if (!flight.followed) scheduler_->commit();
  for (const StepItem& item : flight.items) {
    if (item.sequence == nullptr || !item.whole) continue;
    const auto& choice = *static_cast<const Choice*>(item.sequence);
    const std::int32_t read = std::min(item.begin + item.count, choice.prompt_length);
    counters_.prompt_tokens_pending -= std::max(read - choice.request->prompt_read, 0);
    choice.request->prompt_read = std::max(read, choice.request->prompt_read);
  }
  {
    const StepLog::Phase phase(step_log_.get(), "sample");
    sample_items(flight);
  }
  ++counters_.steps;
  const SelectionCounts selected = runner_->selection_counts();
  counters_.sparse_queries = selected.queries;
  counters_.sparse_pages_read = selected.pages_read;
  counters_.sparse_pages_kept = selected.pages_kept;
  counters_.sparse_prompt_pages_read = selected.prompt_pages_read;
  counters_.sparse_prompt_pages_kept = selected.prompt_pages_kept;
  counters_.sparse_records_read = selected.records_read;
  counters_.sparse_refreshes = selected.refreshes;
  counters_.sparse_rescorings = selected.rescorings;
  counters_.sparse_reuses = selected.reuses;
}

void EngineCore::fail_step(const Flight& flight, const Status& status) {
  log_error("a forward failed: {}", status.message());
  for (const StepItem& item : flight.items) {  // what it computed may be nothing, and goes to no cache
    if (!flight.followed || item.sequence == nullptr) continue;
    auto& choice = *static_cast<Choice*>(item.sequence);
    leave_flight(choice);
    if (choice.state == SequenceState::kRunning) scheduler_->take_back_to(&choice, item.begin);
    choice.awaits_token = false;
  }
  // Those that learn of it ask others next.
  if (is_lost()) return fail_all(status);
  if (flight.followed && flight.has_prompts) {
    // Its prompts are in the cache, and whoever was admitted since may go on from them.
    for (const auto& [id, request] : active_) {
      const bool runs = std::any_of(request->choices.begin(), request->choices.end(),
                                    [](const auto& choice) { return choice->state == SequenceState::kRunning; });
      if (runs && request->open > 0) end_request(*request, FinishReason::kError, status);
    }
    scheduler_->flush_cache();
    return;
  }
  for (const StepItem& item : flight.items) {
    if (item.sequence == nullptr) continue;
    ActiveRequest& request = *static_cast<Choice*>(item.sequence)->request;
    if (request.open > 0) end_request(request, FinishReason::kError, status);
  }
}

void EngineCore::take_back(Choice& choice) {
  leave_flight(choice);
  if (choice.state == SequenceState::kRunning) scheduler_->take_back(&choice);
  choice.awaits_token = false;
}

void EngineCore::leave_flight(const Choice& choice) {
  if (!flight_.has_value()) return;
  for (StepItem& item : flight_->items) {
    if (item.sequence == &choice) item.sequence = nullptr;
  }
}

void EngineCore::leave_flights() {
  flight_.reset();
  runner_->forget();
}

}  // namespace fovea
