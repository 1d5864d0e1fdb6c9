// Deterministic simulation of the scheduler: an executor without a model stores each token in the page that the row
// names and makes the next token from what it reads back, so a wrong, missing or overwritten page gives a wrong token.
#include "engine/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "base/hash.h"
#include "base/random.h"

namespace fovea {
namespace {

using Tokens = std::vector<std::int32_t>;

// What queries of a group see: all, or sinks and a window, which may be larger for queries of the prompt.
struct View {
  std::int32_t window = 0;
  std::int32_t sinks = 0;
  std::int32_t prompt_window = 0;

  // The query at `position` of a sequence with that prompt.
  bool sees(std::int32_t token, std::int32_t position, std::int32_t prompt_length) const {
    const std::int32_t most = position < prompt_length ? std::max(window, prompt_window) : window;
    return window == 0 || token < sinks || position - token < most;
  }
};

struct SimConfig {
  SchedulerOptions options;
  std::vector<View> views = {{}};
  std::vector<std::int32_t> pages = {64};  // that can be allocated
  std::int32_t max_tokens = 256;           // of a sequence
};

// What the executor must answer: a hash of what each group sees.
template <typename TokenAt>
std::int32_t next_token(const std::vector<View>& views, std::int32_t length, std::int32_t prompt_length,
                        TokenAt token_at) {
  std::uint64_t hash = 1;
  for (std::size_t g = 0; g < views.size(); ++g) {
    Tokens seen;
    for (std::int32_t i = 0; i < length; ++i) {
      if (views[g].sees(i, length - 1, prompt_length)) seen.push_back(token_at(g, i));
    }
    hash = hash_span(std::span<const std::int32_t>(seen), hash);
  }
  return static_cast<std::int32_t>(hash % 7);
}

class Simulation {
 public:
  explicit Simulation(const SimConfig& setup)
      : setup_(setup),
        rows_(setup.options.max_running, static_cast<std::int32_t>(setup.views.size()),
              setup.max_tokens / setup.options.page_tokens + 1) {
    std::vector<RadixCache::Group> groups;
    for (std::size_t g = 0; g < setup.views.size(); ++g) {
      const View& view = setup.views[g];
      allocators_.push_back(std::make_unique<PageAllocator>(setup.pages[g] + 1));
      groups.push_back({allocators_[g].get(), view.window, view.sinks, view.prompt_window});
      memory_.emplace_back(static_cast<std::size_t>(setup.pages[g] + 1) * setup.options.page_tokens, -1);
    }
    scheduler_ = std::make_unique<Scheduler>(setup.options, groups, rows_);
  }

  Sequence* make(const Tokens& prompt, std::int32_t generate, std::int32_t priority = 0, std::uint64_t arrival = 0) {
    auto owned = std::make_unique<Sequence>();
    Sequence* sequence = owned.get();
    sequence->id = ++next_id_;
    sequence->arrival = arrival != 0 ? arrival : next_id_;
    sequence->priority = priority;
    sequence->tokens = prompt;
    sequence->prompt_length = static_cast<std::int32_t>(prompt.size());
    generate_[sequence->id] = generate;
    live_.emplace(sequence->id, std::move(owned));
    return sequence;
  }
  Sequence* add(const Tokens& prompt, std::int32_t generate, std::int32_t priority = 0, std::int32_t choices = 1) {
    Sequence* sequence = make(prompt, generate, priority);
    choices_[sequence->id] = choices;
    scheduler_->add(sequence);
    return sequence;
  }
  void cancel(Sequence* sequence) {
    scheduler_->remove(sequence);
    live_.erase(sequence->id);
  }

