// Match, insert, split and locks of the prefix cache.
#include "engine/cache/radix_cache.h"

#include <algorithm>

#include "base/hash.h"
#include "base/status.h"
#include "engine/cache/radix_node.h"

namespace fovea {

bool RadixCache::Older::operator()(const Node* a, const Node* b) const {
  return a->last_access != b->last_access ? a->last_access < b->last_access : a->id < b->id;
}

RadixCache::RadixCache(std::vector<Group> groups, std::int32_t page_tokens)
    : groups_(std::move(groups)), counts_(groups_.size()), page_tokens_(page_tokens) {
  FOVEA_CHECK(!groups_.empty() && page_tokens > 0);
}

RadixCache::~RadixCache() = default;

std::uint64_t RadixCache::page_hash(std::span<const std::int32_t> tokens, std::int32_t page) const {
  return hash_span(tokens.subspan(static_cast<std::size_t>(page) * page_tokens_, page_tokens_));
}

std::int32_t RadixCache::common_pages(const Node* node, std::span<const std::int32_t> tokens, std::int32_t page) const {
  const auto rest = tokens.subspan(static_cast<std::size_t>(page) * page_tokens_);
  const auto [mine, theirs] = std::mismatch(node->tokens.begin(), node->tokens.end(), rest.begin(), rest.end());
  return static_cast<std::int32_t>(mine - node->tokens.begin()) / page_tokens_;
}

RadixCache::Node* RadixCache::find_child(const Node* node, std::span<const std::int32_t> tokens,
                                         std::int32_t page) const {
  const auto child = node->children.find(page_hash(tokens, page));
  return child == node->children.end() ? nullptr : child->second.get();
}

std::int32_t RadixCache::walk(const std::string& salt, std::span<const std::int32_t> tokens,
                              std::vector<Node*>& path) const {
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return 0;
  const auto total = static_cast<std::int32_t>(tokens.size() / page_tokens_);
  const Node* node = root->second.get();
  std::int32_t done = 0;
  while (done < total) {
    Node* child = find_child(node, tokens, done);
    if (child == nullptr) break;
    const std::int32_t common = common_pages(child, tokens, done);
    if (common == 0) break;  // two pages with one hash
    path.push_back(child);
    done += common;
    if (common < child->num_pages()) break;
    node = child;
  }
  return done;
}

std::int32_t RadixCache::usable_length(const std::vector<Node*>& path, std::int32_t num_pages) const {
  std::int32_t usable = num_pages;
  bool changed = true;
  // Each group lowers the length until all agree; a group without a window holds every page of its nodes.
  while (changed && usable > 0) {
    changed = false;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].window_tokens == 0) continue;
      // The token at usable * page_tokens sees the sinks and window - 1 tokens before itself.
      bool sinks = true;
      std::int32_t run = 0;
      std::int32_t best = 0;
      for (const Node* node : path) {
        for (std::int32_t i = 0; i < node->num_pages() && node->first_page + i < usable; ++i) {
          const bool present = node->pages[g][i] != kDummyPage;
          const std::int32_t length = node->first_page + i + 1;
          run = present ? run + 1 : 0;
          sinks = sinks && (present || length > sink_pages(g));
          if (sinks && run >= std::min(length, reach(g))) best = length;
        }
      }
      if (best < usable) {
        usable = best;
        changed = true;
      }
    }
  }
  return usable;
}

std::int32_t RadixCache::match_length(const std::string& salt, std::span<const std::int32_t> tokens) const {
  std::vector<Node*> path;
  const std::int32_t found = walk(salt, tokens, path);
  return usable_length(path, found);
}

RadixCache::Match RadixCache::match(const std::string& salt, std::span<const std::int32_t> tokens) {
  Match result;
  result.pages.resize(groups_.size());
  std::vector<Node*> path;
  const std::int32_t found = walk(salt, tokens, path);
  result.num_pages = usable_length(path, found);
  if (result.num_pages == 0) return result;
  ++clock_;
  for (Node* node : path) {
    if (node->first_page >= result.num_pages) break;
    if (node->end_page() > result.num_pages) node = split(node, result.num_pages - node->first_page);
    touch(node);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      result.pages[g].insert(result.pages[g].end(), node->pages[g].begin(), node->pages[g].end());
    }
    result.node = node;
  }
  return result;
}

