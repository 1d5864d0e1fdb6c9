// Scheduler: decides which tokens of which sequences the next forward computes, and keeps their pages. Continuous
// batching: decodes first, then chunks of prompts, under one token budget. Pure logic over page numbers; the engine
// runs what it says. Single-threaded.
//
// Order is priority, then arrival. Among prompts in progress the first gets at least half of what decodes leave, the
// rest goes to the others, shortest first: a long prompt cannot hold up short ones, nor they it. When pages run out,
// the last in order gives up its pages (they go to the cache) and waits; its generated tokens stay. A waiting sequence
// whose prefix is being computed by another one waits for it instead of computing it again.
//
// Beside decodes, chunks are as long as the StepPacer says, which is told how long each step took. Short chunks cost
// more than long ones, since each reads all that is before it, and none takes exactly what was foretold; so where a
// forward can be left (StepClock) and there is one prompt in progress, a longer chunk is computed over several steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "engine/cache/radix_cache.h"
#include "engine/cache/req_to_token_pool.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_pacer.h"
#include "fovea/status.h"

namespace fovea {

class KvTier;

struct SchedulerOptions {
  std::int32_t max_running = 64;
  std::int32_t chunk_tokens = 1024;  // most tokens a step holds; more than max_running
  std::int32_t page_tokens = 16;
  bool prefix_cache = true;
  // Fewest tokens of a common prefix that make it worth waiting until another sequence has computed it.
  std::int32_t min_wait_tokens = 64;
  std::int32_t max_draft_tokens = 0;  // that a step verifies, of all sequences
  std::int32_t max_scores = 128;      // logits of prompts' tokens that a step gives, of all sequences
  KvTier* tier = nullptr;             // where pages of prompts come back from, or null
  bool chunks_in_parts = false;       // the forward of a chunk may be left and taken up again
  double target_seconds = 0.0;  // of a step that holds decodes and chunks of prompts (StepPacer); 0: chunks are full
  double stretch = 0.0;         // of such a step: times what decodes alone take, at most; 0: no such limit
};

// Tokens [begin, begin + count) of a sequence, the last `drafts` of them the first tokens of its draft, whose KV stands
// in their order whatever branch they are on; when `sample`, the last of its own gives the next token, and each draft
// token the one after it.
struct StepItem {
  Sequence* sequence = nullptr;
  std::int32_t begin = 0;
  std::int32_t count = 0;
  bool sample = false;
  std::int32_t drafts = 0;
  // Tokens of the prompt, from this one on, whose logits are wanted too.
  std::int32_t score_begin = 0;
  std::int32_t scores = 0;
  // Of a chunk that may be left, the last item: whether it was. What is not whole gives no results and is not
  // committed.
  bool part = false;
  bool goes_on = false;  // with what was left
  bool whole = true;     // Scheduler::end_part()

  // Of the sequence's draft, the tokens that it verifies.
  std::span<const DraftNode> draft_tree() const {
    return std::span<const DraftNode>(sequence->draft).first(static_cast<std::size_t>(drafts));
  }
  // Rows of logits that it gives: for scores, for the next token and for one behind each draft token.
  std::size_t results() const { return static_cast<std::size_t>(scores + (sample ? 1 + drafts : 0)); }
};

struct PageCopy {
  std::size_t group = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
};

struct Step {
  std::vector<PageCopy> copies;  // in order, before the forward
  std::vector<StepItem> items;   // decodes first
  std::int32_t num_tokens = 0;   // of one forward: without those of a chunk that may be left
  // Of a step with such a chunk: how long it may take, and what the chunk gets in any case.
  double seconds = 0.0, least_seconds = 0.0;
};

class Scheduler {
 public:
  // groups' allocators and the pool must outlive it; the pool has at least max_running slots.
  Scheduler(const SchedulerOptions& options, std::vector<RadixCache::Group> groups, ReqToTokenPool& rows);

  // Queues a new sequence of at least one token; it must stay until remove().
  void add(Sequence* sequence);
  // Makes child (same tokens as the parent, new) run beside a running parent on the same pages. False when there is no
  // slot: add() it then.
  bool fork(const Sequence& parent, Sequence* child);
  // Takes a sequence out, finished or not; what it computed goes to the cache.
  void remove(Sequence* sequence);
  // After sampling.
  void append_token(Sequence* sequence, std::int32_t token) { sequence->tokens.push_back(token); }

  // The next step; empty when nothing can run. Items hold pages for their tokens. Nobody gives up pages for a step that
  // is `ahead` of what the one before gives: it is empty where prompts alone would need that.
  const Step& schedule(bool ahead = false);
  // Of that step, without a chunk that may be left: what its time depends on.
  const StepWork& work() const { return work_; }
  // The chunk that may be left was computed to its end, or was left.
  void end_part(bool whole);
  // The step's forward is done: its tokens' KV is in the pages. Draft tokens do not count. Or `ahead`: it is enqueued
  // before all that follows; each sequence may be taken back by its token, whose window stays.
  void commit(bool ahead = false);
  // Behind commit(true): the sequence leaves the step that was scheduled since; its latest token, where it has one that
  // is not computed, is unknown, and the one before is computed again.
  void take_back(Sequence* sequence);
  // Behind commit(true), of a step that failed: nothing from token `begin` on was computed. What was published of it
  // stays in the cache, for the caller to flush.
  void take_back_to(Sequence* sequence, std::int32_t begin);
  // Whether the latest step was left without prompts, so that the pacer learns what decodes alone take.
  bool measures_decodes() const { return measures_decodes_; }
  // While a step is not committed: whether those that decode in the step behind it will find pages without taking any
  // from somebody; the cache gives up what is missing.
  bool make_room_for_decodes();
  // What a draft token to verify takes, as a share of a step that verifies none, as far as earlier steps have shown;
  // nothing where there was none.
  std::optional<double> draft_token_cost() const;
  // The token appended last is what one of the step's draft tokens was: its KV is in the pages too, where the next
  // token's belongs. Draft tokens that are not accepted are written over.
  void accept_draft(Sequence* sequence) { ++sequence->computed; }
  // How long a step of that work took, for the sizes of later ones; and how long one will take, as far as known.
  void observe(const StepWork& work, double seconds);
  double predict(const StepWork& work) const { return pacer_.predict(work); }