  // One step; ids of the sequences that ended in it.
  std::vector<std::uint64_t> step() {
    std::vector<std::uint64_t> ended;
    const Step& step = scheduler_->schedule();
    EXPECT_LE(step.num_tokens, setup_.options.chunk_tokens);
    EXPECT_TRUE(!scheduler_->has_work() || !step.items.empty()) << "work waits, but nothing runs";
    const std::int32_t page_tokens = setup_.options.page_tokens;
    for (const PageCopy& copy : step.copies) {
      std::copy_n(memory_[copy.group].begin() + copy.from * page_tokens, page_tokens,
                  memory_[copy.group].begin() + copy.to * page_tokens);
    }
    // As in a forward, all tokens are written before any are read.
    double seconds = 1e-3 + 1e-4 * step.num_tokens;
    const bool has_part = !step.items.empty() && step.items.back().part;
    if (part_seconds_ > 0.0) {
      // What was left goes on in the very next step, unless its own sequence was cancelled or gave up its pages.
      const auto owner = live_.find(left_part_.of);
      if (owner == live_.end() || owner->second->state == SequenceState::kWaiting) {
        part_seconds_ = 0.0;
      } else {
        EXPECT_TRUE(has_part && step.items.back().goes_on) << "the chunk of " << left_part_.of << " was dropped";
      }
    }
    if (has_part) {
      const StepItem& item = step.items.back();
      EXPECT_LE(step.num_tokens + item.count, setup_.options.chunk_tokens);
      const Part part_now = {item.sequence->id, item.begin, item.count};
      EXPECT_TRUE(!item.goes_on || (part_seconds_ > 0.0 && part_now == left_part_));
      if (!item.goes_on) part_seconds_ = 1e-4 * item.count;
      left_part_ = part_now;
      const double part = std::min(part_seconds_, std::max(step.seconds - seconds, step.least_seconds));
      part_seconds_ -= part;
      if (part_seconds_ < 1e-9) part_seconds_ = 0.0;
      seconds += part;
      left_ += part_seconds_ > 0.0 ? 1 : 0;
      chunks_ += part_seconds_ > 0.0 ? 0 : 1;
      scheduler_->end_part(part_seconds_ == 0.0);
    }
    for (const StepItem& item : step.items) {
      // Until it is whole nobody may count on it.
      const std::int32_t begin = item.sequence->computed;
      for (std::int32_t i = begin; i < begin + item.count && !item.whole; ++i) {
        for (std::size_t g = 0; g < memory_.size(); ++g) cell(*item.sequence, g, i) = -7;
      }
      if (!item.whole) continue;
      for (std::int32_t i = item.begin; i < item.begin + item.count; ++i) {
        for (std::size_t g = 0; g < memory_.size(); ++g) cell(*item.sequence, g, i) = item.sequence->tokens[i];
      }
      computed_ += item.count;
    }
    std::vector<std::pair<Sequence*, std::int32_t>> sampled;
    for (const StepItem& item : step.items) {
      if (!item.sample) continue;
      sampled.push_back(
          {item.sequence, next_token(setup_.views, item.begin + item.count, item.sequence->prompt_length,
                                     [&](std::size_t g, std::int32_t i) { return cell(*item.sequence, g, i); })});
    }
    latest_seconds_ = seconds;
    latest_prompt_tokens_ = 0;
    for (const StepItem& item : step.items) latest_prompt_tokens_ += item.count > 1 ? item.count : 0;
    scheduler_->commit();
    scheduler_->observe(scheduler_->work(), seconds);
    ++steps_;
    for (const auto& [sequence, token] : sampled) {
      const Tokens& tokens = sequence->tokens;
      EXPECT_EQ(token, next_token(setup_.views, sequence->length(), sequence->prompt_length,
                                  [&](std::size_t, std::int32_t i) { return tokens[i]; }))
          << "sequence " << sequence->id;
      // Choices differ by their first token, as if each had a seed of its own.
      const std::int32_t choices = std::exchange(choices_[sequence->id], 1);
      const std::int32_t generate = generate_[sequence->id];
      for (std::int32_t c = 1; c < choices; ++c) {
        Sequence* child = make(sequence->tokens, generate, sequence->priority, sequence->arrival);
        if (scheduler_->fork(*sequence, child)) {
          scheduler_->append_token(child, 7 + c);
        } else {
          scheduler_->add(child);
        }
        ++forks_;
      }
      scheduler_->append_token(sequence, token);
    }
    for (const auto& [sequence, token] : sampled) {
      if (sequence->length() - sequence->prompt_length < generate_[sequence->id]) continue;
      ended.push_back(sequence->id);
      scheduler_->remove(sequence);
      live_.erase(sequence->id);
    }
    return ended;
  }

