// See page_stats.h. Layout of a layer: [page][head][sub-page] records.
#include "engine/cache/page_stats.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"

namespace fovea {
namespace {

bool holds(const std::vector<std::int32_t>& layers, std::int32_t layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

std::int64_t heads_page_bytes(std::int32_t heads, std::int32_t head_dim, std::int32_t page_tokens, abi::StatKind kind) {
  return std::int64_t{heads} * (page_tokens / abi::kSubPageTokens) * abi::stat_bytes(kind, head_dim);
}

}  // namespace

std::int64_t PageStats::page_bytes(const KvGroupSpec& group, std::int32_t page_tokens, abi::StatKind kind,
                                   const std::vector<std::int32_t>& layers) {
  if (group.window_tokens > 0) return 0;
  std::int32_t heads = 0;
  for (std::size_t i = 0; i < group.layers.size(); ++i) heads += holds(layers, group.layers[i]) ? group.heads_of(i) : 0;
  return heads_page_bytes(heads, group.head_dim, page_tokens, kind);
}

Result<std::unique_ptr<PageStats>> PageStats::create(Device& device, const std::vector<KvGroupSpec>& groups,
                                                     const KvPool& pool, abi::StatKind kind,
                                                     const std::vector<const abi::KeyCode*>& codes,
                                                     std::int32_t rotary_dim, const std::vector<std::int32_t>& layers) {
  const std::int32_t page_tokens = pool.page_tokens();
  if (page_tokens % abi::kSubPageTokens != 0) {
    return unsupported("page selection needs KV pages of a multiple of {} tokens, they have {}", abi::kSubPageTokens,
                       page_tokens);
  }
  auto stats = std::unique_ptr<PageStats>(new PageStats(device));
  stats->layers_.resize(pool.layer_views().size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const KvGroupSpec& group = groups[g];
    stats->page_bytes_.push_back(page_bytes(group, page_tokens, kind, layers));
    if (group.window_tokens > 0) continue;  // its heads of a layer never select
    for (std::size_t i = 0; i < group.layers.size(); ++i) {
      const std::int32_t index = group.layers[i];
      if (!holds(layers, index)) continue;
      Layer& layer = stats->layers_[static_cast<std::size_t>(index)];
      layer.kv_group = g;
      layer.heads.resize(static_cast<std::size_t>(group.heads_of(i)));
      std::iota(layer.heads.begin(), layer.heads.end(), 0);
      if (!group.heads.empty()) layer.heads = group.heads[i];
      abi::PageStatsView& view = layer.view;
      view.kind = kind;
      view.subs_per_page = page_tokens / abi::kSubPageTokens;
      view.num_heads = group.heads_of(i);
      view.head_dim = group.head_dim;
      view.rotary_dim = rotary_dim;
      if (kind == abi::StatKind::kCodes) {
        view.codes = codes[static_cast<std::size_t>(std::find(layers.begin(), layers.end(), index) - layers.begin())];
      }
      view.num_pages = pool.pages(g).total() + 1;
      view.head_stride = heads_page_bytes(1, group.head_dim, page_tokens, kind);
      view.page_stride = view.head_stride * view.num_heads;
      FOVEA_ASSIGN_OR_RETURN(std::shared_ptr<void> memory,
                             device.allocate(static_cast<std::size_t>(view.page_stride * view.num_pages)));
      view.data = memory.get();
      stats->memory_.push_back(std::move(memory));
    }
  }
  return stats;
}

abi::PageStatsView PageStats::view(std::int32_t index, const HeadRange& heads) const {
  const Layer& layer = layers_[static_cast<std::size_t>(index)];
  abi::PageStatsView view = layer.view;
  const auto rank = std::lower_bound(layer.heads.begin(), layer.heads.end(), heads.head_begin) - layer.heads.begin();
  view.num_heads = heads.head_end - heads.head_begin;
  view.data = static_cast<std::byte*>(view.data) + rank * view.head_stride;
  if (view.codes != nullptr) view.codes += heads.head_begin;  // of all heads of the layer
  return view;
}

Status PageStats::copy_page(std::size_t kv_group, std::int32_t from, std::int32_t to) {
  for (const Layer& layer : layers_) {
    if (layer.view.data == nullptr || layer.kv_group != kv_group) continue;
    auto* base = static_cast<std::byte*>(layer.view.data);
    FOVEA_RETURN_IF_ERROR(device_.copy(base + to * layer.view.page_stride, base + from * layer.view.page_stride,
                                       static_cast<std::size_t>(layer.view.page_stride)));
  }
  return ok_status();
}

}  // namespace fovea
