// PageStats: the statistics of the KV pool's pages, by page number like the pages themselves: a page that requests
// share, or that the prefix cache keeps, brings its statistics with it. Written by the backend at append
// (engine/runner).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "abi/page_stats.h"
#include "backend/backend.h"
#include "engine/cache/kv_pool.h"
#include "engine/model/key_codes.h"
#include "fovea/status.h"

namespace fovea {

class PageStats {
 public:
  // For the layers listed; rotary_dim: leading channels of a head that RoPE turns; codes must outlive it. kUnsupported
  // where pages are no multiple of a sub-page.
  static Result<std::unique_ptr<PageStats>> create(Backend& backend, const std::vector<KvGroupSpec>& groups,
                                                   const KvPool& pool, abi::StatKind kind, const KeyCodes& codes,
                                                   std::int32_t rotary_dim, const std::vector<std::int32_t>& layers);
  // Bytes that a page of a group takes, for the layers listed.
  static std::int64_t page_bytes(const KvGroupSpec& group, std::int32_t page_tokens, abi::StatKind kind,
                                 const std::vector<std::int32_t>& layers);

  // By model layer; views of layers that are not listed have no data.
  const abi::PageStatsView& view(std::int32_t layer) const { return views_[static_cast<std::size_t>(layer)]; }
  // A page was copied to another.
  void copy_page(std::span<const std::int32_t> layers, std::int32_t from, std::int32_t to);
  std::int64_t bytes() const { return bytes_; }

 private:
  PageStats() = default;

  std::vector<abi::PageStatsView> views_;
  std::vector<std::shared_ptr<void>> memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace fovea
