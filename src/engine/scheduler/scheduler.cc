// Steps: decodes, chunks of prompts, admission, retraction.
#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace fovea {
namespace {

constexpr double kAloneSeconds = 0.03;  // of a step with a part of a chunk, once no stream is left
// Tokens: what attention and products of prompts take at a time; and of few sizes, steps come again as graphs.
constexpr std::int32_t kChunkUnit = 16;

}  // namespace

bool Scheduler::Before::operator()(const Sequence* a, const Sequence* b) const {
  if (a->priority != b->priority) return a->priority < b->priority;
  if (a->arrival != b->arrival) return a->arrival < b->arrival;
  return a->id < b->id;
}

Scheduler::Scheduler(const SchedulerOptions& options, std::vector<RadixCache::Group> groups, ReqToTokenPool& rows)
    : options_(options),
      groups_(groups),
      rows_(rows),
      cache_(std::move(groups), options.page_tokens),
      pacer_(options.target_seconds, options.stretch) {
  FOVEA_CHECK(options.max_running >= 1 && options.chunk_tokens > options.max_running);
  FOVEA_CHECK(rows.num_slots() >= options.max_running);
}

void Scheduler::add(Sequence* sequence) {
  FOVEA_CHECK(sequence->state == SequenceState::kNew && sequence->length() > 0);
  sequence->state = SequenceState::kWaiting;
  waiting_.insert(sequence);
}

void Scheduler::insert_running(Sequence* sequence) {
  sequence->state = SequenceState::kRunning;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), sequence, Before()), sequence);
}

void Scheduler::leave_step(const Sequence* sequence) {
  std::erase_if(step_.items, [&](const StepItem& item) { return item.sequence == sequence; });
}

bool Scheduler::make_room_for_decodes() {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const PageAllocator& pages = *groups_[g].pages;
    std::int32_t needed = 0;
    const auto decode = [&](const Sequence& sequence, std::int32_t position) {  // as reserve() will
      const auto row = rows_.row(sequence.slot, static_cast<std::int32_t>(g));
      const bool begins = position % options_.page_tokens == 0;
      needed += begins || pages.holders(row[position / options_.page_tokens]) > 1 ? 1 : 0;
    };
    for (const StepItem& item : step_.items) {
      if (item.sample) decode(*item.sequence, item.sequence->computed + item.count);
    }
    for (const Sequence* sequence : running_) {
      if (sequence->last_step != step_number_ && sequence->remaining() == 1) decode(*sequence, sequence->computed);
    }
    const std::int32_t missing = needed - pages.num_free();
    if (missing > 0 && (cache_.evictable(g) < missing || cache_.evict(g, missing) < missing)) return false;
  }
  return true;
}

void Scheduler::take_back(Sequence* sequence) {
  FOVEA_CHECK(sequence->state == SequenceState::kRunning && sequence->remaining() <= 1 && sequence->computed > 0);
  leave_step(sequence);
  if (sequence->remaining() == 1) sequence->tokens.pop_back();
  --sequence->computed;
}

void Scheduler::take_back_to(Sequence* sequence, std::int32_t begin) {
  leave_step(sequence);
  sequence->computed = std::min(sequence->computed, begin);
}

void Scheduler::remove(Sequence* sequence) {
  leave_step(sequence);
  if (chunk_.sequence == sequence) chunk_ = {};
  if (sequence->state == SequenceState::kRunning) {
    publish(sequence);
    release(sequence);
    running_.erase(std::find(running_.begin(), running_.end(), sequence));
  } else if (sequence->state == SequenceState::kWaiting) {
    waiting_.erase(sequence);
    end_restore(sequence);
  }
  sequence->state = SequenceState::kDone;
}

const Step& Scheduler::schedule(bool ahead) {
  step_ = {};
  work_ = {};
  ++step_number_;
  retracted_now_ = measures_decodes_ = false;
  begin_restores();
  schedule_decodes(!ahead);
  add_drafts();
  // Whoever just gave up pages would get them back at once.
  if (!retracted_now_) admit();
  schedule_prefills(!ahead);
  if (step_.items.empty() && !running_.empty() && is_restoring()) {  // they keep pages that are needed
    end_all_restores();
    schedule_prefills(!ahead);
  }
  return step_;
}

void Scheduler::push_item(Sequence* sequence, std::int32_t count) {
  sequence->last_step = step_number_;
  StepItem& item = step_.items.emplace_back();
  item.sequence = sequence;
  item.begin = sequence->computed;
  item.count = count;
  item.sample = count == sequence->remaining();
  item.scores = scores_of(*sequence, count);
  item.score_begin = std::max(item.begin, sequence->scored);
  step_.num_tokens += count;
  if (count == 1) {
    work_.add_decode(1, sequence->computed + 1);
  } else {
    work_.add_prompt(sequence->computed, count);
  }
}