  void expect_clean() {
    EXPECT_FALSE(scheduler_->has_work());
    const Status status = scheduler_->check();
    EXPECT_TRUE(status.ok()) << status.message();
    scheduler_->flush_cache();
    for (const auto& pages : allocators_) EXPECT_EQ(pages->num_free(), pages->total());
    EXPECT_EQ(rows_.num_free(), rows_.num_slots());
  }

  Scheduler& scheduler() { return *scheduler_; }
  const std::map<std::uint64_t, std::unique_ptr<Sequence>>& live() const { return live_; }
  std::int64_t computed() const { return computed_; }
  std::int32_t latest_prompt_tokens() const { return latest_prompt_tokens_; }
  double latest_seconds() const { return latest_seconds_; }
  int left() const { return left_; }
  int chunks() const { return chunks_; }
  int steps() const { return steps_; }
  int forks() const { return forks_; }

 private:
  std::int32_t& cell(const Sequence& sequence, std::size_t g, std::int32_t position) {
    const std::int32_t page =
        rows_.row(sequence.slot, static_cast<std::int32_t>(g))[position / setup_.options.page_tokens];
    EXPECT_NE(page, kDummyPage) << "sequence " << sequence.id << " position " << position;
    return memory_[g]
                  [static_cast<std::size_t>(page) * setup_.options.page_tokens + position % setup_.options.page_tokens];
  }

