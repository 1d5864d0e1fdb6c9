// The prefix cache against a naive model of it: a map from whole prefixes to ages and locks, walked in full each time.
#include "engine/cache/radix_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "base/random.h"

namespace fovea {
namespace {

constexpr std::int32_t kPageTokens = 2;
using Tokens = std::vector<std::int32_t>;
using Rows = std::vector<std::vector<std::int32_t>>;  // [group][pages]

std::vector<std::span<const std::int32_t>> spans(const Rows& rows) { return {rows.begin(), rows.end()}; }

TEST(PageAllocator, HandsOutEachPageOnce) {
  PageAllocator pages(4);
  EXPECT_EQ(pages.total(), 3);
  EXPECT_EQ(pages.allocate(), 1);
  EXPECT_EQ(pages.allocate(), 2);
  EXPECT_EQ(pages.allocate(), 3);
  EXPECT_EQ(pages.allocate(), kNoPage);
  pages.ref(2);
  EXPECT_FALSE(pages.unref(2));
  EXPECT_TRUE(pages.unref(2));
  EXPECT_EQ(pages.allocate(), 2);
}

TEST(RadixCache, MatchSplitsAndInsertReportsWhatWasThere) {
  PageAllocator pages(16);
  RadixCache cache({{&pages, 0}}, kPageTokens);
  const Tokens first = {1, 2, 3, 4, 5, 6, 7};
  Rows rows(1);
  for (int i = 0; i < 3; ++i) rows[0].push_back(pages.allocate());
  auto inserted = cache.insert("", first, spans(rows));
  EXPECT_EQ(inserted.existing, 0);
  EXPECT_EQ(inserted.num_pages, 3);  // the seventh token fills no page
  for (const std::int32_t page : rows[0]) pages.unref(page);
  EXPECT_EQ(cache.evictable(0), 3);

  const Tokens second = {1, 2, 3, 4, 9, 9};
  const auto match = cache.match("", second);
  EXPECT_EQ(match.num_pages, 2);
  EXPECT_EQ(match.pages[0], (std::vector<std::int32_t>{rows[0][0], rows[0][1]}));
  EXPECT_EQ(cache.num_nodes(), 2u);
  EXPECT_EQ(cache.match("other salt", second).num_pages, 0);
  cache.lock(match.node);
  EXPECT_EQ(cache.evictable(0), 1);

  Rows more = {{rows[0][0], rows[0][1], pages.allocate()}};
  inserted = cache.insert("", second, spans(more));
  EXPECT_EQ(inserted.existing, 2);
  EXPECT_EQ(inserted.num_pages, 3);
  pages.unref(more[0][2]);
  EXPECT_TRUE(cache.check().ok()) << cache.check().message();

  EXPECT_EQ(cache.evict(0, 10), 2);  // the two ends; the locked part stays
  EXPECT_EQ(cache.match("", first).num_pages, 2);
  cache.unlock(match.node);
  cache.clear();
  EXPECT_EQ(pages.num_free(), pages.total());
  EXPECT_EQ(cache.num_nodes(), 0u);
}

TEST(RadixCache, EvictsFromTheEndOfTheOldestLeaf) {
  PageAllocator pages(16);
  RadixCache cache({{&pages, 0}}, kPageTokens);
  const auto add = [&](const Tokens& tokens) {
    Rows rows(1);
    for (std::size_t i = 0; i < tokens.size() / kPageTokens; ++i) rows[0].push_back(pages.allocate());
    cache.insert("", tokens, spans(rows));
    for (const std::int32_t page : rows[0]) pages.unref(page);
  };
  const Tokens a = {1, 1, 2, 2, 3, 3};
  const Tokens b = {5, 5, 6, 6};
  add(a);
  add(b);
  EXPECT_EQ(cache.evict(0, 2), 2);
  EXPECT_EQ(cache.match("", a).num_pages, 1);
  EXPECT_EQ(cache.evict(0, 1), 1);  // b is older now
  EXPECT_EQ(cache.match("", a).num_pages, 1);
  EXPECT_EQ(cache.match("", b).num_pages, 1);
}

TEST(RadixCache, MatchRoundsDownToWhatTheWindowStillHolds) {
  PageAllocator full(16);
  PageAllocator window(16);
  RadixCache cache({{&full, 0}, {&window, 4}}, kPageTokens);  // a token sees three before it: two pages
  const Tokens tokens = {1, 1, 2, 2, 3, 3, 4, 4, 5, 5};
  Rows rows(2);
  for (int i = 0; i < 5; ++i) {
    rows[0].push_back(full.allocate());
    rows[1].push_back(i == 1 ? kDummyPage : window.allocate());
  }
  cache.insert("", tokens, spans(rows));
  EXPECT_EQ(cache.match_length("", tokens), 5);
  EXPECT_EQ(cache.match_length("", Tokens{1, 1, 2, 2, 3, 3, 4, 4}), 4);
  EXPECT_EQ(cache.match_length("", Tokens{1, 1, 2, 2, 3, 3}), 1);  // page 1 is missing, so only page 0 can be continued
  EXPECT_EQ(cache.match_length("", Tokens{1, 1, 2, 2}), 1);
  // An insert with the page present fills the gap.
  Rows again = rows;
  again[1][1] = window.allocate();
  cache.insert("", tokens, spans(again));
  EXPECT_EQ(cache.match_length("", Tokens{1, 1, 2, 2, 3, 3}), 3);
}

TEST(RadixCache, SinksStayAndMatchesNeedThem) {
  PageAllocator pages(32);
  RadixCache cache({{&pages, 4, 3}}, kPageTokens);  // two pages of sinks, and three tokens before the next one
  Tokens tokens;
  Rows rows(1);
  const auto add = [&](std::int32_t count) {
    for (std::int32_t i = 0; i < count; ++i) {
      tokens.insert(tokens.end(), {static_cast<std::int32_t>(rows[0].size()), 7});
      rows[0].push_back(pages.allocate());
    }
    cache.insert("", tokens, spans(rows));
  };
  add(6);  // a chunk of the prompt, and one more
  add(5);
  for (const std::int32_t page : rows[0]) pages.unref(page);
  EXPECT_EQ(cache.evictable(0), 11);
  EXPECT_EQ(cache.match_length("", tokens), 11);
  // Between the sinks and the ends of nodes first: pages 2 and 3, 6 to 8; then the end of the first node, which has one
  // way to go.
  EXPECT_EQ(cache.evict(0, 5), 5);
  EXPECT_EQ(cache.match_length("", tokens), 11);
  EXPECT_EQ(cache.match_length("", Tokens(tokens.begin(), tokens.begin() + 12)), 6);
  EXPECT_EQ(cache.match_length("", Tokens(tokens.begin(), tokens.begin() + 20)), 6);
  EXPECT_EQ(cache.evict(0, 2), 2);
  EXPECT_EQ(cache.match_length("", tokens), 11);
  EXPECT_EQ(cache.match_length("", Tokens(tokens.begin(), tokens.begin() + 12)), 2);
  EXPECT_TRUE(cache.check().ok()) << cache.check().message();
  cache.clear();
  EXPECT_EQ(pages.num_free(), pages.total());
}

// A client of the cache as the scheduler is one, and the naive model. Page contents stand for KV: each page remembers
// the salt and all tokens up to its end.
struct Window {
  std::int32_t tokens = 0;
  std::int32_t sinks = 0;
};

class Storm {
 public:
  Storm(std::uint64_t seed, std::vector<Window> windows) : rng_(seed), windows_(std::move(windows)) {
    std::vector<RadixCache::Group> groups;
    for (std::size_t g = 0; g < windows_.size(); ++g) {
      allocators_.push_back(std::make_unique<PageAllocator>(2 + static_cast<std::int32_t>(rng_.next_below(60))));
      groups.push_back({allocators_.back().get(), windows_[g].tokens, windows_[g].sinks});
      contents_.emplace_back(allocators_[g]->total() + 1);
    }
    cache_ = std::make_unique<RadixCache>(groups, kPageTokens);
    exact_ = windows_.size() == 1 && windows_[0].tokens == 0;
  }

