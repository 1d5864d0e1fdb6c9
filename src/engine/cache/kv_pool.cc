// Sizes the KV groups, allocates their memory and describes it to kernels.
#include "engine/cache/kv_pool.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "engine/ranks/agreement.h"

namespace fovea {
namespace {

constexpr std::int32_t kMaxPages = 1 << 26;

std::int64_t layer_page_bytes(const KvGroupSpec& group, std::size_t layer, const KvPoolOptions& options) {
  return std::int64_t{options.page_tokens} * group.heads_of(layer) *
         kv_token_bytes(KvPool::format_of(group, options.format), group.head_dim);
}

std::int64_t group_page_bytes(const KvGroupSpec& group, const KvPoolOptions& options) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < group.layers.size(); ++i) bytes += layer_page_bytes(group, i, options);
  return bytes;
}

// Pages of a group with a window that all running sequences and as many cached ends of sequences can fill.
std::int64_t useful_window_pages(const KvGroupSpec& group, const KvPoolOptions& options) {
  const auto pages_for = [&](std::int64_t tokens) { return (tokens + options.page_tokens - 1) / options.page_tokens; };
  const std::int64_t window = pages_for(group.most_window()) + 2 + pages_for(group.sink_tokens);
  const std::int64_t chunk = options.max_forward_tokens / options.page_tokens + 1;
  return 1 + 2 * options.max_running * window + chunk;
}

}  // namespace

Result<std::unique_ptr<KvPool>> KvPool::create(Device& device, const std::vector<KvGroupSpec>& groups,
                                               const std::vector<AttentionGroupSpec>& attention,
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
  if (groups.size() > abi::kMostTokenMoves) {
    return unsupported("a model of {} groups of KV heads, expected at most {}", groups.size(), abi::kMostTokenMoves);
  }
  auto pool = std::unique_ptr<KvPool>(new KvPool(device, options));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    // A rank may have no heads of a group.
    if (groups[g].window_tokens == 0) counts[g] = bytes_left / std::max<std::int64_t>(full_page_bytes, 1);
    counts[g] = std::min<std::int64_t>(counts[g], kMaxPages);
  }
  if (device.group() != nullptr) FOVEA_RETURN_IF_ERROR(take_least(*device.group(), counts));
  for (const std::int64_t count : counts) {
    if (count < 2) {
      return resource_exhausted(
          "KV cache of {} bytes holds no page of {} tokens for every layer ({} bytes each, and one spare); give it "
          "more",
          options.bytes, options.page_tokens, page_bytes_of_all);
    }
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    FOVEA_RETURN_IF_ERROR(pool->allocate_group(device, groups[g], static_cast<std::int32_t>(counts[g])));
  }
  pool->make_views(groups, attention);
  FOVEA_RETURN_IF_ERROR(pool->make_planes());
  return pool;
}

Status KvPool::allocate_group(Device& device, const KvGroupSpec& spec, std::int32_t num_pages) {
  Group group{PageAllocator(num_pages), group_page_bytes(spec, options_), nullptr, {}};
  auto memory = device.allocate(static_cast<std::size_t>(num_pages * group.page_bytes));
  if (!memory.ok()) {
    return make_status(memory.status().code(),
                       "the KV cache of {} pages: {}; ask for a smaller one (kv_cache_bytes, --kv-cache-mib)",
                       num_pages, memory.status().message());
  }
  group.memory = std::move(*memory);
  auto* next = static_cast<std::byte*>(group.memory.get());
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    abi::KvPoolView view{};
    view.num_pages = num_pages;
    view.page_tokens = options_.page_tokens;
    place_kv(format_of(spec, options_.format), spec.heads_of(i), spec.head_dim, next, view);
    next += num_pages * layer_page_bytes(spec, i, options_);
    group.layers.push_back(view);
  }
  groups_.push_back(std::move(group));
  return ok_status();
}

void KvPool::make_views(const std::vector<KvGroupSpec>& groups, const std::vector<AttentionGroupSpec>& attention) {
  for (const AttentionGroupSpec& planned : attention) {
    for (const std::int32_t layer : planned.layers) {
      if (static_cast<std::size_t>(layer) >= views_.size()) views_.resize(static_cast<std::size_t>(layer) + 1);
      for (const HeadRange& range : planned.ranges) {
        const KvGroupSpec& spec = groups[range.kv_group];
        const auto nth = std::lower_bound(spec.layers.begin(), spec.layers.end(), layer) - spec.layers.begin();
        std::int32_t rank = range.head_begin;  // in the pool
        if (!spec.heads.empty()) {
          const std::vector<std::int32_t>& heads = spec.heads[static_cast<std::size_t>(nth)];
          rank =
              static_cast<std::int32_t>(std::lower_bound(heads.begin(), heads.end(), range.head_begin) - heads.begin());
        }
        views_[static_cast<std::size_t>(layer)].push_back(
            abi::shift_heads(groups_[range.kv_group].layers[static_cast<std::size_t>(nth)], range.head_begin - rank));
      }
    }
  }
}