  SimConfig setup_;
  ReqToTokenPool rows_;
  std::vector<std::unique_ptr<PageAllocator>> allocators_;
  std::vector<Tokens> memory_;  // [group][page, token]
  std::unique_ptr<Scheduler> scheduler_;
  std::map<std::uint64_t, std::unique_ptr<Sequence>> live_;
  std::map<std::uint64_t, std::int32_t> generate_;
  std::map<std::uint64_t, std::int32_t> choices_;
  std::uint64_t next_id_ = 0;
  std::int64_t computed_ = 0;
  std::int32_t latest_prompt_tokens_ = 0;
  double latest_seconds_ = 0.0;
  double part_seconds_ = 0.0;  // that the chunk which was left still takes; 0: none was
  struct Part {
    std::uint64_t of = 0;
    std::int32_t begin = 0, count = 0;
    bool operator==(const Part&) const = default;
  };
  Part left_part_;
  int left_ = 0;    // how often a chunk was
  int chunks_ = 0;  // of those that may be, how many came to their end
  int steps_ = 0;
  int forks_ = 0;
};

Tokens random_tokens(PhiloxRng& rng, std::uint32_t length, std::uint32_t alphabet = 1000) {
  Tokens tokens(length);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(rng.next_below(alphabet));
  return tokens;
}

SimConfig small() {
  SimConfig setup;
  setup.options = {.max_running = 8, .chunk_tokens = 32, .page_tokens = 4, .prefix_cache = true, .min_wait_tokens = 8};
  return setup;
}

TEST(Scheduler, QuestionsAboutOneDocumentPrefillItOnce) {
  SimConfig setup = small();
  setup.pages = {200};
  PhiloxRng rng(1);
  const Tokens document = random_tokens(rng, 120);
  Simulation sim(setup);
  for (int i = 0; i < 6; ++i) {
    Tokens prompt = document;
    for (const std::int32_t token : random_tokens(rng, 5)) prompt.push_back(token);
    sim.add(prompt, 3);
  }
  while (sim.scheduler().has_work()) sim.step();
  // The document once; of each the question, what the last page of the document shares with it, and the answer.
  EXPECT_LE(sim.computed(), 120 + 6 * (5 + 4 + 2));
  sim.expect_clean();
}

TEST(Scheduler, LongPromptAndShortOnesDoNotHoldUpEachOther) {
  SimConfig setup = small();
  setup.pages = {300};
  setup.max_tokens = 800;
  PhiloxRng rng(2);
  Simulation sim(setup);
  const std::uint64_t big = sim.add(random_tokens(rng, 640), 1)->id;
  sim.step();
  const std::uint64_t quick = sim.add(random_tokens(rng, 10), 1)->id;
  const auto ended = sim.step();
  EXPECT_EQ(ended, std::vector<std::uint64_t>{quick});
  // A short prompt arrives with every step: the long one still moves on by half a chunk at least.
  int steps = 0;
  for (bool done = false; !done; ++steps) {
    ASSERT_LT(steps, 2 * 640 / setup.options.chunk_tokens + 2);
    sim.add(random_tokens(rng, 30), 1);
    for (const std::uint64_t id : sim.step()) done |= id == big;
  }
}

// A step takes 1 ms and 0.1 ms a token here: 8 ms beside a stream are 64 tokens, a full chunk would be 51 ms.
TEST(Scheduler, ChunksBesideAStreamTakeTheTargetAndAloneAreFull) {
  SimConfig setup = small();
  setup.options.chunk_tokens = 500;
  setup.options.target_seconds = 8e-3;
  setup.pages = {1100};
  setup.max_tokens = 2100;
  PhiloxRng rng(6);
  Simulation sim(setup);
  const std::uint64_t stream = sim.add(random_tokens(rng, 6), 32)->id;
  for (int i = 0; i < 10; ++i) sim.step();
  Sequence* prompt = sim.add(random_tokens(rng, 2000), 5);
  std::int32_t longest = 0;
  std::int32_t shortest = 1000;
  for (int i = 0; i < 20; ++i) {
    sim.step();
    longest = std::max(longest, sim.latest_prompt_tokens());
    if (i >= 5) shortest = std::min(shortest, sim.latest_prompt_tokens());
    EXPECT_EQ(prompt->computed % 16, 0);
  }
  EXPECT_LE(longest, 64);
  EXPECT_GE(shortest, 48);
  for (bool ended = false; !ended;) {
    ASSERT_LT(sim.steps(), 200);
    for (const std::uint64_t id : sim.step()) ended |= id == stream;
  }
  ASSERT_GT(prompt->remaining(), 500);
  sim.step();
  EXPECT_EQ(sim.latest_prompt_tokens(), 500);
  while (sim.scheduler().has_work()) sim.step();
  sim.expect_clean();
}

// A stretch of what decodes alone take: once that must be measured, a prompt waits for a step, and only for one.
TEST(Scheduler, AStepWithoutPromptsWhereAStretchNeedsIt) {
  SimConfig setup = small();
  setup.options.chunk_tokens = 500;
  setup.options.stretch = 1.5;
  setup.options.max_running = 8;
  setup.pages = {1100};
  setup.max_tokens = 2100;
  PhiloxRng rng(6);
  Simulation sim(setup);
  for (int i = 0; i < 3; ++i) sim.add(random_tokens(rng, 6), 60);
  sim.add(random_tokens(rng, 2000), 5);
  int without = 0, in_a_row = 0;
  for (int i = 0; i < 40; ++i) {
    sim.step();
    in_a_row = sim.latest_prompt_tokens() == 0 ? in_a_row + 1 : 0;
    without += in_a_row;
    EXPECT_LE(in_a_row, 1) << i;
  }
  EXPECT_GE(without, 1);
  EXPECT_LE(without, 6);
  while (sim.scheduler().has_work()) sim.step();
  sim.expect_clean();
}

// The same where forwards can be left: chunks are longer than a step has time for, and steps take all of theirs.
TEST(Scheduler, LongerChunksBesideAStreamOverSeveralSteps) {
  SimConfig setup = small();
  setup.options.chunk_tokens = 500;
  setup.options.chunks_in_parts = true;
  setup.options.target_seconds = 8e-3;
  setup.pages = {1100};
  setup.max_tokens = 2100;
  PhiloxRng rng(6);
  Simulation sim(setup);
  sim.add(random_tokens(rng, 6), 60);
  for (int i = 0; i < 10; ++i) sim.step();
  Sequence* prompt = sim.add(random_tokens(rng, 1500), 5);
  const std::int32_t before = prompt->computed;
  std::int32_t longest = 0;
  for (int i = 0; i < 24; ++i) {
    sim.step();
    longest = std::max(longest, sim.latest_prompt_tokens());
    EXPECT_LE(sim.latest_seconds(), 0.85 * 8e-3 + 1e-9);  // the rest of the time is the token's way to the client
  }
  EXPECT_GE(longest, 400);
  EXPECT_GT(sim.left(), 12);
  EXPECT_GE(prompt->computed - before, 1000);
  // Who comes meanwhile waits for the end of a chunk; one that is cancelled in the middle of it leaves nothing.
  sim.add(random_tokens(rng, 20), 3);
  sim.step();
  sim.cancel(prompt);
  while (sim.scheduler().has_work()) sim.step();
  sim.expect_clean();
}

TEST(Scheduler, PriorityFirstThenArrival) {
  SimConfig setup = small();
  setup.options.max_running = 1;
  PhiloxRng rng(3);
  Simulation sim(setup);
  const std::uint64_t a = sim.add(random_tokens(rng, 8), 2, 5)->id;
  const std::uint64_t b = sim.add(random_tokens(rng, 8), 2, 5)->id;
  const std::uint64_t c = sim.add(random_tokens(rng, 8), 2, -1)->id;
  std::vector<std::uint64_t> order;
  while (sim.scheduler().has_work()) {
    for (const std::uint64_t id : sim.step()) order.push_back(id);
  }
  EXPECT_EQ(order, (std::vector<std::uint64_t>{c, a, b}));
}

TEST(Scheduler, RetractsTheNewestAndGivesItBackItsTokens) {
  SimConfig setup = small();
  setup.pages = {16};  // 64 tokens: two sequences of 20 + 30 do not fit together
  setup.max_tokens = 64;
  PhiloxRng rng(4);
  Simulation sim(setup);
  sim.add(random_tokens(rng, 20), 30);
  sim.add(random_tokens(rng, 20), 30);
  std::vector<std::uint64_t> order;
  while (sim.scheduler().has_work()) {
    for (const std::uint64_t id : sim.step()) order.push_back(id);
    ASSERT_TRUE(sim.scheduler().check().ok());
    ASSERT_LT(sim.steps(), 200);
  }
  EXPECT_GE(sim.scheduler().num_retractions(), 1u);
  EXPECT_EQ(order, (std::vector<std::uint64_t>{1, 2}));
  sim.expect_clean();
}

TEST(Scheduler, ChoicesShareThePromptsPages) {
  SimConfig setup = small();
  PhiloxRng rng(5);
  Simulation sim(setup);
  sim.add(random_tokens(rng, 30), 6, 0, 5);
  sim.step();
  EXPECT_EQ(sim.scheduler().num_running(), 5u);
  sim.step();  // each writes its own copy of the page that the prompt filled in part, but one that may keep it
  EXPECT_EQ(sim.computed(), 30 + 5);
  EXPECT_TRUE(sim.scheduler().check().ok());
  while (sim.scheduler().has_work()) sim.step();
  sim.expect_clean();
}

// Arrivals, cancellations, choices, flushes, pages that run out, groups with windows; every token is the right one.
struct Seen {
  std::uint64_t retractions = 0;
  int forks = 0;
  int left = 0;
  int chunks = 0;
};
void run_storm(std::uint64_t seed, bool prefix_cache, Seen& seen) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed << ", prefix cache " << prefix_cache);
  PhiloxRng rng(seed);
  SimConfig setup = small();
  setup.options.prefix_cache = prefix_cache;
  setup.options.max_running = 1 + static_cast<std::int32_t>(rng.next_below(8));
  setup.options.chunk_tokens = setup.options.max_running + 1 + static_cast<std::int32_t>(rng.next_below(40));
  setup.options.page_tokens = 1 + static_cast<std::int32_t>(rng.next_below(5));
  setup.options.min_wait_tokens = static_cast<std::int32_t>(1 + rng.next_below(12));
  setup.options.target_seconds = rng.next_below(2) == 0 ? 0.0 : 3e-3;
  setup.options.stretch = seed % 3 == 0 ? 1.5 : 0.0;
  setup.options.chunks_in_parts = rng.next_below(4) > 0;
  setup.max_tokens = 60;
  const std::vector<std::vector<View>> kinds = {
      {{}}, {{}, {9}}, {{6}}, {{11}, {}}, {{}, {7, 4}}, {{5, 6}}, {{}, {4, 3, 13}}, {{}, {8}, {6, 4}}};
  setup.views = kinds[rng.next_below(static_cast<std::uint32_t>(kinds.size()))];
  const std::int32_t least = 60 / setup.options.page_tokens + 2;
  setup.pages.clear();
  for (std::size_t g = 0; g < setup.views.size(); ++g) {
    setup.pages.push_back(least + static_cast<std::int32_t>(rng.next_below(2 * least)));
  }
  std::vector<Tokens> documents;
  for (int i = 0; i < 3; ++i) documents.push_back(random_tokens(rng, 10 + rng.next_below(25)));

