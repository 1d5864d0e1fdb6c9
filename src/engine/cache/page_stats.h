// PageStats: the statistics of the KV pool's pages, by page number like the pages themselves: a page that requests
// share, or that the prefix cache keeps, brings its statistics with it. Written by the device at append
// (engine/runner).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "abi/page_stats.h"
#include "device/device.h"
#include "engine/cache/kv_pool.h"
#include "fovea/status.h"

namespace fovea {

class PageStats {
 public:
  // For the layers listed; rotary_dim: leading channels of a head that RoPE turns; codes: [KV heads] of each of the
  // layers, where the device reads them, or empty. Device and codes must outlive it. kUnsupported where pages are no
  // multiple of a sub-page.
  static Result<std::unique_ptr<PageStats>> create(Device& device, const std::vector<KvGroupSpec>& groups,
                                                   const KvPool& pool, abi::StatKind kind,
                                                   const std::vector<const abi::KeyCode*>& codes,
                                                   std::int32_t rotary_dim, const std::vector<std::int32_t>& layers);
  // Bytes that a page of a group takes, for the layers listed; heads that stream, and those with a window, have none.
  static std::int64_t page_bytes(const KvGroupSpec& group, std::int32_t page_tokens, abi::StatKind kind,
                                 const std::vector<std::int32_t>& layers);

  // Of neighbouring heads of a layer that are in one group; head 0 of the view is the first of them.
  abi::PageStatsView view(std::int32_t layer, const HeadRange& heads) const;
  // A page of a group was copied to another.
  Status copy_page(std::size_t kv_group, std::int32_t from, std::int32_t to);
  // Of a group's page.
  std::int64_t page_bytes(std::size_t kv_group) const { return page_bytes_[kv_group]; }

 private:
  // Heads of a layer that have statistics.
  struct Layer {
    std::size_t kv_group = 0;
    std::vector<std::int32_t> heads;  // ascending; head i of the view is heads[i]
    abi::PageStatsView view{};        // without data where the layer has none
  };
  explicit PageStats(Device& device) : device_(device) {}

  Device& device_;
  std::vector<Layer> layers_;             // by model layer
  std::vector<std::int64_t> page_bytes_;  // by group
  std::vector<std::shared_ptr<void>> memory_;
};

}  // namespace fovea
