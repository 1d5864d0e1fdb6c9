// Prefixes that come back from the host's memory or from files (engine/store) before their request is admitted: pages
// are loaded a slice a step, so that running requests are not held up, and put into the prefix cache, where admission
// finds them.
#include <algorithm>

#include "engine/scheduler/scheduler.h"
#include "engine/store/kv_tier.h"

namespace fovea {
namespace {

// Of a step, beside running requests and without any.
constexpr std::int64_t kSliceBytes = std::int64_t{16} << 20;
constexpr std::int64_t kIdleSliceBytes = std::int64_t{256} << 20;
constexpr std::size_t kMostRestores = 2;
// Without progress the rest is computed.
constexpr std::chrono::seconds kPatience{5};

}  // namespace

void Scheduler::begin_restores() {
  restore_bytes_ = running_.empty() ? kIdleSliceBytes : kSliceBytes;
  const auto now = std::chrono::steady_clock::now();
  for (auto it = restores_.begin(); it != restores_.end();) {
    Sequence* sequence = (it++)->first;
    if (now - restores_.at(sequence).moved > kPatience) end_restore(sequence);
  }
}

void Scheduler::end_restore(Sequence* sequence) {
  const auto found = restores_.find(sequence);
  if (found == restores_.end()) return;
  cache_.unlock(found->second.node);
  restores_.erase(found);
  sequence->restored = true;
}

void Scheduler::end_all_restores() {
  while (!restores_.empty()) end_restore(restores_.begin()->first);
}

std::int32_t Scheduler::restorable_end(const Restore& restore, std::span<const std::int32_t> tokens) const {
  // Pages that each group has without a gap up to here, those before the first in the cache.
  std::vector<std::int32_t> run(groups_.size(), restore.next);
  std::vector<bool> sinks(groups_.size(), true);
  std::int32_t best = restore.next;
  for (std::int32_t i = restore.next; i < static_cast<std::int32_t>(restore.keys.size()); ++i) {
    bool all = true;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const bool there = options_.tier->has(restore.keys[i], page_of(tokens, i), g);
      if (groups_[g].window_tokens == 0 && !there) return best;
      run[g] = there ? run[g] + 1 : 0;
      sinks[g] = sinks[g] && (there || i >= sink_pages(g));
      all = all && sinks[g] && (run[g] > i || !cache_.sees(g, i - run[g], i + 1));
    }
    if (all) best = i + 1;
  }
  return best;
}

// False: nothing of the prompt comes back.
bool Scheduler::begin_restore(Sequence* sequence) {
  const std::span<const std::int32_t> tokens = matchable(*sequence);
  const auto total = static_cast<std::int32_t>(tokens.size()) / options_.page_tokens;
  const RadixCache::Match match = cache_.match(sequence->salt, tokens);
  Restore restore;
  restore.node = match.node;
  restore.next = match.num_pages;
  PageKey key = root_key(sequence->salt, options_.tier->key_seed());
  for (std::int32_t i = 0; i < total && restore.next < total; ++i) {
    key = next_key(key, page_of(tokens, i), options_.tier->key_seed());
    restore.keys.push_back(key);
  }
  restore.end = restore.next < total ? restorable_end(restore, tokens) : restore.next;
  if ((restore.end - restore.next) * options_.page_tokens < options_.min_wait_tokens) {
    sequence->restored = true;
    return false;
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::int32_t needed = 1 + groups_[g].pages->total() / 100;
    for (std::int32_t i = restore.next; i < restore.end; ++i) needed += cache_.sees(g, i, restore.end) ? 1 : 0;
    if (groups_[g].pages->num_free() + cache_.evictable(g) < needed) return false;  // later, if it still waits
  }
  sequence->waits_to_restore = restores_.size() >= kMostRestores;
  if (sequence->waits_to_restore) return true;
  cache_.lock(restore.node);
  restore.moved = std::chrono::steady_clock::now();
  restores_.emplace(sequence, std::move(restore));
  return true;
}

bool Scheduler::wait_for_restore(Sequence* sequence) {
  if (options_.tier == nullptr || !options_.prefix_cache || sequence->restored) return false;
  const bool others_first = sequence->waits_to_restore && restores_.size() >= kMostRestores;
  if (!others_first && !restores_.contains(sequence) && !begin_restore(sequence)) return false;
  const auto found = restores_.find(sequence);
  if (found == restores_.end()) return true;  // others are first
  if (advance_restore(sequence, found->second)) return true;
  end_restore(sequence);
  return false;
}

bool Scheduler::advance_restore(Sequence* sequence, Restore& restore) {
  KvTier& tier = *options_.tier;
  const std::span<const std::int32_t> tokens = matchable(*sequence);
  const auto wanted = [&](std::size_t group, std::int32_t i) { return cache_.sees(group, i, restore.end); };
  std::int64_t ahead = tier.fetch_ahead();
  for (std::int32_t i = restore.next; i < restore.end && ahead > 0; ++i) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (!wanted(g, i)) continue;
      if (tier.fetch(restore.keys[i], page_of(tokens, i), g) == KvTier::Fetch::kMissing) {
        if (i == restore.next) return false;
        ahead = 0;
        break;
      }
      ahead -= tier.page_bytes(g);
    }
  }
  // Pages by group, those that are in the cache left out.
  std::vector<std::vector<std::int32_t>> pages(groups_.size(), std::vector<std::int32_t>(restore.next, kDummyPage));
  std::int32_t end = restore.next;
  bool goes_on = true;
  for (; end < restore.end && restore_bytes_ > 0 && goes_on; ++end) {
    bool here = true;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      here =
          here && (!wanted(g, end) || tier.fetch(restore.keys[end], page_of(tokens, end), g) == KvTier::Fetch::kHere);
    }
    if (!here) break;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      std::int32_t page = kDummyPage;
      if (wanted(g, end)) {
        page = allocate_page(g);
        goes_on = goes_on && page != kNoPage && tier.load(restore.keys[end], g, page).ok();
        restore_bytes_ -= tier.page_bytes(g);
      }
      pages[g].push_back(page == kNoPage ? kDummyPage : page);
    }
    if (!goes_on) break;
  }
  if (!tier.finish_loads().ok()) {
    goes_on = false;
    end = restore.next;
  }
  if (end > restore.next) {
    std::vector<std::span<const std::int32_t>> lists(pages.begin(), pages.end());
    const auto whole = tokens.first(static_cast<std::size_t>(end) * options_.page_tokens);
    const RadixCache::Inserted inserted = cache_.insert(sequence->salt, whole, lists);
    goes_on = goes_on && inserted.num_pages == end;
    if (inserted.num_pages > 0) {
      cache_.lock(inserted.node);
      cache_.unlock(restore.node);
      restore.node = inserted.node;
    }
    restore.moved = std::chrono::steady_clock::now();
  }
  // What the cache took is its own now; the rest, the page that could not be loaded too, is free again.
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const std::int32_t page : pages[g]) {
      if (page != kDummyPage) groups_[g].pages->unref(page);
    }
  }
  restore.next = end;
  return goes_on && restore.next < restore.end;
}

}  // namespace fovea