std::int32_t Scheduler::scores_of(const Sequence& sequence, std::int32_t count) {
  if (sequence.scored < 0) return 0;
  const std::int32_t end = std::min(sequence.computed + count, sequence.prompt_length - 1);
  return std::max(0, end - std::max(sequence.computed, sequence.scored));
}

// Chunks that the pacer makes short end at multiples of it.
std::int32_t Scheduler::chunk_unit(const Sequence& sequence) {
  return sequence.sparse.prompt_budget ? SparseSetting::kPromptBlock : kChunkUnit;
}

std::int32_t Scheduler::room_for_prompts() {
  const std::int32_t room = options_.chunk_tokens - step_.num_tokens;
  if (work_.decode_rows == 0) return room;
  std::int32_t position = 0;
  std::int32_t unit = kChunkUnit;
  for (const Sequence* sequence : running_) {
    if (sequence->remaining() <= 1) continue;
    position = std::max(position, sequence->computed);
    unit = std::max(unit, chunk_unit(*sequence));
  }
  const std::int32_t paced = pacer_.prompt_tokens(work_, position, room);
  measures_decodes_ = paced == 0;
  if (measures_decodes_) return 0;
  return paced < room ? std::min(room, std::max(unit, paced / unit * unit)) : room;
}

void Scheduler::schedule_decodes(bool may_retract) {
  // running_ is in order and only its end is retracted, so indices before i stay.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence* sequence = running_[i];
    if (sequence->remaining() != 1) continue;
    bool ready = reserve(sequence, 1) == 1;
    while (!ready && may_retract && running_.back() != sequence) {
      retract(running_.back());
      ready = reserve(sequence, 1) == 1;
    }
    if (!ready) {
      if (!may_retract) continue;
      retract(sequence);
      break;
    }
    push_item(sequence, 1);
  }
}

std::optional<double> Scheduler::draft_token_cost() const {
  StepWork work;
  for (const Sequence* sequence : running_) {
    if (sequence->remaining() == 1) work.add_decode(1, sequence->computed + 1);
  }
  const double step = pacer_.predict(work);
  if (step <= 0.0) return std::nullopt;
  work.add_decode(1, 1);
  return pacer_.predict(work) / step - 1.0;
}

void Scheduler::add_drafts() {
  // Of pages that are left when every sequence has its next one, and of half of the step.
  std::int32_t left = std::min(options_.max_draft_tokens, (options_.chunk_tokens - step_.num_tokens) / 2);
  for (StepItem& item : step_.items) {
    const auto wanted = std::min(left, static_cast<std::int32_t>(item.sequence->draft.size()));
    if (wanted <= 0) continue;
    bool plenty = true;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const std::int64_t needed = static_cast<std::int64_t>(running_.size()) + pages_for(wanted) + 1;
      plenty = plenty && groups_[g].pages->num_free() + cache_.evictable(g) >= needed;
    }
    if (!plenty) return;
    item.drafts = std::max(0, reserve(item.sequence, 1 + wanted) - 1);
    item.count += item.drafts;
    step_.num_tokens += item.drafts;
    work_.add_decode(item.drafts, item.drafts);
    left -= item.drafts;
  }
}

void Scheduler::schedule_prefills(bool may_retract) {
  std::vector<Sequence*> prompts;
  for (Sequence* sequence : running_) {
    if (sequence->remaining() > 1) prompts.push_back(sequence);
  }
  // A sequence admitted with one token to go was not there when decodes were scheduled.
  for (Sequence* sequence : running_) {
    if (sequence->remaining() == 1 && sequence->last_step != step_number_) prompts.push_back(sequence);
  }
  if (prompts.empty() || push_part() || begin_chunk(prompts)) return;
  const std::int32_t budget = prompt_room_ = room_for_prompts();
  const bool paced = budget < options_.chunk_tokens - step_.num_tokens;
  Sequence* first = prompts.front();
  std::stable_sort(prompts.begin() + 1, prompts.end(),
                   [](const Sequence* a, const Sequence* b) { return a->remaining() < b->remaining(); });
  std::vector<std::int32_t> share(prompts.size(), 0);
  const std::int32_t kept = prompts.size() == 1 ? budget : (budget + 1) / 2;
  std::int32_t left = budget - std::min(first->remaining(), kept);
  for (std::size_t i = 1; i < prompts.size(); ++i) {
    share[i] = std::min(prompts[i]->remaining(), left);
    left -= share[i];
  }
  share[0] = std::min(first->remaining(), std::min(first->remaining(), kept) + left);
  std::int32_t scores = options_.max_scores;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Sequence* sequence = prompts[i];
    share[i] -= std::max(0, scores_of(*sequence, share[i]) - scores);
    scores -= scores_of(*sequence, share[i]);
    if (share[i] == 0 || sequence->state != SequenceState::kRunning) continue;
    if (paced && share[i] < sequence->remaining()) {
      const std::int32_t unit = chunk_unit(*sequence);
      const std::int32_t whole = (sequence->computed + share[i]) / unit * unit - sequence->computed;
      if (whole > 0) share[i] = whole;
    }
    std::int32_t room = reserve(sequence, share[i]);
    // Decodes will free pages when they end; only when nothing else can run must somebody give way.
    while (room == 0 && may_retract && step_.items.empty() && running_.back() != sequence) {
      retract(running_.back());
      room = reserve(sequence, share[i]);
    }
    if (room > 0) push_item(sequence, room);
  }
}

