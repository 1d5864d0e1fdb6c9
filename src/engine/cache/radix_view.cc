// The prefix cache as others see it.
#include <queue>

#include "engine/cache/radix_cache.h"
#include "engine/cache/radix_node.h"

namespace fovea {

std::uint64_t RadixCache::id_of(const Node* node) { return node == nullptr ? 0 : node->id; }

std::vector<PrefixView> RadixCache::view(std::size_t limit) const {
  const auto older = [](const Node* a, const Node* b) {
    return a->last_access != b->last_access ? a->last_access < b->last_access : a->id > b->id;
  };
  std::priority_queue<const Node*, std::vector<const Node*>, decltype(older)> next(older);
  const auto push_children = [&](const Node& node) {
    for (const auto& [hash, child] : node.children) next.push(child.get());
  };
  for (const auto& [salt, root] : roots_) push_children(*root);
  std::vector<PrefixView> out;
  while (!next.empty() && out.size() < limit) {
    const Node& node = *next.top();
    next.pop();
    out.push_back({node.id, node.parent->is_root() ? 0 : node.parent->id, node.first_page, node.num_pages(), node.locks,
                   node.last_access});
    push_children(node);
  }
  return out;
}

}  // namespace fovea
