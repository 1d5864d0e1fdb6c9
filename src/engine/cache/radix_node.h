// A node of the radix cache: shared by radix_cache.cc and radix_evict.cc only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/cache/radix_cache.h"

namespace fovea {

struct RadixCache::Node {
  Node* parent = nullptr;
  std::uint64_t hash = 0;                        // of the first page, key in the parent's map
  std::int32_t first_page = 0;                   // pages above
  std::vector<std::int32_t> tokens;              // whole pages
  std::vector<PageKey> keys;                     // [pages of the run] where somebody listens, else empty
  std::int32_t seen = 0;                         // leading pages that the keeper has seen
  std::vector<std::vector<std::int32_t>> pages;  // [group][pages of the run], kDummyPage where dropped
  std::vector<std::int32_t> present;             // [group] entries that are not dropped
  std::unordered_map<std::uint64_t, std::unique_ptr<Node>> children;
  std::int32_t locks = 0;  // sequences that stand on this node or below
  std::uint64_t last_access = 0;
  std::uint64_t id = 0;
  bool in_leaves = false;
  std::string salt;  // of the root only

  std::int32_t num_pages() const { return pages.empty() ? 0 : static_cast<std::int32_t>(pages[0].size()); }
  std::int32_t end_page() const { return first_page + num_pages(); }
  bool is_root() const { return parent == nullptr; }
};

}  // namespace fovea
