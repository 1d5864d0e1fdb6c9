// Sizes the KV groups, allocates their memory and describes it to kernels.
#include "engine/cache/kv_pool.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace fovea {
namespace {

constexpr std::int32_t kMaxPages = 1 << 26;

std::int64_t group_page_bytes(const KvGroupSpec& group, const KvPoolOptions& options) {
  return std::int64_t{2} * options.page_tokens * group.num_kv_heads * group.head_dim * dtype_bits(options.dtype) / 8 *
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
  if (options.dtype != DType::kF32 && options.dtype != DType::kF16 && options.dtype != DType::kBF16) {
    return unsupported("KV cache of {}; expected f32, f16 or bf16", dtype_name(options.dtype));
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
    const std::int64_t page_elements = std::int64_t{options.page_tokens} * spec.num_kv_heads * spec.head_dim;
    const std::int64_t tensor_bytes = counts[g] * page_elements * dtype_bits(options.dtype) / 8;
    Group group{PageAllocator(static_cast<std::int32_t>(counts[g])), spec.layers, group_page_bytes(spec, options),
                nullptr};
    FOVEA_ASSIGN_OR_RETURN(group.memory, backend.allocate(static_cast<std::size_t>(counts[g] * group.page_bytes)));
    for (std::size_t i = 0; i < spec.layers.size(); ++i) {
      abi::KvPoolView& view = pool->views_[spec.layers[i]];
      view = {};
      view.k = static_cast<std::byte*>(group.memory.get()) + 2 * i * tensor_bytes;
      view.v = static_cast<std::byte*>(group.memory.get()) + (2 * i + 1) * tensor_bytes;
      view.page_stride = page_elements;
      // Heads first: what a KV head reads of a page is one piece, which decode reads faster than rows at a stride.
      view.token_stride = spec.head_dim;
      view.head_stride = std::int64_t{options.page_tokens} * spec.head_dim;
      view.num_pages = static_cast<std::int32_t>(counts[g]);
      view.page_tokens = options.page_tokens;
      view.entry_tokens = options.page_tokens;
      view.entries_per_page = 1;
      view.dtype = static_cast<abi::KvDType>(options.dtype);
      view.granularity = abi::ScaleGranularity::kNone;
    }
    pool->groups_.push_back(std::move(group));
  }
  return pool;
}

void KvPool::copy_page(std::size_t group, std::int32_t from, std::int32_t to) {
  for (const std::int32_t layer : groups_[group].layers) {
    const abi::KvPoolView& view = views_[layer];
    const std::int64_t bytes = view.page_stride * dtype_bits(options_.dtype) / 8;
    for (void* tensor : {view.k, view.v}) {
      auto* base = static_cast<std::byte*>(tensor);
      std::memcpy(base + to * bytes, base + from * bytes, static_cast<std::size_t>(bytes));
    }
  }
}

}  // namespace fovea
