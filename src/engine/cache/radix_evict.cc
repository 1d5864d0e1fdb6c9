// Eviction and the integrity check of the prefix cache.
#include <algorithm>

#include "base/status.h"
#include "engine/cache/radix_cache.h"
#include "engine/cache/radix_node.h"

namespace fovea {

void RadixCache::drop_page(Node* node, std::size_t group, std::int32_t index) {
  std::int32_t& page = node->pages[group][index];
  groups_[group].pages->cache_unref(page);
  page = kDummyPage;
  --node->present[group];
  --counts_[group].cached;
  if (node->locks > 0) --counts_[group].locked;
}

void RadixCache::trim(Node* leaf, bool keep) {
  const std::int32_t last = leaf->num_pages() - 1;
  if (keep && keeper_ != nullptr) {
    std::vector<std::int32_t> pages;
    for (const std::vector<std::int32_t>& run : leaf->pages) pages.push_back(run[last]);
    (void)keeper_->keep(run_of(leaf, last, 1), pages, true);
  }
  if (observer_ != nullptr) observer_->on_removed(leaf->keys[last]);
  if (!leaf->keys.empty()) leaf->keys.pop_back();
  leaf->seen = std::min(leaf->seen, last);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (leaf->pages[g][last] != kDummyPage) drop_page(leaf, g, last);
    leaf->pages[g].pop_back();
  }
  leaf->tokens.resize(leaf->tokens.size() - page_tokens_);
  update_unseen(leaf);
}

void RadixCache::remove_leaf(Node* leaf) {
  unseen_.erase(leaf->id);
  if (leaf->in_leaves) leaves_.erase(leaf);
  Node* parent = leaf->parent;
  --num_nodes_;
  parent->children.erase(leaf->hash);
  if (!parent->is_root()) {
    update_leaf(parent);
  } else if (parent->children.empty()) {
    roots_.erase(std::string(parent->salt));
  }
}

std::int32_t RadixCache::spared_pages(const Node* node, std::size_t group, Spare spare) const {
  if (spare == Spare::kNothing) return 0;
  std::int32_t spared = reach(group);
  // A continuation that has one way to go only is one from further down.
  while (spare == Spare::kLeavesAndForks && spared > 0 && node->children.size() == 1) {
    node = node->children.begin()->second.get();
    spared -= node->num_pages();
  }
  return std::max(spared, 0);
}

std::int32_t RadixCache::evict_window_pages(std::size_t group, std::int32_t count, Spare spare) {
  std::vector<Node*> nodes;
  std::vector<Node*> stack;
  for (const auto& [salt, root] : roots_) stack.push_back(root.get());
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (!node->is_root() && node->present[group] > 0) nodes.push_back(node);
    for (const auto& [hash, child] : node->children) stack.push_back(child.get());
  }
  std::sort(nodes.begin(), nodes.end(), Older());
  std::int32_t freed = 0;
  for (Node* node : nodes) {
    const std::int32_t end = node->num_pages() - spared_pages(node, group, spare);
    const std::int32_t sinks = spare == Spare::kNothing ? 0 : sink_pages(group) - node->first_page;
    for (std::int32_t i = std::max(sinks, 0); i < end && freed < count; ++i) {
      const std::int32_t page = node->pages[group][i];
      if (page == kDummyPage || groups_[group].pages->holders(page) > 1) continue;
      drop_page(node, group, i);
      ++freed;
    }
    if (freed >= count) break;
  }
  return freed;
}

std::int32_t RadixCache::evict(std::size_t group, std::int32_t count) {
  const PageAllocator& pages = *groups_[group].pages;
  const std::int32_t before = pages.num_free();
  const auto freed = [&] { return pages.num_free() - before; };
  const bool windowed = groups_[group].window_tokens > 0;
  // Where the group has a window, what no continuation can see goes first, then what only one from the middle of a
  // single path can, as chunks of a prompt leave it.
  if (windowed) evict_window_pages(group, count, Spare::kEnds);
  if (windowed && freed() < count) evict_window_pages(group, count - freed(), Spare::kLeavesAndForks);
  while (freed() < count && !leaves_.empty()) {
    Node* leaf = *leaves_.begin();
    while (freed() < count && leaf->num_pages() > 0) trim(leaf, true);
    if (leaf->num_pages() == 0) remove_leaf(leaf);
  }
  // What is left stands in locked nodes, outside of what the sequences that hold the locks see.
  if (windowed && freed() < count) evict_window_pages(group, count - freed(), Spare::kNothing);
  return freed();
}