  void step() {
    const std::uint32_t dice = rng_.next_below(100);
    if (dice < 35)
      start();
    else if (dice < 65)
      grow();
    else if (dice < 92)
      finish();
    else if (dice < 99)
      evict(rng_.next_below(static_cast<std::uint32_t>(windows_.size())), 1 + rng_.next_below(8));
    else
      clear();
  }

  void verify() {
    const Status status = cache_->check();
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::size_t g = 0; g < windows_.size(); ++g) {
      std::vector<std::int32_t> holders(allocators_[g]->total() + 1, 0);
      cache_->count_holders(g, holders);
      std::int32_t in_flight = 0;
      std::vector<bool> cached(holders.size());
      for (std::size_t page = 0; page < holders.size(); ++page) cached[page] = holders[page] > 0;
      for (const Sequence& s : sequences_) {
        for (const std::int32_t page : s.rows[g]) {
          if (page != kDummyPage) ++holders[page];
        }
      }
      for (std::int32_t page = 1; page <= allocators_[g]->total(); ++page) {
        ASSERT_EQ(holders[page], allocators_[g]->holders(page)) << "page " << page << " of group " << g;
        if (holders[page] > 0 && !cached[page]) ++in_flight;
      }
      ASSERT_EQ(allocators_[g]->num_free() + cache_->cached(g) + in_flight, allocators_[g]->total());
    }
    if (exact_) {
      ASSERT_EQ(static_cast<std::size_t>(cache_->cached(0)), model_.size());
    }
  }

