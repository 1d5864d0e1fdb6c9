// Slots and page lists of the running sequences.
#include "engine/cache/req_to_token_pool.h"

#include <algorithm>

namespace fovea {

ReqToTokenPool::ReqToTokenPool(std::int32_t num_slots, std::int32_t num_groups, std::int32_t stride)
    : num_slots_(num_slots), num_groups_(num_groups), stride_(stride) {
  FOVEA_CHECK(num_slots > 0 && num_groups > 0 && stride > 0);
  const std::size_t lists = static_cast<std::size_t>(num_slots) * num_groups;
  entries_.assign(lists * stride, kDummyPage);
  lengths_.assign(lists, 0);
  versions_.assign(lists, 0);
  used_.assign(num_slots, false);
  for (std::int32_t slot = num_slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

std::int32_t ReqToTokenPool::allocate() {
  if (free_.empty()) return kNoSlot;
  const std::int32_t slot = free_.back();
  free_.pop_back();
  used_[slot] = true;
  for (std::int32_t group = 0; group < num_groups_; ++group) {
    lengths_[index(slot, group)] = 0;
    versions_[index(slot, group)] = ++next_version_;
  }
  return slot;
}

void ReqToTokenPool::release(std::int32_t slot) {
  FOVEA_CHECK(slot >= 0 && slot < num_slots_ && used_[slot]);
  used_[slot] = false;
  free_.push_back(slot);
}

void ReqToTokenPool::push(std::int32_t slot, std::int32_t group, std::int32_t page) {
  std::int32_t& length = lengths_[index(slot, group)];
  FOVEA_CHECK(length < stride_);
  row(slot, group)[length++] = page;
}

void ReqToTokenPool::set(std::int32_t slot, std::int32_t group, std::int32_t entry, std::int32_t page) {
  FOVEA_CHECK(entry >= 0 && entry < length(slot, group));
  row(slot, group)[entry] = page;
  versions_[index(slot, group)] = ++next_version_;
}

void ReqToTokenPool::mirror(std::int32_t slot, std::int32_t group, std::uint64_t version, std::int32_t begin,
                            std::span<const std::int32_t> pages) {
  const auto count = static_cast<std::int32_t>(pages.size());
  FOVEA_CHECK(begin >= 0 && count <= stride_ - begin);
  std::copy(pages.begin(), pages.end(), row(slot, group).begin() + begin);
  lengths_[index(slot, group)] = begin + count;
  versions_[index(slot, group)] = version;
}

}  // namespace fovea