bool Scheduler::begin_chunk(const std::vector<Sequence*>& prompts) {
  Sequence* sequence = prompts.front();
  if (!options_.chunks_in_parts || work_.decode_rows == 0 || prompts.size() > 1 || sequence->scored >= 0 ||
      sequence->remaining() == 1) {
    return false;
  }
  const double seconds = pacer_.step_seconds(work_);
  // Decodes of later steps have the rest of the activations' memory.
  const std::int32_t most = options_.chunk_tokens - options_.max_running - options_.max_draft_tokens;
  if (std::isinf(seconds) || most < 1) return false;
  const std::int32_t unit = chunk_unit(*sequence);
  std::int32_t count = pacer_.chunk_tokens(seconds, sequence->computed, most);
  count = std::max(unit, (sequence->computed + count) / unit * unit - sequence->computed);
  count = reserve(sequence, std::min({count, most, sequence->remaining()}));
  if (count == 0) return false;
  chunk_ = {.sequence = sequence, .count = count};
  return push_part();
}

bool Scheduler::push_part() {
  if (chunk_.sequence == nullptr) return false;
  Sequence* sequence = chunk_.sequence;
  sequence->last_step = step_number_;
  prompt_room_ = chunk_.count;
  StepItem& item = step_.items.emplace_back();
  item.sequence = sequence;
  item.begin = item.score_begin = sequence->computed;
  item.count = chunk_.count;
  item.part = true;
  item.goes_on = chunk_.begun;
  item.whole = false;
  step_.seconds = work_.decode_rows == 0 ? kAloneSeconds : pacer_.step_seconds(work_);
  step_.least_seconds = pacer_.least_share() * pacer_.predict(work_);
  return true;
}

void Scheduler::end_part(bool whole) {
  StepItem& item = step_.items.back();
  FOVEA_CHECK(item.part && item.sequence == chunk_.sequence);
  item.whole = chunk_.whole = whole;
  item.sample = whole && item.count == item.sequence->remaining();
  chunk_.begun = true;
}

void Scheduler::observe(const StepWork& work, double seconds) {
  if (chunk_.sequence == nullptr || !chunk_.begun) return pacer_.observe(work, seconds);
  chunk_.seconds += std::max(seconds - pacer_.predict(work), 0.1 * seconds);
  if (!chunk_.whole) return;
  StepWork of_chunk;
  of_chunk.add_prompt(chunk_.sequence->computed - chunk_.count, chunk_.count);
  pacer_.observe_chunk(of_chunk, chunk_.seconds);
  chunk_ = {};
}

void Scheduler::admit() {
  const std::int32_t room = room_for_prompts();
  std::int32_t planned = 0;
  bool first = true;
  for (const Sequence* sequence : running_) {
    if (sequence->remaining() <= 1) continue;
    planned += first ? std::min(sequence->remaining(), (room + 1) / 2) : sequence->remaining();
    first = false;
  }
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (planned >= room || static_cast<std::int32_t>(running_.size()) >= options_.max_running) return;
    Sequence* sequence = *it;
    if (wait_for_prefix(sequence) || wait_for_restore(sequence)) {
      ++it;
      continue;
    }
    if (!admit_one(sequence)) return;  // nobody overtakes the first that does not fit
    it = waiting_.erase(it);
    planned += first ? std::min(sequence->remaining(), (room + 1) / 2) : sequence->remaining();
    first = false;
  }
}