  void drain() {
    while (!sequences_.empty()) finish();
    cache_->clear();
    for (const auto& pages : allocators_) ASSERT_EQ(pages->num_free(), pages->total());
    ASSERT_EQ(cache_->num_nodes(), 0u);
  }

 private:
  using Prefix = std::pair<std::string, Tokens>;
  struct Sequence {
    std::string salt;
    Tokens tokens;
    Rows rows;
    RadixCache::Node* node = nullptr;
    Tokens locked;  // prefix that the model holds locked
  };
  struct Entry {
    std::uint64_t age = 0;
    int locks = 0;
  };

  static Tokens prefix(const Tokens& tokens, std::int32_t pages) {
    return {tokens.begin(), tokens.begin() + pages * kPageTokens};
  }
  std::int32_t model_match(const std::string& salt, const Tokens& tokens) const {
    const auto total = static_cast<std::int32_t>(tokens.size() / kPageTokens);
    std::int32_t found = 0;
    while (found < total && model_.count({salt, prefix(tokens, found + 1)})) ++found;
    return found;
  }
  void model_touch(const std::string& salt, const Tokens& tokens, std::int32_t pages) {
    ++clock_;
    for (std::int32_t i = 1; i <= pages; ++i) model_[{salt, prefix(tokens, i)}].age = clock_;
  }
  void model_lock(const std::string& salt, const Tokens& locked, int by) {
    for (std::int32_t i = 1; i <= static_cast<std::int32_t>(locked.size()) / kPageTokens; ++i) {
      model_[{salt, prefix(locked, i)}].locks += by;
    }
  }
  std::int32_t model_evict(std::int32_t count) {
    std::int32_t freed = 0;
    for (; freed < count; ++freed) {
      auto oldest = model_.end();
      for (auto it = model_.begin(); it != model_.end(); ++it) {
        if (it->second.locks > 0 || (oldest != model_.end() && it->second.age > oldest->second.age)) continue;
        const std::size_t size = it->first.second.size();
        bool leaf = true;  // a longer prefix follows its own start in the map's order
        const auto next = std::next(it);
        if (next != model_.end() && next->first.first == it->first.first && next->first.second.size() > size) {
          leaf = !std::equal(it->first.second.begin(), it->first.second.end(), next->first.second.begin());
        }
        if (leaf) oldest = it;
      }
      if (oldest == model_.end()) break;
      model_.erase(oldest);
    }
    return freed;
  }

