// Room for KV pages in the host's memory, within a budget: slots by KV group, in pieces that are taken from the device
// (pinned, where it copies) as they are needed and kept. Used by KvTier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"

namespace fovea {

class HostPages {
 public:
  // page_bytes: by KV group. The device must outlive it.
  HostPages(Device& device, std::vector<std::int64_t> page_bytes, std::int64_t budget_bytes)
      : device_(device), page_bytes_(std::move(page_bytes)), budget_bytes_(budget_bytes), free_(page_bytes_.size()) {}

  // Null when there is no room.
  std::byte* take(std::size_t group);
  void give_back(std::size_t group, std::byte* slot);

  std::int64_t page_bytes(std::size_t group) const { return page_bytes_[group]; }
  std::int64_t budget_bytes() const { return budget_bytes_; }
  std::int64_t bytes_in_use() const { return bytes_in_use_; }

 private:
  bool grow(std::size_t group);

  Device& device_;
  const std::vector<std::int64_t> page_bytes_;
  std::int64_t budget_bytes_;
  std::int64_t bytes_taken_ = 0;  // from the device
  std::int64_t bytes_in_use_ = 0;
  std::vector<std::vector<std::byte*>> free_;
  std::vector<std::shared_ptr<void>> pieces_;
};

}  // namespace fovea
