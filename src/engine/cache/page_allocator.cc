// Free list and holder counts of one KV group's pages.
#include "engine/cache/page_allocator.h"

namespace fovea {

PageAllocator::PageAllocator(std::int32_t num_pages) {
  FOVEA_CHECK(num_pages >= 2);
  holders_.assign(static_cast<std::size_t>(num_pages), 0);
  cached_.assign(static_cast<std::size_t>(num_pages), false);
  free_.reserve(static_cast<std::size_t>(num_pages) - 1);
  for (std::int32_t page = num_pages - 1; page > kDummyPage; --page) free_.push_back(page);
}

std::int32_t PageAllocator::allocate() {
  if (free_.empty()) return kNoPage;
  const std::int32_t page = free_.back();
  free_.pop_back();
  holders_[page] = 1;
  return page;
}

bool PageAllocator::unref(std::int32_t page) {
  check_used(page);
  if (--holders_[page] > 0) {
    if (is_idle(page)) ++num_idle_;
    return false;
  }
  free_.push_back(page);
  return true;
}

std::int32_t PageAllocator::count_shared() const {
  std::int32_t shared = 0;
  for (std::int32_t page = kDummyPage + 1; page <= total(); ++page) shared += is_shared(page) ? 1 : 0;
  return shared;
}

void PageAllocator::cache_ref(std::int32_t page) {
  FOVEA_CHECK(!cached_[page]);
  ref(page);
  cached_[page] = true;
}

bool PageAllocator::cache_unref(std::int32_t page) {
  FOVEA_CHECK(cached_[page]);
  if (is_idle(page)) --num_idle_;
  cached_[page] = false;
  return unref(page);
}

}  // namespace fovea
