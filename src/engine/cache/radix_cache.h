// RadixCache: which prefixes of token sequences have their KV in pages. A radix tree over whole pages of token ids, one
// tree a cache salt; each node holds a run of pages for every KV group. Used by Scheduler, single-threaded.
//
// The cache is one holder of each of its pages (PageAllocator counts); sequences that use them are others. A node that
// a sequence stands on is locked, and with it all nodes above. A group with a window may lack pages of a node: a match
// rounds down to a length at which every group still holds all that the next token sees, sinks and window. Sinks stay
// as long as anything of their prefix does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/cache/page_allocator.h"
#include "engine/cache/page_keeper.h"
#include "fovea/engine_view.h"
#include "fovea/status.h"

namespace fovea {

class RadixCache {
 public:
  struct Node;

  struct Group {
    PageAllocator* pages = nullptr;
    std::int32_t window_tokens = 0;  // 0: every token is kept
    std::int32_t sink_tokens = 0;    // with a window
    // With a window: that of prompt tokens, if it is larger; else 0.
    std::int32_t prompt_window_tokens = 0;

    std::int32_t most_window() const { return std::max(window_tokens, prompt_window_tokens); }
  };

  struct Match {
    Node* node = nullptr;                          // null when num_pages is 0
    std::int32_t num_pages = 0;                    // full pages found
    std::vector<std::vector<std::int32_t>> pages;  // [group][num_pages], kDummyPage where the group lacks it
  };

  RadixCache(std::vector<Group> groups, std::int32_t page_tokens);
  ~RadixCache();
  RadixCache(const RadixCache&) = delete;
  RadixCache& operator=(const RadixCache&) = delete;

  // Before the first insert. keeper: hears of pages that evict() gives up, and where `offers` of all by offer();
  // observer: of all that comes and goes. Each may be null.
  void tell(PageKeeper* keeper, bool offers, PrefixObserver* observer, std::uint64_t key_seed);
  // Shows the keeper up to `limit` pages that it has not seen, until it says that it has no room; how many it took.
  std::int32_t offer(std::int32_t limit);
  bool has_offers() const { return !unseen_.empty(); }

  // Longest usable prefix of the tokens, in whole pages; splits the node in which it ends. Valid until the next call
  // that changes the tree, unless locked.
  Match match(const std::string& salt, std::span<const std::int32_t> tokens);
  // As match(), but only counts: changes nothing, not even ages.
  std::int32_t match_length(const std::string& salt, std::span<const std::int32_t> tokens) const;

  struct Inserted {
    Node* node = nullptr;        // ends at the last whole page of the tokens (or where two hashes met: then earlier)
    std::int32_t num_pages = 0;  // depth of the node
    std::int32_t existing = 0;   // leading pages that were there already; the caller's own are duplicates then
  };
  // Adds the whole pages of the tokens. pages[group]: at least that many entries, kDummyPage where the caller has none.
  // The cache becomes a holder of each page it takes; where it had a page already, the caller keeps its own (see
  // pages_of()). Fills pages that a group had dropped.
  Inserted insert(const std::string& salt, std::span<const std::int32_t> tokens,
                  std::span<const std::span<const std::int32_t>> pages);
  // Whether the token after `num_pages` pages sees page `index` of the group.
  bool sees(std::size_t group, std::int32_t index, std::int32_t num_pages) const {
    return groups_[group].window_tokens == 0 || index < sink_pages(group) || index >= num_pages - reach(group);
  }
  // The pages from the root to the node's end: out holds node depth entries.
  void pages_of(const Node* node, std::size_t group, std::span<std::int32_t> out) const;

  // Locked nodes and those above them are not evicted. Null is allowed.
  void lock(Node* node);
  void unlock(Node* node);

  // Frees at least `count` pages of the group if it can, oldest leaves first and those from their ends; returns how
  // many became free.
  std::int32_t evict(std::size_t group, std::int32_t count);
  // Drops all that no sequence holds or stands on. Nothing of it is kept.
  void clear();

