// PageAllocator: the pages of one KV group, by number: a free list and a count of holders for each page. Used by KvPool
// (which owns the memory behind the numbers), RadixCache and Scheduler. Single-threaded: the engine's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"

namespace fovea {

inline constexpr std::int32_t kNoPage = -1;
// Page 0 is never handed out: page tables name it where a group has dropped its pages, and it may hold anything.
inline constexpr std::int32_t kDummyPage = 0;

class PageAllocator {
 public:
  // Pages 1 .. num_pages - 1 can be allocated; at least one.
  explicit PageAllocator(std::int32_t num_pages);

  // Pages that can be handed out, used or not.
  std::int32_t total() const { return static_cast<std::int32_t>(holders_.size()) - 1; }
  std::int32_t num_free() const { return static_cast<std::int32_t>(free_.size()); }

  // A page with one holder, or kNoPage when none is left. The page freed last comes first: it may still be in cache.
  std::int32_t allocate();
  void ref(std::int32_t page) {
    check_used(page);
    if (is_idle(page)) --num_idle_;
    ++holders_[page];
  }
  // True when that was the last holder and the page is free again.
  bool unref(std::int32_t page);
  // 0 for a free page.
  std::int32_t holders(std::int32_t page) const { return holders_[page]; }

  // ref() and unref() of the prefix cache, which holds a page once at most.
  void cache_ref(std::int32_t page);
  bool cache_unref(std::int32_t page);
  // Pages that the cache alone holds.
  std::int32_t num_idle() const { return num_idle_; }
  // Whether others than the cache hold it, two at least; and how many such pages there are (looks at each).
  bool is_shared(std::int32_t page) const { return holders_[page] > (cached_[page] ? 2 : 1); }
  std::int32_t count_shared() const;

 private:
  void check_used(std::int32_t page) const { FOVEA_CHECK(page > kDummyPage && page <= total() && holders_[page] > 0); }

  bool is_idle(std::int32_t page) const { return cached_[page] && holders_[page] == 1; }

  std::vector<std::int32_t> holders_;  // [total + 1]
  std::vector<bool> cached_;           // [total + 1] the cache is one of them
  std::int32_t num_idle_ = 0;
  std::vector<std::int32_t> free_;  // stack
};

}  // namespace fovea