RadixCache::Inserted RadixCache::insert(const std::string& salt, std::span<const std::int32_t> tokens,
                                        std::span<const std::span<const std::int32_t>> pages) {
  const auto total = static_cast<std::int32_t>(tokens.size() / page_tokens_);
  Inserted result;
  if (total == 0) return result;
  ++clock_;
  auto& root = roots_[salt];
  if (root == nullptr) {
    root = std::make_unique<Node>();
    root->salt = salt;
  }
  Node* node = root.get();
  std::int32_t done = 0;
  while (done < total) {
    Node* child = find_child(node, tokens, done);
    if (child == nullptr) break;
    const std::int32_t common = common_pages(child, tokens, done);
    if (common == 0) return result;  // two pages with one hash: the rest is not cached
    if (common < child->num_pages()) child = split(child, common);
    touch(child);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (std::int32_t i = 0; i < common; ++i) {
        const std::int32_t page = pages[g][done + i];
        if (child->pages[g][i] != kDummyPage || page == kDummyPage) continue;
        child->pages[g][i] = page;
        groups_[g].pages->cache_ref(page);
        ++child->present[g];
        ++counts_[g].cached;
        if (child->locks > 0) ++counts_[g].locked;
      }
    }
    done += common;
    node = child;
    result = {child, done, done};
  }
  if (done == total) return result;
  auto leaf = std::make_unique<Node>();
  leaf->parent = node;
  leaf->hash = page_hash(tokens, done);
  leaf->first_page = done;
  leaf->id = ++next_id_;
  leaf->last_access = clock_;
  leaf->tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(done) * page_tokens_,
                      tokens.begin() + static_cast<std::ptrdiff_t>(total) * page_tokens_);
  leaf->pages.resize(groups_.size());
  leaf->present.assign(groups_.size(), 0);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    leaf->pages[g].assign(pages[g].begin() + done, pages[g].begin() + total);
    for (const std::int32_t page : leaf->pages[g]) {
      if (page == kDummyPage) continue;
      groups_[g].pages->cache_ref(page);
      ++leaf->present[g];
    }
    counts_[g].cached += leaf->present[g];
  }
  result.node = leaf.get();
  result.num_pages = total;
  if (keeper_ != nullptr || observer_ != nullptr) {
    PageKey key = node->is_root() ? root_key(salt, key_seed_) : node->keys.back();
    for (std::int32_t i = 0; i < total - done; ++i) {
      key = next_key(key, std::span(leaf->tokens).subspan(static_cast<std::size_t>(i) * page_tokens_, page_tokens_),
                     key_seed_);
      leaf->keys.push_back(key);
    }
    if (observer_ != nullptr) {
      PrefixRun run = run_of(leaf.get(), 0, total - done);
      run.salt = salt;
      observer_->on_stored(run);
    }
  }
  node->children.emplace(leaf->hash, std::move(leaf));
  ++num_nodes_;
  update_leaf(node);
  update_leaf(result.node);
  update_unseen(result.node);
  return result;
}

void RadixCache::pages_of(const Node* node, std::size_t group, std::span<std::int32_t> out) const {
  for (; node != nullptr && !node->is_root(); node = node->parent) {
    std::copy(node->pages[group].begin(), node->pages[group].end(), out.begin() + node->first_page);
  }
}

RadixCache::Node* RadixCache::split(Node* node, std::int32_t pages) {
  auto upper = std::make_unique<Node>();
  Node* top = upper.get();
  Node* parent = node->parent;
  top->parent = parent;
  top->hash = node->hash;
  top->first_page = node->first_page;
  top->id = ++next_id_;
  top->locks = node->locks;
  top->last_access = node->last_access;
  const auto cut = static_cast<std::ptrdiff_t>(pages) * page_tokens_;
  top->tokens.assign(node->tokens.begin(), node->tokens.begin() + cut);
  top->pages.resize(groups_.size());
  top->present.assign(groups_.size(), 0);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::vector<std::int32_t>& run = node->pages[g];
    top->pages[g].assign(run.begin(), run.begin() + pages);
    run.erase(run.begin(), run.begin() + pages);
    top->present[g] =
        static_cast<std::int32_t>(pages - std::count(top->pages[g].begin(), top->pages[g].end(), kDummyPage));
    node->present[g] -= top->present[g];
  }
  if (!node->keys.empty()) {
    top->keys.assign(node->keys.begin(), node->keys.begin() + pages);
    node->keys.erase(node->keys.begin(), node->keys.begin() + pages);
  }
  top->seen = std::min(node->seen, pages);
  node->seen -= top->seen;
  node->tokens.erase(node->tokens.begin(), node->tokens.begin() + cut);
  node->first_page += pages;
  node->hash = page_hash(node->tokens, 0);
  // The upper part takes the node's place in the parent, the node hangs below it.
  std::unique_ptr<Node>& place = parent->children[top->hash];
  std::unique_ptr<Node> lower = std::move(place);
  node->parent = top;
  top->children.emplace(node->hash, std::move(lower));
  place = std::move(upper);
  ++num_nodes_;
  update_unseen(top);
  update_unseen(node);
  return top;
}

void RadixCache::touch(Node* node) {
  if (node->in_leaves) {
    leaves_.erase(node);
    node->last_access = clock_;
    leaves_.insert(node);
  } else {
    node->last_access = clock_;
  }
}

void RadixCache::update_leaf(Node* node) {
  const bool should = !node->is_root() && node->children.empty() && node->locks == 0;
  if (should == node->in_leaves) return;
  node->in_leaves = should;
  if (should) {
    leaves_.insert(node);
  } else {
    leaves_.erase(node);
  }
}

void RadixCache::lock(Node* node) {
  for (; node != nullptr && !node->is_root(); node = node->parent) {
    if (node->locks++ > 0) continue;
    for (std::size_t g = 0; g < groups_.size(); ++g) counts_[g].locked += node->present[g];
    update_leaf(node);
  }
}

void RadixCache::unlock(Node* node) {
  for (; node != nullptr && !node->is_root(); node = node->parent) {
    FOVEA_CHECK(node->locks > 0);
    if (--node->locks > 0) continue;
    for (std::size_t g = 0; g < groups_.size(); ++g) counts_[g].locked -= node->present[g];
    update_leaf(node);
  }
}

}  // namespace fovea
