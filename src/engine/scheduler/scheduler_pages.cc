// The scheduler's pages: reserving, publishing to the cache, giving up what left a window, and the integrity check.
#include <algorithm>

#include "base/status.h"
#include "engine/scheduler/scheduler.h"

namespace fovea {

std::int32_t Scheduler::most_pages(std::size_t group, std::int32_t tokens) const {
  const std::int32_t all = pages_for(tokens);
  if (groups_[group].window_tokens == 0) return all;
  // The sinks, the window, a page cut at either end, and the chunk that is being computed.
  return std::min(all,
                  sink_pages(group) + pages_for(groups_[group].most_window()) + pages_for(options_.chunk_tokens) + 2);
}

std::int32_t Scheduler::held_pages(std::size_t group, const Sequence& sequence) const {
  const std::int32_t given_up = std::max(0, sequence.dropped[group] - sink_pages(group));
  return rows_.length(sequence.slot, static_cast<std::int32_t>(group)) - given_up;
}

std::int32_t Scheduler::window_begin(std::size_t group, const Sequence& sequence, std::int32_t position) const {
  const RadixCache::Group& g = groups_[group];
  if (g.window_tokens == 0) return 0;
  const std::int32_t window = position < sequence.prompt_length ? g.most_window() : g.window_tokens;
  return std::max(sink_pages(group), (position - (window - 1)) / options_.page_tokens);
}

std::int32_t Scheduler::shareable(const Sequence& sequence, std::int32_t count) const {
  // Where prompts see more than what is generated, an answer is not what the same tokens in a prompt would be.
  const bool differ = std::any_of(groups_.begin(), groups_.end(), [](const RadixCache::Group& group) {
    return group.prompt_window_tokens > group.window_tokens;
  });
  // Nor is the KV of a token that selected pages what it would be, had the token read all, or selected others.
  const std::int32_t alike = std::min(count, sequence.sparse.dense_tokens());
  return differ ? std::min(alike, sequence.prompt_length) : alike;
}

std::span<const std::int32_t> Scheduler::matchable(const Sequence& sequence) const {
  // The last token is computed anyway.
  std::int32_t count = shareable(sequence, sequence.length() - 1);
  if (sequence.scored >= 0) count = std::min(count, sequence.scored);  // logits come with computing
  return std::span<const std::int32_t>(sequence.tokens).first(static_cast<std::size_t>(count));
}

std::int32_t Scheduler::allocate_page(std::size_t group) {
  PageAllocator& pages = *groups_[group].pages;
  if (pages.num_free() == 0) {
    // Several at a time; few where each is copied, so that no step waits for many.
    cache_.evict(group, 1 + std::min(pages.total() / 128, options_.tier == nullptr ? pages.total() : 16));
  }
  return pages.allocate();
}

std::int32_t Scheduler::reserve(Sequence* sequence, std::int32_t count) {
  const std::int32_t slot = sequence->slot;
  const std::int32_t offset = sequence->computed % options_.page_tokens;
  std::int32_t room = count;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto group = static_cast<std::int32_t>(g);
    // A page in use beside a sibling is copied before it is written.
    if (offset != 0) {
      const std::int32_t entry = sequence->computed / options_.page_tokens;
      const std::int32_t shared = rows_.row(slot, group)[entry];
      if (groups_[g].pages->holders(shared) > 1) {
        const std::int32_t own = allocate_page(g);
        if (own == kNoPage) return 0;
        step_.copies.push_back({g, shared, own});
        groups_[g].pages->unref(shared);
        rows_.set(slot, group, entry, own);
      }
    }
    const std::int32_t wanted = pages_for(sequence->computed + count);
    while (rows_.length(slot, group) < wanted) {
      const std::int32_t page = allocate_page(g);
      if (page == kNoPage) break;
      rows_.push(slot, group, page);
    }
    room = std::min(room, rows_.length(slot, group) * options_.page_tokens - sequence->computed);
  }
  return room;
}