  // Whether a request waits for its prefix to come back; then an empty step is no fault.
  bool is_restoring() const { return !restores_.empty(); }
  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  std::size_t num_running() const { return running_.size(); }
  std::size_t num_waiting() const { return waiting_.size(); }
  std::uint64_t num_retractions() const { return retractions_; }
  // Prompt tokens that the latest step could hold.
  std::int32_t prompt_room() const { return prompt_room_; }
  RadixCache& cache() { return cache_; }
  const RadixCache& cache() const { return cache_; }
  void flush_cache() { cache_.clear(); }

  // Every page is free, cached or held by exactly the sequences that list it; kInternal says which is not. Slow.
  Status check() const;

 private:
  struct Before {
    bool operator()(const Sequence* a, const Sequence* b) const;
  };

  std::int32_t pages_for(std::int32_t tokens) const {
    return (tokens + options_.page_tokens - 1) / options_.page_tokens;
  }
  std::int32_t allocate_page(std::size_t group);
  // Pages for the next `count` tokens, the first of them writable; returns how many tokens there is room for.
  std::int32_t reserve(Sequence* sequence, std::int32_t count);
  std::int32_t sink_pages(std::size_t group) const { return pages_for(groups_[group].sink_tokens); }
  // Most pages of a group that a sequence of so many tokens can hold at a time, and those that it holds.
  std::int32_t most_pages(std::size_t group, std::int32_t tokens) const;
  std::int32_t held_pages(std::size_t group, const Sequence& sequence) const;
  // The page before which all but the sinks is outside of what the token at `position` sees.
  std::int32_t window_begin(std::size_t group, const Sequence& sequence, std::int32_t position) const;
  // Leading tokens, of `count`, whose KV any request that starts with them computes alike.
  std::int32_t shareable(const Sequence& sequence, std::int32_t count) const;
  std::span<const std::int32_t> matchable(const Sequence& sequence) const;
  void schedule_decodes(bool may_retract);
  void add_drafts();
  void schedule_prefills(bool may_retract);
  // Prompt tokens that fit into the step beside the decodes it holds.
  std::int32_t room_for_prompts();
  // How many of the next `count` tokens' logits are wanted, the last one's for sampling aside.
  static std::int32_t scores_of(const Sequence& sequence, std::int32_t count);
  static std::int32_t chunk_unit(const Sequence& sequence);
  void admit();
  bool admit_one(Sequence* sequence);
  bool wait_for_prefix(Sequence* sequence);
  // A waiting sequence whose prefix comes back: pages [next, end), by their keys from the first on.
  struct Restore {
    RadixCache::Node* node = nullptr;  // locked: what is there already
    std::vector<PageKey> keys;
    std::int32_t next = 0, end = 0;
    std::chrono::steady_clock::time_point moved;
  };
  std::span<const std::int32_t> page_of(std::span<const std::int32_t> tokens, std::int32_t index) const {
    return tokens.subspan(static_cast<std::size_t>(index) * options_.page_tokens, options_.page_tokens);
  }
  void begin_restores();  // of a step
  bool wait_for_restore(Sequence* sequence);
  bool begin_restore(Sequence* sequence);
  std::int32_t restorable_end(const Restore& restore, std::span<const std::int32_t> tokens) const;
  // False: it is over, well or not.
  bool advance_restore(Sequence* sequence, Restore& restore);
  void end_restore(Sequence* sequence);
  void end_all_restores();
  void push_item(Sequence* sequence, std::int32_t count);
  // A chunk that may be left, from this step on or further; false: there is none.
  bool begin_chunk(const std::vector<Sequence*>& prompts);
  bool push_part();
  void retract(Sequence* sequence);
  void leave_step(const Sequence* sequence);
  void publish(Sequence* sequence);
  void drop_left_of_window(Sequence* sequence, std::int32_t position);
  void release(Sequence* sequence);
  void insert_running(Sequence* sequence);

  SchedulerOptions options_;
  std::vector<RadixCache::Group> groups_;
  ReqToTokenPool& rows_;
  RadixCache cache_;
  std::vector<Sequence*> running_;  // in order
  std::set<Sequence*, Before> waiting_;
  std::map<Sequence*, Restore> restores_;
  std::int64_t restore_bytes_ = 0;  // that this step may still load
  struct Chunk {
    Sequence* sequence = nullptr;  // null: none is on its way
    std::int32_t count = 0;
    bool begun = false;
    bool whole = false;
    double seconds = 0.0;
  };
  Chunk chunk_;
  Step step_;
  StepWork work_;  // of the latest step, without a chunk that may be left
  StepPacer pacer_;
  std::int32_t prompt_room_ = 0;
  std::uint64_t step_number_ = 0;
  bool retracted_now_ = false;
  bool measures_decodes_ = false;
  std::uint64_t retractions_ = 0;
};

}  // namespace fovea