bool Scheduler::wait_for_prefix(Sequence* sequence) {
  if (!options_.prefix_cache) return false;
  for (const Sequence* other : running_) {
    if (other->id == sequence->waits_for && other->remaining() > 1 && other->computed < sequence->waits_until) {
      return true;
    }
  }
  sequence->waits_for = 0;
  const std::span<const std::int32_t> usable = matchable(*sequence);
  std::int32_t cached = -1;
  for (const Sequence* other : running_) {
    if (other->remaining() <= 1 || other->priority > sequence->priority || other->salt != sequence->salt) continue;
    const auto end = std::mismatch(usable.begin(), usable.end(), other->tokens.begin(), other->tokens.end()).first;
    const std::int32_t common = shareable(*other, static_cast<std::int32_t>(end - usable.begin()));
    const std::int32_t same = common / options_.page_tokens * options_.page_tokens;
    if (same <= other->computed) continue;
    if (cached < 0) cached = cache_.match_length(sequence->salt, usable) * options_.page_tokens;
    if (same - cached < options_.min_wait_tokens) continue;
    sequence->waits_for = other->id;
    sequence->waits_until = same;
    return true;
  }
  return false;
}

bool Scheduler::admit_one(Sequence* sequence) {
  RadixCache::Match match;
  if (options_.prefix_cache) {
    match = cache_.match(sequence->salt, matchable(*sequence));
  } else {
    match.pages.resize(groups_.size());
  }
  cache_.lock(match.node);
  const std::int32_t start = match.num_pages * options_.page_tokens;
  for (std::size_t g = 0; g < groups_.size() && !running_.empty(); ++g) {
    std::int64_t needed = most_pages(g, sequence->length() + 1);
    if (groups_[g].window_tokens == 0) needed -= match.num_pages;
    // What prompts in progress will still take, a page soon for each that decodes, and one in a hundred to spare.
    for (const Sequence* other : running_) {
      needed += std::max(1, most_pages(g, other->length() + 1) - held_pages(g, *other));
    }
    needed += groups_[g].pages->total() / 100;
    if (groups_[g].pages->num_free() + cache_.evictable(g) < needed) {
      cache_.unlock(match.node);
      return false;
    }
  }
  sequence->slot = rows_.allocate();
  FOVEA_CHECK(sequence->slot != ReqToTokenPool::kNoSlot);
  sequence->node = match.node;
  sequence->computed = start;
  sequence->published = match.num_pages;
  sequence->dropped.assign(groups_.size(), 0);
  if (!sequence->admitted_before) {
    sequence->cached_tokens = std::min(start, sequence->prompt_length);
    sequence->admitted_at = std::chrono::steady_clock::now();
  }
  sequence->admitted_before = true;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    sequence->dropped[g] = window_begin(g, *sequence, start);
    for (std::int32_t i = 0; i < match.num_pages; ++i) {
      const std::int32_t page = i >= sink_pages(g) && i < sequence->dropped[g] ? kDummyPage : match.pages[g][i];
      if (page != kDummyPage) groups_[g].pages->ref(page);
      rows_.push(sequence->slot, static_cast<std::int32_t>(g), page);
    }
  }
  insert_running(sequence);
  return true;
}

void Scheduler::retract(Sequence* sequence) {
  FOVEA_CHECK(running_.back() == sequence);
  if (chunk_.sequence == sequence) chunk_ = {};
  publish(sequence);
  release(sequence);
  running_.pop_back();
  sequence->state = SequenceState::kWaiting;
  sequence->computed = 0;
  sequence->restored = false;
  waiting_.insert(sequence);
  retracted_now_ = true;
  ++retractions_;
}

void Scheduler::commit(bool ahead) {
  for (const StepItem& item : step_.items) {
    Sequence* sequence = item.sequence;
    if (!item.whole) continue;
    sequence->computed += item.count - item.drafts;
    // Prompts are shared as they are computed; what is generated goes to the cache at the end.
    if (item.count - item.drafts > 1 || sequence->computed <= sequence->prompt_length) publish(sequence);
    drop_left_of_window(sequence, sequence->computed - (ahead ? 1 : 0));
  }
  step_ = {};
}

bool Scheduler::fork(const Sequence& parent, Sequence* child) {
  FOVEA_CHECK(parent.state == SequenceState::kRunning && child->state == SequenceState::kNew);
  FOVEA_CHECK(child->length() >= parent.computed);
  if (static_cast<std::int32_t>(running_.size()) >= options_.max_running) return false;
  child->slot = rows_.allocate();
  FOVEA_CHECK(child->slot != ReqToTokenPool::kNoSlot);
  child->computed = parent.computed;
  child->cached_tokens = parent.cached_tokens;
  child->admitted_before = true;
  child->node = parent.node;
  child->published = parent.published;
  child->dropped = parent.dropped;
  cache_.lock(child->node);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto group = static_cast<std::int32_t>(g);
    for (std::int32_t i = 0; i < pages_for(parent.computed); ++i) {
      const std::int32_t page = rows_.row(parent.slot, group)[i];
      if (page != kDummyPage) groups_[g].pages->ref(page);
      rows_.push(child->slot, group, page);
    }
  }
  insert_running(child);
  return true;
}

}  // namespace fovea