void Scheduler::publish(Sequence* sequence) {
  if (!options_.prefix_cache) return;
  const std::int32_t pages = shareable(*sequence, sequence->computed) / options_.page_tokens;
  if (pages <= sequence->published) return;
  std::vector<std::span<const std::int32_t>> lists;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    lists.push_back(rows_.row(sequence->slot, static_cast<std::int32_t>(g)));
  }
  const auto tokens =
      std::span<const std::int32_t>(sequence->tokens).first(static_cast<std::size_t>(pages) * options_.page_tokens);
  const RadixCache::Inserted inserted = cache_.insert(sequence->salt, tokens, lists);
  if (inserted.num_pages <= sequence->published) return;  // two hashes met: this sequence stays out of the cache
  std::vector<std::int32_t> shared(inserted.num_pages);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    cache_.pages_of(inserted.node, g, shared);
    for (std::int32_t i = sequence->published; i < inserted.num_pages; ++i) {
      const std::int32_t mine = lists[g][i];
      if (mine == kDummyPage || mine == shared[i]) continue;
      groups_[g].pages->ref(shared[i]);
      groups_[g].pages->unref(mine);
      rows_.set(sequence->slot, static_cast<std::int32_t>(g), i, shared[i]);
    }
  }
  cache_.lock(inserted.node);
  cache_.unlock(sequence->node);
  sequence->node = inserted.node;
  sequence->published = inserted.num_pages;
}

void Scheduler::drop_left_of_window(Sequence* sequence, std::int32_t position) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].window_tokens == 0) continue;
    const auto group = static_cast<std::int32_t>(g);
    const std::int32_t begin = window_begin(g, *sequence, position);
    std::int32_t& dropped = sequence->dropped[g];
    for (; dropped < begin; ++dropped) {
      groups_[g].pages->unref(rows_.row(sequence->slot, group)[dropped]);
      rows_.set(sequence->slot, group, dropped, kDummyPage);
    }
  }
}

void Scheduler::release(Sequence* sequence) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto group = static_cast<std::int32_t>(g);
    const auto row = rows_.row(sequence->slot, group);
    // From the end, so that the next sequence finds the first pages on top of the free list.
    for (std::int32_t i = rows_.length(sequence->slot, group) - 1; i >= 0; --i) {
      if (row[i] != kDummyPage) groups_[g].pages->unref(row[i]);
    }
  }
  rows_.release(sequence->slot);
  sequence->slot = ReqToTokenPool::kNoSlot;
  cache_.unlock(sequence->node);
  sequence->node = nullptr;
  sequence->published = 0;
}

Status Scheduler::check() const {
  FOVEA_RETURN_IF_ERROR(cache_.check());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const PageAllocator& pages = *groups_[g].pages;
    std::vector<std::int32_t> cached(pages.total() + 1, 0);
    cache_.count_holders(g, cached);
    std::vector<std::int32_t> held(pages.total() + 1, 0);
    for (const Sequence* sequence : running_) {
      const auto row = rows_.row(sequence->slot, static_cast<std::int32_t>(g));
      for (std::int32_t i = 0; i < rows_.length(sequence->slot, static_cast<std::int32_t>(g)); ++i) {
        if (row[i] == kDummyPage && (i < sink_pages(g) || i >= sequence->dropped[g])) {
          return internal_error("scheduler: sequence {} lacks page {} of group {}", sequence->id, i, g);
        }
        if (row[i] != kDummyPage) ++held[row[i]];
      }
    }
    std::int32_t in_flight = 0;
    std::int32_t idle = 0;
    for (std::int32_t page = 1; page <= pages.total(); ++page) {
      idle += cached[page] > 0 && held[page] == 0 ? 1 : 0;
      if (held[page] + cached[page] != pages.holders(page)) {
        return internal_error("scheduler: page {} of group {} has {} holders, but {} sequences list it and {} nodes",
                              page, g, pages.holders(page), held[page], cached[page]);
      }
      if (held[page] > 0 && cached[page] == 0) ++in_flight;
    }
    if (idle != pages.num_idle()) {
      return internal_error("scheduler: group {} has {} pages that the cache alone holds, counted {}", g, idle,
                            pages.num_idle());
    }
    if (pages.num_free() + cache_.cached(g) + in_flight != pages.total()) {
      return internal_error("scheduler: group {} has {} free, {} cached, {} in flight of {} pages", g, pages.num_free(),
                            cache_.cached(g), in_flight, pages.total());
    }
  }
  if (rows_.num_slots() - rows_.num_free() != static_cast<std::int32_t>(running_.size())) {
    return internal_error("scheduler: {} slots in use by {} running sequences", rows_.num_slots() - rows_.num_free(),
                          running_.size());
  }
  return ok_status();
}

}  // namespace fovea