  // Pages the cache holds, and those of them that evict() can free: in nodes that are not locked.
  std::int32_t cached(std::size_t group) const { return counts_[group].cached; }
  // Of groups with a window also those that no sequence holds any more in nodes that are locked.
  std::int32_t evictable(std::size_t group) const {
    if (groups_[group].window_tokens > 0) return groups_[group].pages->num_idle();
    return counts_[group].cached - counts_[group].locked;
  }
  std::size_t num_nodes() const { return num_nodes_; }
  // At most `limit` nodes, latest used first; each behind its parent.
  std::vector<PrefixView> view(std::size_t limit) const;
  // PrefixView::id of a node; 0: null.
  static std::uint64_t id_of(const Node* node);

  // Structure, counts and locks agree with each other and with the allocators: every page in one node only, held. Slow.
  Status check() const;
  // Adds 1 to holders[page] for each page the cache holds.
  void count_holders(std::size_t group, std::span<std::int32_t> holders) const;

 private:
  struct Older {
    bool operator()(const Node* a, const Node* b) const;
  };
  struct Counts {
    std::int32_t cached = 0;
    std::int32_t locked = 0;
  };

  std::uint64_t page_hash(std::span<const std::int32_t> tokens, std::int32_t page) const;
  // Child of the node that starts with page `page` of the tokens, or null.
  Node* find_child(const Node* node, std::span<const std::int32_t> tokens, std::int32_t page) const;
  // Leading pages of the node's run equal to the tokens from page `page` on.
  std::int32_t common_pages(const Node* node, std::span<const std::int32_t> tokens, std::int32_t page) const;
  // Nodes from the root down along the tokens; the last may match in part. Returns pages matched.
  std::int32_t walk(const std::string& salt, std::span<const std::int32_t> tokens, std::vector<Node*>& path) const;
  std::int32_t usable_length(const std::vector<Node*>& path, std::int32_t num_pages) const;
  // Cuts the node before page `pages` of its run and returns the upper part, which keeps the node's place.
  Node* split(Node* node, std::int32_t pages);
  void touch(Node* node);
  void update_leaf(Node* node);
  void drop_page(Node* node, std::size_t group, std::int32_t index);
  // Gives up the last page of the node.
  void trim(Node* leaf, bool keep);
  // Page `index` of the node as others hear of it.
  PrefixRun run_of(const Node* node, std::int32_t index, std::int32_t count) const;
  PageKey key_before(const Node* node) const;
  // Files the node among those of which the keeper has not seen all.
  void update_unseen(Node* node);
  void remove_leaf(Node* leaf);
  // What evict_window_pages() spares: what a continuation from the end of any node can see; of any leaf or fork;
  // nothing.
  enum class Spare : std::uint8_t { kEnds, kLeavesAndForks, kNothing };
  std::int32_t sink_pages(std::size_t group) const {
    return (groups_[group].sink_tokens + page_tokens_ - 1) / page_tokens_;
  }
  // Pages before the next token's that it may see, but for sinks.
  std::int32_t reach(std::size_t group) const {
    return (groups_[group].most_window() - 1 + page_tokens_ - 1) / page_tokens_;
  }
  std::int32_t spared_pages(const Node* node, std::size_t group, Spare spare) const;
  std::int32_t evict_window_pages(std::size_t group, std::int32_t count, Spare spare);

  std::vector<Group> groups_;
  std::vector<Counts> counts_;
  std::int32_t page_tokens_;
  std::unordered_map<std::string, std::unique_ptr<Node>> roots_;
  std::set<Node*, Older> leaves_;          // unlocked ones, oldest first
  std::map<std::uint64_t, Node*> unseen_;  // by id
  PageKeeper* keeper_ = nullptr;
  PrefixObserver* observer_ = nullptr;
  bool offers_ = false;
  std::uint64_t key_seed_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t next_id_ = 0;
  std::size_t num_nodes_ = 0;
};

}  // namespace fovea