Status KvPool::save_page(std::size_t group, std::int32_t page, std::byte* to) {
  FOVEA_RETURN_IF_ERROR(move_tokens());
  for (const abi::KvPoolView& view : groups_[group].layers) {
    FOVEA_RETURN_IF_ERROR(for_each_piece(view, page, [&](std::byte* piece, std::size_t bytes) {
      to += bytes;
      return device_.copy_to_host(to - bytes, piece, bytes);
    }));
  }
  return ok_status();
}

Status KvPool::load_page(std::size_t group, std::int32_t page, const std::byte* from) {
  FOVEA_RETURN_IF_ERROR(move_tokens());
  for (const abi::KvPoolView& view : groups_[group].layers) {
    FOVEA_RETURN_IF_ERROR(for_each_piece(view, page, [&](std::byte* piece, std::size_t bytes) {
      from += bytes;
      return device_.copy_from_host(piece, from - bytes, bytes);
    }));
  }
  return ok_status();
}

// Of every layer of every group: K, V and, where tokens have scales, those.
Status KvPool::make_planes() {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const abi::KvPoolView& view : groups_[g].layers) {
      const auto add = [&](void* base, long long page_stride, long long head_stride, long long row, int bits) {
        abi::KvPlane plane{};
        plane.base = base;
        plane.page_stride = page_stride * bits / 8;
        plane.head_stride = head_stride * bits / 8;
        plane.row_bytes = static_cast<std::uint32_t>(row * bits / 8);
        plane.heads = static_cast<std::uint32_t>(page_stride / head_stride);
        plane.group = static_cast<std::uint32_t>(g);
        planes_.push_back(plane);
      };
      if (view.page_stride == 0) continue;  // a rank may have no heads of a group
      const int bits = abi::kv_bits(view.dtype);
      add(view.k, view.page_stride, view.head_stride, view.token_stride, bits);
      add(view.v, view.page_stride, view.head_stride, view.token_stride, bits);
      if (view.granularity != abi::ScaleGranularity::kTokenHead) continue;
      constexpr int kScaleBits = 8 * sizeof(abi::KvScale);
      add(view.k_scale, view.scale_page_stride, view.scale_head_stride, 1, kScaleBits);
      add(view.v_scale, view.scale_page_stride, view.scale_head_stride, 1, kScaleBits);
    }
  }
  if (device_.reads_host_memory() || planes_.empty()) return ok_status();
  const std::size_t bytes = planes_.size() * sizeof(abi::KvPlane);
  FOVEA_ASSIGN_OR_RETURN(const std::shared_ptr<void> host, device_.allocate_host(bytes));
  FOVEA_ASSIGN_OR_RETURN(planes_on_device_, device_.allocate(bytes));
  std::memcpy(host.get(), planes_.data(), bytes);
  FOVEA_RETURN_IF_ERROR(device_.copy_from_host(planes_on_device_.get(), host.get(), bytes));
  return device_.wait();
}

void KvPool::move_token(std::span<const abi::TokenMove> by_group) {
  waiting_moves_.insert(waiting_moves_.end(), by_group.begin(), by_group.end());
}

Status KvPool::move_tokens() {
  if (waiting_moves_.empty()) return ok_status();
  abi::MoveTokensArgs args{};
  args.planes =
      planes_on_device_ == nullptr ? planes_.data() : static_cast<const abi::KvPlane*>(planes_on_device_.get());
  args.num_planes = static_cast<std::uint32_t>(planes_.size());
  args.num_groups = static_cast<std::uint32_t>(groups_.size());
  args.page_tokens = static_cast<std::uint32_t>(options_.page_tokens);
  const std::size_t most = abi::kMostTokenMoves / groups_.size() * groups_.size();
  while (!waiting_moves_.empty()) {
    const std::size_t count = std::min(waiting_moves_.size(), most);
    const auto end = waiting_moves_.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(waiting_moves_.begin(), end, args.moves);
    args.num_moves = static_cast<std::uint32_t>(count / groups_.size());
    FOVEA_RETURN_IF_ERROR(device_.move_tokens(args));
    waiting_moves_.erase(waiting_moves_.begin(), end);
  }
  return ok_status();
}

Status KvPool::copy_page(std::size_t group, std::int32_t from, std::int32_t to) {
  FOVEA_RETURN_IF_ERROR(move_tokens());
  for (const abi::KvPoolView& view : groups_[group].layers) {
    FOVEA_RETURN_IF_ERROR(copy_kv_page(device_, view, from, to));
  }
  return ok_status();
}

}  // namespace fovea
