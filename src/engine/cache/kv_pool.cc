// Sizes the KV groups, allocates their memory and describes it to kernels.
#include "engine/cache/kv_pool.h"

#include <algorithm>

#include "base/status.h"

namespace fovea {
namespace {

constexpr std::int32_t kMaxPages = 1 << 26;

std::int64_t group_page_bytes(const KvGroupSpec& group, const KvPoolOptions& options) {
  return std::int64_t{options.page_tokens} * group.num_kv_heads *
         kv_token_bytes(KvPool::format_of(group, options.format), group.head_dim) *
         static_cast<std::int64_t>(group.layers.size());
}

// Pages of a group with a window that all running sequences and as many cached ends of sequences can fill.
std::int64_t useful_window_pages(const KvGroupSpec& group, const KvPoolOptions& options) {
  const std::int64_t window = (group.window_tokens + options.page_tokens - 1) / options.page_tokens + 2;
  const std::int64_t chunk = options.max_forward_tokens / options.page_tokens + 1;
  return 1 + 2 * options.max_running * window + chunk;
}

}  // namespace

Result<std::unique_ptr<KvPool>> KvPool::create(Backend& backend, const std::vector<KvGroupSpec>& groups,
                                               const KvPoolOptions& options) {
  for (const KvGroupSpec& group : groups) {
    FOVEA_RETURN_IF_ERROR(check_kv_format(options.format, group.head_dim));
  }
  // Every group gets the same number of pages, except that groups with a window give back what they cannot use.
  std::int64_t page_bytes_of_all = 0;
  for (const KvGroupSpec& group : groups) page_bytes_of_all += group_page_bytes(group, options);
  std::int64_t bytes_left = options.bytes;
  const std::int64_t even = options.bytes / std::max<std::int64_t>(page_bytes_of_all, 1);
  std::vector<std::int64_t> counts(groups.size(), 0);
  std::int64_t full_page_bytes = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].window_tokens == 0) {
      full_page_bytes += group_page_bytes(groups[g], options);
      continue;
    }
    counts[g] = std::min(even, useful_window_pages(groups[g], options));
    bytes_left -= counts[g] * group_page_bytes(groups[g], options);
  }
  auto pool = std::unique_ptr<KvPool>(new KvPool(options));
  std::int32_t num_layers = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].window_tokens == 0) counts[g] = bytes_left / full_page_bytes;
    counts[g] = std::min<std::int64_t>(counts[g], kMaxPages);
    if (counts[g] < 2) {
      return resource_exhausted(
          "KV cache of {} bytes holds no page of {} tokens for every layer ({} bytes each, and one spare); give it "
          "more",
          options.bytes, options.page_tokens, page_bytes_of_all);
    }
    for (const std::int32_t layer : groups[g].layers) num_layers = std::max(num_layers, layer + 1);
  }
  pool->views_.resize(num_layers);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const KvGroupSpec& spec = groups[g];
    Group group{PageAllocator(static_cast<std::int32_t>(counts[g])), spec.layers, group_page_bytes(spec, options),
                nullptr};
    FOVEA_ASSIGN_OR_RETURN(group.memory, backend.allocate(static_cast<std::size_t>(counts[g] * group.page_bytes)));
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
      abi::KvPoolView& view = pool->views_[spec.layers[i]];
      view = {};
      view.num_pages = static_cast<std::int32_t>(counts[g]);
      view.page_tokens = options.page_tokens;
      place_kv(format_of(spec, options.format), spec.num_kv_heads, spec.head_dim,
               static_cast<std::byte*>(group.memory.get()) + static_cast<std::int64_t>(i) * counts[g] *
                                                                 group.page_bytes /
                                                                 static_cast<std::int64_t>(spec.layers.size()),
               view);
    }
    pool->groups_.push_back(std::move(group));
  }
  return pool;
}

void KvPool::copy_page(std::size_t group, std::int32_t from, std::int32_t to) {
  for (const std::int32_t layer : groups_[group].layers) copy_kv_page(views_[layer], from, to);
}

}  // namespace fovea