  Simulation sim(setup);
  for (int i = 0; i < 150 && !::testing::Test::HasFailure(); ++i) {
    for (std::uint32_t n = rng.next_below(3); n > 0 && sim.live().size() < 30; --n) {
      Tokens prompt;
      if (rng.next_below(3) > 0) prompt = documents[rng.next_below(3)];
      for (const std::int32_t token : random_tokens(rng, 1 + rng.next_below(15), 3)) prompt.push_back(token);
      sim.add(prompt, 1 + static_cast<std::int32_t>(rng.next_below(60 - static_cast<std::uint32_t>(prompt.size()))),
              static_cast<std::int32_t>(rng.next_below(3)), rng.next_below(4) == 0 ? 3 : 1);
    }
    if (rng.next_below(8) == 0 && !sim.live().empty()) {
      auto it = sim.live().begin();
      std::advance(it, rng.next_below(static_cast<std::uint32_t>(sim.live().size())));
      sim.cancel(it->second.get());
    }
    if (rng.next_below(40) == 0) sim.scheduler().flush_cache();
    sim.step();
    const Status status = sim.scheduler().check();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const int limit = sim.steps() + 5000;
  while (sim.scheduler().has_work() && !::testing::Test::HasFailure()) {
    sim.step();
    ASSERT_LT(sim.steps(), limit) << "a sequence starves";
  }
  if (!::testing::Test::HasFailure()) sim.expect_clean();
  seen.retractions += sim.scheduler().num_retractions();
  seen.forks += sim.forks();
  seen.left += sim.left();
  seen.chunks += sim.chunks();
}

TEST(Scheduler, StormsGiveTheRightTokensAndLeakNothing) {
  Seen seen;
  for (std::uint64_t seed = 1; seed <= 150 && !HasFailure(); ++seed) {
    run_storm(seed, true, seen);
    run_storm(seed, false, seen);
  }
  EXPECT_GT(seen.retractions, 100u);
  EXPECT_GT(seen.forks, 100);
  EXPECT_GT(seen.left, 20);
  EXPECT_GT(seen.chunks, 20);
}

}  // namespace
}  // namespace fovea