void RadixCache::clear() {
  while (!leaves_.empty()) {
    Node* leaf = *leaves_.begin();
    while (leaf->num_pages() > 0) trim(leaf, false);
    remove_leaf(leaf);
  }
  if (observer_ != nullptr && roots_.empty()) observer_->on_cleared();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].window_tokens > 0) evict_window_pages(g, groups_[g].pages->num_idle(), Spare::kNothing);
  }
}

void RadixCache::count_holders(std::size_t group, std::span<std::int32_t> holders) const {
  std::vector<const Node*> stack;
  for (const auto& [salt, root] : roots_) stack.push_back(root.get());
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (!node->is_root()) {
      for (const std::int32_t page : node->pages[group]) {
        if (page != kDummyPage) ++holders[page];
      }
    }
    for (const auto& [hash, child] : node->children) stack.push_back(child.get());
  }
}

Status RadixCache::check() const {
  std::vector<Counts> counts(groups_.size());
  std::size_t num_nodes = 0;
  std::size_t num_leaves = 0;
  std::vector<const Node*> stack;
  for (const auto& [salt, root] : roots_) {
    if (root->children.empty()) return internal_error("radix cache: a root without children");
    stack.push_back(root.get());
  }
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    std::int32_t locks_below = 0;
    for (const auto& [hash, child] : node->children) {
      if (child->parent != node || child->hash != hash) return internal_error("radix cache: a child in a wrong place");
      if (child->first_page != node->end_page()) return internal_error("radix cache: node {} has a gap", child->id);
      locks_below += child->locks;
      stack.push_back(child.get());
    }
    if (node->is_root()) continue;
    ++num_nodes;
    if (node->num_pages() == 0) return internal_error("radix cache: node {} is empty", node->id);
    if (node->tokens.size() != static_cast<std::size_t>(node->num_pages()) * page_tokens_) {
      return internal_error("radix cache: node {} has {} tokens for {} pages", node->id, node->tokens.size(),
                            node->num_pages());
    }
    if (node->hash != page_hash(node->tokens, 0))
      return internal_error("radix cache: node {} has a stale key", node->id);
    const bool told = keeper_ != nullptr || observer_ != nullptr;
    if (node->keys.size() != (told ? static_cast<std::size_t>(node->num_pages()) : 0) ||
        unseen_.contains(node->id) != (offers_ && node->seen < node->num_pages())) {
      return internal_error("radix cache: node {} is not what its keeper sees", node->id);
    }
    if (node->locks < locks_below) return internal_error("radix cache: node {} has fewer locks than below", node->id);
    const bool is_leaf = node->children.empty() && node->locks == 0;
    if (is_leaf != node->in_leaves) return internal_error("radix cache: node {} is misfiled as a leaf", node->id);
    num_leaves += is_leaf ? 1 : 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      std::int32_t present = 0;
      for (const std::int32_t page : node->pages[g]) {
        if (page == kDummyPage) {
          if (groups_[g].window_tokens == 0) return internal_error("radix cache: node {} lacks a page", node->id);
          continue;
        }
        ++present;
        const std::int32_t holders = groups_[g].pages->holders(page);
        if (holders < 1) return internal_error("radix cache: page {} of group {} is free", page, g);
        if (node->locks == 0 && holders != 1) {
          return internal_error("radix cache: page {} of group {} has {} holders in an unlocked node", page, g,
                                holders);
        }
      }
      if (present != node->present[g]) return internal_error("radix cache: node {} miscounts group {}", node->id, g);
      counts[g].cached += present;
      if (node->locks > 0) counts[g].locked += present;
    }
  }
  if (num_nodes != num_nodes_) return internal_error("radix cache: {} nodes, {} counted", num_nodes, num_nodes_);
  if (num_leaves != leaves_.size())
    return internal_error("radix cache: {} leaves, {} filed", num_leaves, leaves_.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (counts[g].cached != counts_[g].cached || counts[g].locked != counts_[g].locked) {
      return internal_error("radix cache: group {} has {} pages, {} locked; counted {}, {}", g, counts[g].cached,
                            counts[g].locked, counts_[g].cached, counts_[g].locked);
    }
    std::vector<std::int32_t> holders(groups_[g].pages->total() + 1, 0);
    count_holders(g, holders);
    for (std::size_t page = 0; page < holders.size(); ++page) {
      if (holders[page] > 1) return internal_error("radix cache: page {} of group {} stands in two nodes", page, g);
    }
  }
  return ok_status();
}

}  // namespace fovea
