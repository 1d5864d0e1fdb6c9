// ReqToTokenPool: where the tokens of each running sequence stand. A slot a sequence; in it, for each KV group, a page
// list of fixed stride, so that growing a sequence moves nothing. Written by Scheduler, read by ModelRunner.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/page_allocator.h"

namespace fovea {

class ReqToTokenPool {
 public:
  static constexpr std::int32_t kNoSlot = -1;

  // stride: most pages of a sequence.
  ReqToTokenPool(std::int32_t num_slots, std::int32_t num_groups, std::int32_t stride);

  std::int32_t num_slots() const { return num_slots_; }
  std::int32_t num_free() const { return static_cast<std::int32_t>(free_.size()); }
  std::int32_t num_groups() const { return num_groups_; }
  std::int32_t stride() const { return stride_; }

  // A slot with empty lists, or kNoSlot.
  std::int32_t allocate();
  void release(std::int32_t slot);

  // Entries of a slot's list: all the stride; the first length() of them are set.
  std::span<std::int32_t> row(std::int32_t slot, std::int32_t group) {
    return {entries_.data() + index(slot, group) * stride_, static_cast<std::size_t>(stride_)};
  }
  std::span<const std::int32_t> row(std::int32_t slot, std::int32_t group) const {
    return {entries_.data() + index(slot, group) * stride_, static_cast<std::size_t>(stride_)};
  }
  std::int32_t length(std::int32_t slot, std::int32_t group) const { return lengths_[index(slot, group)]; }
  void push(std::int32_t slot, std::int32_t group, std::int32_t page);
  // Replaces an entry; readers that copied the row see it by version().
  void set(std::int32_t slot, std::int32_t group, std::int32_t entry, std::int32_t page);
  // Makes the list what it is in another pool: the entries from `begin` on, and its version. Not beside allocate().
  void mirror(std::int32_t slot, std::int32_t group, std::uint64_t version, std::int32_t begin,
              std::span<const std::int32_t> pages);
  // Grows whenever entries that were there may have changed (not by push): with allocate() and set().
  std::uint64_t version(std::int32_t slot, std::int32_t group) const { return versions_[index(slot, group)]; }

 private:
  std::size_t index(std::int32_t slot, std::int32_t group) const {
    return static_cast<std::size_t>(slot) * num_groups_ + group;
  }

  std::int32_t num_slots_;
  std::int32_t num_groups_;
  std::int32_t stride_;
  std::vector<std::int32_t> entries_;    // [slots, groups, stride]
  std::vector<std::int32_t> lengths_;    // [slots, groups]
  std::vector<std::uint64_t> versions_;  // [slots, groups]
  std::uint64_t next_version_ = 0;
  std::vector<bool> used_;
  std::vector<std::int32_t> free_;
};

}  // namespace fovea