  void evict(std::size_t group, std::uint32_t count) {
    const std::int32_t evictable = cache_->evictable(group);
    const std::int32_t freed = cache_->evict(group, static_cast<std::int32_t>(count));
    ASSERT_GE(freed, std::min<std::int32_t>(evictable, static_cast<std::int32_t>(count)));
    if (exact_) {
      ASSERT_EQ(freed, model_evict(static_cast<std::int32_t>(count)));
    }
  }
  void clear() {
    cache_->clear();
    if (exact_) model_evict(1 << 30);
    for (std::size_t g = 0; g < windows_.size(); ++g) ASSERT_EQ(cache_->evictable(g), 0);
  }

  std::int32_t new_page(std::size_t g) {
    if (allocators_[g]->num_free() == 0) evict(g, 1);
    return allocators_[g]->allocate();
  }
  // Appends pages for the sequence's tokens; false when there are none left.
  bool fill(Sequence& s) {
    const std::size_t total = s.tokens.size() / kPageTokens;
    for (std::size_t g = 0; g < windows_.size(); ++g) {
      while (s.rows[g].size() < total) {
        const std::int32_t page = new_page(g);
        if (page == kNoPage) return false;
        s.rows[g].push_back(page);
        contents_[g][page] = {s.salt, prefix(s.tokens, static_cast<std::int32_t>(s.rows[g].size()))};
      }
      if (windows_[g].tokens == 0) continue;
      const auto keep = static_cast<std::int32_t>(total) * kPageTokens - (windows_[g].tokens - 1);
      for (std::int32_t i = 0; (i + 1) * kPageTokens <= keep; ++i) {
        if (i * kPageTokens < windows_[g].sinks) continue;
        if (s.rows[g][i] != kDummyPage) allocators_[g]->unref(s.rows[g][i]);
        s.rows[g][i] = kDummyPage;
      }
    }
    return true;
  }
  // insert(), then the sequence changes over to the cache's pages.
  void publish(Sequence& s) {
    std::size_t pages = s.rows[0].size();
    for (const auto& row : s.rows) pages = std::min(pages, row.size());
    const Tokens tokens = prefix(s.tokens, static_cast<std::int32_t>(pages));
    const auto inserted = cache_->insert(s.salt, tokens, spans(s.rows));
    if (exact_ && pages > 0) {
      ASSERT_EQ(inserted.existing, model_match(s.salt, tokens));
      model_touch(s.salt, tokens, static_cast<std::int32_t>(pages));
    }
    ASSERT_EQ(inserted.num_pages, static_cast<std::int32_t>(pages));
    for (std::size_t g = 0; g < windows_.size(); ++g) {
      std::vector<std::int32_t> shared(pages);
      cache_->pages_of(inserted.node, g, shared);
      for (std::size_t i = 0; i < pages; ++i) {
        std::int32_t& mine = s.rows[g][i];
        if (mine == kDummyPage || mine == shared[i]) continue;
        ASSERT_EQ(contents_[g][shared[i]], contents_[g][mine]);
        allocators_[g]->ref(shared[i]);
        allocators_[g]->unref(mine);
        mine = shared[i];
      }
    }
    cache_->lock(inserted.node);
    cache_->unlock(s.node);
    s.node = inserted.node;
    if (exact_) {
      model_lock(s.salt, tokens, 1);
      model_lock(s.salt, s.locked, -1);
      s.locked = tokens;
    }
  }

