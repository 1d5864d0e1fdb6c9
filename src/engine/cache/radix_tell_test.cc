// What the prefix cache tells: keys that are chains over the tokens, wherever nodes are cut; every page once to the
// keeper; what comes and goes to the observer, which then knows what is cached.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/random.h"
#include "engine/cache/radix_cache.h"

namespace fovea {
namespace {

constexpr std::int32_t kPageTokens = 2;
constexpr std::uint64_t kSeed = 77;
using Tokens = std::vector<std::int32_t>;
using Name = std::pair<std::uint64_t, std::uint64_t>;

Name name_of(const PageKey& key) { return {key.low, key.high}; }

PageKey key_at(const std::string& salt, const Tokens& tokens, std::size_t page) {
  PageKey key = root_key(salt, kSeed);
  for (std::size_t i = 0; i <= page; ++i) {
    key = next_key(key, std::span(tokens).subspan(i * kPageTokens, kPageTokens), kSeed);
  }
  return key;
}

class Listener final : public PageKeeper, public PrefixObserver {
 public:
  bool keep(const PrefixRun& page, std::span<const std::int32_t> pages, bool leaves) override {
    EXPECT_EQ(page.keys.size(), 1u);
    EXPECT_EQ(page.tokens.size(), static_cast<std::size_t>(kPageTokens));
    EXPECT_EQ(pages.size(), 1u);
    EXPECT_EQ(next_key(page.before, page.tokens, kSeed), page.keys[0]);
    if (room == 0 && !leaves) return false;
    --room;
    if (leaves) left.insert(name_of(page.keys[0]));
    EXPECT_TRUE(leaves || offered.insert(name_of(page.keys[0])).second) << "offered twice";
    return true;
  }
  void on_stored(const PrefixRun& run) override {
    PageKey before = run.before;
    EXPECT_TRUE(run.first_page == 0 || cached.contains(name_of(before))) << "stored below nothing";
    for (std::size_t i = 0; i < run.keys.size(); ++i) {
      before = next_key(before, run.tokens.subspan(i * kPageTokens, kPageTokens), kSeed);
      EXPECT_EQ(before, run.keys[i]);
      EXPECT_TRUE(cached.insert(name_of(before)).second) << "stored twice";
    }
  }
  void on_removed(const PageKey& key) override { EXPECT_EQ(cached.erase(name_of(key)), 1u); }
  void on_cleared() override {
    EXPECT_TRUE(cached.empty());
    ++cleared;
  }

  std::int64_t room = 1 << 20;
  int cleared = 0;
  std::set<Name> cached, offered, left;
};

TEST(RadixTell, KeysAreChainsFromTheSalt) {
  const Tokens tokens = {1, 2, 3, 4};
  EXPECT_EQ(key_at("", tokens, 1), key_at("", tokens, 1));
  EXPECT_FALSE(key_at("", tokens, 1) == key_at("salt", tokens, 1));
  EXPECT_FALSE(key_at("", tokens, 1) == key_at("", {9, 9, 3, 4}, 1));
  EXPECT_FALSE(next_key(root_key("", 1), tokens, 1) == next_key(root_key("", 2), tokens, 2));
}

TEST(RadixTell, ListenersKnowTheCacheThroughAStorm) {
  PageAllocator pages(64);
  Listener listener;
  RadixCache cache({{&pages, 0}}, kPageTokens);
  cache.tell(&listener, true, &listener, kSeed);
  PhiloxRng rng(1);
  std::vector<RadixCache::Node*> locked;
  std::size_t total_offered = 0;
  for (int round = 0; round < 4000; ++round) {
    Tokens tokens(2 + rng.next_below(14));
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(rng.next_below(3));
    const std::string salt = rng.next_below(4) == 0 ? "salt" : "";
    const std::uint32_t action = static_cast<std::uint32_t>(rng.next_below(20));
    if (action < 10) {
      const auto whole = static_cast<std::int32_t>(tokens.size()) / kPageTokens;
      if (pages.num_free() < whole) cache.evict(0, whole);
      if (pages.num_free() < whole) continue;
      std::vector<std::int32_t> own;
      for (std::int32_t i = 0; i < whole; ++i) own.push_back(pages.allocate());
      const std::span<const std::int32_t> lists[] = {own};
      const auto inserted = cache.insert(salt, tokens, lists);
      for (const std::int32_t page : own) pages.unref(page);
      for (std::int32_t i = 0; i < inserted.num_pages; ++i) {
        EXPECT_TRUE(listener.cached.contains(name_of(key_at(salt, tokens, static_cast<std::size_t>(i)))));
      }
    } else if (action < 13) {
      const auto match = cache.match(salt, tokens);
      if (match.node != nullptr && locked.size() < 3) {
        cache.lock(match.node);
        locked.push_back(match.node);
      }
    } else if (action < 15 && !locked.empty()) {
      cache.unlock(locked.back());
      locked.pop_back();
    } else if (action < 17) {
      cache.evict(0, static_cast<std::int32_t>(rng.next_below(4)));
    } else {
      listener.offered.clear();  // an evicted page may come back and is offered again
      listener.room = static_cast<std::int64_t>(rng.next_below(6));
      const std::int64_t room = listener.room;
      const std::int32_t taken = cache.offer(static_cast<std::int32_t>(rng.next_below(10)));
      EXPECT_LE(taken, room);
      for (const Name& name : listener.offered) EXPECT_TRUE(listener.cached.contains(name));
      total_offered += listener.offered.size();
      listener.room = 1 << 20;
    }
    ASSERT_EQ(static_cast<std::int32_t>(listener.cached.size()), cache.cached(0));
    const Status intact = cache.check();
    ASSERT_TRUE(intact.ok()) << intact.message();
  }
  EXPECT_GT(total_offered, 100u);
  EXPECT_GT(listener.left.size(), 100u);
  listener.offered.clear();
  while (cache.has_offers()) cache.offer(5);
  for (RadixCache::Node* node : locked) cache.unlock(node);
  listener.left.clear();
  cache.clear();
  EXPECT_EQ(listener.cleared, 1);
  EXPECT_TRUE(listener.left.empty()) << "a flush keeps nothing";
  EXPECT_EQ(pages.num_free(), pages.total());
}

}  // namespace
}  // namespace fovea
