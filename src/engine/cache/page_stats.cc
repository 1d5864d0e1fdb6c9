// See page_stats.h. Layout of a layer: [page][head][sub-page] records.
#include "engine/cache/page_stats.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace fovea {
namespace {

bool holds(const std::vector<std::int32_t>& layers, std::int32_t layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

std::int64_t layer_page_bytes(const KvGroupSpec& group, std::int32_t page_tokens, abi::StatKind kind) {
  return std::int64_t{group.num_kv_heads} * (page_tokens / abi::kSubPageTokens) * abi::stat_bytes(kind, group.head_dim);
}

}  // namespace

std::int64_t PageStats::page_bytes(const KvGroupSpec& group, std::int32_t page_tokens, abi::StatKind kind,
                                   const std::vector<std::int32_t>& layers) {
  if (group.window_tokens > 0) return 0;
  const auto listed =
      std::count_if(group.layers.begin(), group.layers.end(), [&](std::int32_t layer) { return holds(layers, layer); });
  return listed * layer_page_bytes(group, page_tokens, kind);
}

Result<std::unique_ptr<PageStats>> PageStats::create(Backend& backend, const std::vector<KvGroupSpec>& groups,
                                                     const KvPool& pool, abi::StatKind kind, const KeyCodes& codes,
                                                     std::int32_t rotary_dim, const std::vector<std::int32_t>& layers) {
  if (pool.page_tokens() % abi::kSubPageTokens != 0) {
    return unsupported("page selection needs KV pages of a multiple of {} tokens, they have {}", abi::kSubPageTokens,
                       pool.page_tokens());
  }
  auto stats = std::unique_ptr<PageStats>(new PageStats());
  stats->views_.resize(pool.layer_views().size());
  for (const KvGroupSpec& group : groups) {
    if (group.window_tokens > 0) continue;  // its heads of a layer never select
    for (const std::int32_t layer : group.layers) {
      if (!holds(layers, layer)) continue;
      abi::PageStatsView& view = stats->views_[static_cast<std::size_t>(layer)];
      view.kind = kind;
      view.subs_per_page = pool.page_tokens() / abi::kSubPageTokens;
      view.num_heads = group.num_kv_heads;
      view.head_dim = group.head_dim;
      view.rotary_dim = rotary_dim;
      if (kind == abi::StatKind::kCodes) view.codes = codes.of_layer(layer);
      view.num_pages = pool.layer_views()[static_cast<std::size_t>(layer)][0].num_pages;
      view.head_stride = std::int64_t{view.subs_per_page} * abi::stat_bytes(kind, group.head_dim);
      view.page_stride = layer_page_bytes(group, pool.page_tokens(), kind);
      const std::int64_t bytes = view.page_stride * view.num_pages;
      FOVEA_ASSIGN_OR_RETURN(std::shared_ptr<void> memory, backend.allocate(static_cast<std::size_t>(bytes)));
      view.data = memory.get();
      stats->memory_.push_back(std::move(memory));
      stats->bytes_ += bytes;
    }
  }
  return stats;
}

void PageStats::copy_page(std::span<const std::int32_t> layers, std::int32_t from, std::int32_t to) {
  for (const std::int32_t layer : layers) {
    const abi::PageStatsView& view = views_[static_cast<std::size_t>(layer)];
    if (view.data == nullptr) continue;
    auto* base = static_cast<std::byte*>(view.data);
    std::memcpy(base + to * view.page_stride, base + from * view.page_stride,
                static_cast<std::size_t>(view.page_stride));
  }
}

}  // namespace fovea
