// What the prefix cache tells its keeper and its observer.
#include <array>

#include "engine/cache/radix_cache.h"
#include "engine/cache/radix_node.h"

namespace fovea {

PageKey root_key(const std::string& salt, std::uint64_t seed) { return hash128_bytes(salt.data(), salt.size(), seed); }

PageKey next_key(const PageKey& before, std::span<const std::int32_t> page_tokens, std::uint64_t seed) {
  const PageKey own = hash128_bytes(page_tokens.data(), page_tokens.size_bytes(), seed);
  const std::array<std::uint64_t, 4> both = {before.low, before.high, own.low, own.high};
  return hash128_bytes(both.data(), sizeof(both), seed);
}

void RadixCache::tell(PageKeeper* keeper, bool offers, PrefixObserver* observer, std::uint64_t key_seed) {
  FOVEA_CHECK(roots_.empty());
  keeper_ = keeper;
  offers_ = offers && keeper != nullptr;
  observer_ = observer;
  key_seed_ = key_seed;
}

PageKey RadixCache::key_before(const Node* node) const {
  return node->parent->is_root() ? root_key(node->parent->salt, key_seed_) : node->parent->keys.back();
}

PrefixRun RadixCache::run_of(const Node* node, std::int32_t index, std::int32_t count) const {
  PrefixRun run;
  run.before = index == 0 ? key_before(node) : node->keys[index - 1];
  run.first_page = node->first_page + index;
  run.keys = std::span(node->keys).subspan(index, count);
  run.tokens =
      std::span(node->tokens)
          .subspan(static_cast<std::size_t>(index) * page_tokens_, static_cast<std::size_t>(count) * page_tokens_);
  return run;
}

void RadixCache::update_unseen(Node* node) {
  if (!offers_) return;
  if (node->seen < node->num_pages()) {
    unseen_.emplace(node->id, node);
  } else {
    unseen_.erase(node->id);
  }
}

std::int32_t RadixCache::offer(std::int32_t limit) {
  std::int32_t taken = 0;
  std::vector<std::int32_t> pages(groups_.size());
  while (!unseen_.empty()) {
    Node* node = unseen_.begin()->second;
    for (; node->seen < node->num_pages(); ++node->seen, ++taken) {
      if (taken == limit) return taken;
      for (std::size_t g = 0; g < groups_.size(); ++g) pages[g] = node->pages[g][node->seen];
      if (!keeper_->keep(run_of(node, node->seen, 1), pages, false)) return taken;
    }
    update_unseen(node);
  }
  return taken;
}

}  // namespace fovea
