#include "engine/model/kv_grouping.h"

#include <algorithm>

namespace fovea {
namespace {

using Heads = std::vector<std::int32_t>;

// Ranges of a layer's heads; full and streaming say in which group each kind is.
std::vector<HeadRange> ranges_of(const std::vector<bool>& streams, std::size_t full, std::size_t streaming) {
  std::vector<HeadRange> ranges;
  for (std::size_t h = 0; h < streams.size(); ++h) {
    const auto head = static_cast<std::int32_t>(h);
    if (h > 0 && streams[h] == streams[h - 1]) {
      ranges.back().head_end = head + 1;
    } else {
      ranges.push_back({head, head + 1, streams[h] ? streaming : full});
    }
  }
  return ranges;
}

bool same(const std::vector<HeadRange>& a, const std::vector<HeadRange>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const HeadRange& x, const HeadRange& y) {
    return x.head_begin == y.head_begin && x.head_end == y.head_end && x.kv_group == y.kv_group;
  });
}

}  // namespace

KvGrouping make_kv_grouping(const ModelConfig& config, const ShardRange& own, const HeadProfile* streaming) {
  KvGrouping layout;
  const auto num_layers = static_cast<std::size_t>(config.num_layers);
  const auto num_heads = static_cast<std::size_t>(own.count);
  const auto num_own = static_cast<std::int32_t>(own.count);
  std::vector<std::int32_t> num_streaming(num_layers, 0);  // on all ranks
  std::vector<std::vector<bool>> streams(num_layers, std::vector<bool>(num_heads, false));
  std::vector<std::size_t> full_group(num_layers, 0);
  KvGroupSpec rings{{}, num_own, config.head_dim, 0, 0, 0, {}, false};
  rings.streaming = true;
  if (streaming != nullptr) {
    rings.window_tokens = streaming->local_tokens;
    rings.prompt_window_tokens = streaming->prefill_local_tokens;
    rings.sink_tokens = streaming->sink_tokens;
    for (const ModelHead& head : streaming->streaming) {
      const auto layer = static_cast<std::size_t>(head.layer);
      ++num_streaming[layer];
      const std::int64_t mine = head.kv_head - own.begin;
      if (mine >= 0 && mine < own.count) streams[layer][static_cast<std::size_t>(mine)] = true;
    }
  }
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    const auto index = static_cast<std::int32_t>(layer);
    Heads full, ring;
    for (std::size_t h = 0; h < num_heads; ++h)
      (streams[layer][h] ? ring : full).push_back(static_cast<std::int32_t>(h));
    if (!ring.empty()) {
      rings.layers.push_back(index);
      rings.heads.push_back(ring);
    }
    if (num_streaming[layer] == config.num_kv_heads) continue;
    const std::int32_t window = config.layer_window[layer];
    auto group = std::find_if(layout.groups.begin(), layout.groups.end(),
                              [&](const KvGroupSpec& candidate) { return candidate.window_tokens == window; });
    if (group == layout.groups.end()) {
      layout.groups.push_back({{}, num_own, config.head_dim, window, 0, 0, {}, false});
      group = layout.groups.end() - 1;
    }
    if (!full.empty()) {
      group->layers.push_back(index);
      group->heads.push_back(full);
    }
    full_group[layer] = static_cast<std::size_t>(group - layout.groups.begin());
  }
  const std::size_t ring_group = layout.groups.size();
  if (streaming != nullptr && !streaming->streaming.empty()) layout.groups.push_back(std::move(rings));
  for (KvGroupSpec& group : layout.groups) {
    const bool all = std::all_of(group.heads.begin(), group.heads.end(),
                                 [&](const Heads& heads) { return heads.size() == num_heads; });
    if (all) group.heads.clear();
  }
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    const std::vector<HeadRange> ranges = ranges_of(streams[layer], full_group[layer], ring_group);
    auto group = std::find_if(layout.attention.begin(), layout.attention.end(),
                              [&](const AttentionGroupSpec& candidate) { return same(candidate.ranges, ranges); });
    if (group == layout.attention.end()) {
      layout.attention.push_back({{}, ranges});
      group = layout.attention.end() - 1;
    }
    group->layers.push_back(static_cast<std::int32_t>(layer));
    layout.attention_of.push_back(static_cast<std::size_t>(group - layout.attention.begin()));
  }
  return layout;
}

}  // namespace fovea