  void start() {
    if (sequences_.size() >= 8) return;
    Sequence s;
    s.salt = rng_.next_below(8) == 0 ? "salt" : "";
    s.rows.resize(windows_.size());
    const std::uint32_t length = rng_.next_below(16);
    for (std::uint32_t i = 0; i < length; ++i) s.tokens.push_back(static_cast<std::int32_t>(rng_.next_below(2)));
    const std::int32_t counted = cache_->match_length(s.salt, s.tokens);
    const auto match = cache_->match(s.salt, s.tokens);
    ASSERT_EQ(match.num_pages, counted);
    if (exact_) {
      ASSERT_EQ(match.num_pages, model_match(s.salt, s.tokens));
      if (match.num_pages > 0) model_touch(s.salt, s.tokens, match.num_pages);
      s.locked = prefix(s.tokens, match.num_pages);
      model_lock(s.salt, s.locked, 1);
    }
    cache_->lock(match.node);
    s.node = match.node;
    for (std::size_t g = 0; g < windows_.size(); ++g) {
      s.rows[g] = match.pages[g];
      for (std::int32_t i = 0; i < match.num_pages; ++i) {
        std::int32_t& page = s.rows[g][i];
        if (windows_[g].tokens > 0 && i * kPageTokens >= windows_[g].sinks &&
            (i + 1) * kPageTokens <= match.num_pages * kPageTokens - (windows_[g].tokens - 1)) {
          page = kDummyPage;
          continue;
        }
        // All that the next token sees is there and holds what its prefix says.
        ASSERT_NE(page, kDummyPage);
        ASSERT_EQ(contents_[g][page], (Prefix{s.salt, prefix(s.tokens, i + 1)}));
        allocators_[g]->ref(page);
      }
    }
    sequences_.push_back(std::move(s));
  }
  void grow() {
    if (sequences_.empty()) return;
    Sequence& s = sequences_[rng_.next_below(static_cast<std::uint32_t>(sequences_.size()))];
    for (std::uint32_t i = rng_.next_below(6); i > 0; --i) {
      s.tokens.push_back(static_cast<std::int32_t>(rng_.next_below(2)));
    }
    if (fill(s) && rng_.next_below(2) == 0) publish(s);
  }
  void finish() {
    if (sequences_.empty()) return;
    const std::uint32_t index = rng_.next_below(static_cast<std::uint32_t>(sequences_.size()));
    Sequence& s = sequences_[index];
    if (rng_.next_below(3) > 0) publish(s);
    for (std::size_t g = 0; g < windows_.size(); ++g) {
      for (const std::int32_t page : s.rows[g]) {
        if (page != kDummyPage) allocators_[g]->unref(page);
      }
    }
    cache_->unlock(s.node);
    if (exact_) model_lock(s.salt, s.locked, -1);
    sequences_.erase(sequences_.begin() + index);
  }

  PhiloxRng rng_;
  std::vector<Window> windows_;
  std::vector<std::unique_ptr<PageAllocator>> allocators_;
  std::vector<std::vector<Prefix>> contents_;  // [group][page]
  std::unique_ptr<RadixCache> cache_;
  std::vector<Sequence> sequences_;
  bool exact_ = false;
  std::uint64_t clock_ = 0;
  std::map<Prefix, Entry> model_;
};

void run_storm(std::uint64_t seed, const std::vector<Window>& windows, int steps) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Storm storm(seed, windows);
  for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
    storm.step();
    if (i % 16 == 0) storm.verify();
  }
  if (!::testing::Test::HasFatalFailure()) storm.drain();
}

TEST(RadixCache, StormAgreesWithTheNaiveModel) {
  for (std::uint64_t seed = 1; seed <= 300 && !HasFatalFailure(); ++seed) run_storm(seed, {{}}, 1500);
}

TEST(RadixCache, StormOfWindowsNeverGivesAWrongPage) {
  for (std::uint64_t seed = 1; seed <= 60 && !HasFatalFailure(); ++seed) {
    run_storm(seed, {{}, {5}}, 1500);
    run_storm(seed, {{7}}, 1500);
    run_storm(seed, {{3}, {}, {9}}, 1500);
    run_storm(seed, {{}, {4, 3}}, 1500);
    run_storm(seed, {{2, 4}, {6, 1}}, 1500);
  }
}

}  // namespace
}  // namespace fovea
