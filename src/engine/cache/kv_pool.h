// KvPool: the memory of the KV cache: for each KV group a number of pages, for each page K and V of the group's layers.
// Sized from bytes once; sequences and the radix cache hold pages by number through the group's PageAllocator.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "abi/kv_pool.h"
#include "abi/token_moves.h"
#include "device/device.h"
#include "engine/cache/kv_format.h"
#include "engine/cache/page_allocator.h"
#include "engine/model/model.h"
#include "fovea/status.h"

namespace fovea {

struct KvPoolOptions {
  // Groups with a window are short: beside a quantized format they stay in bf16.
  KvFormat format;
  std::int32_t page_tokens = 16;
  std::int64_t bytes = 0;  // of all groups together
  // What is the most that can be of use: groups with a window need no more than their windows.
  std::int32_t max_running = 64;
  std::int32_t max_forward_tokens = 1024;
};

class KvPool {
 public:
  // kResourceExhausted when the bytes do not hold a page of each group and a spare.
  // The device must outlive the pool.
  static Result<std::unique_ptr<KvPool>> create(Device& device, const std::vector<KvGroupSpec>& groups,
                                                const std::vector<AttentionGroupSpec>& attention,
                                                const KvPoolOptions& options);

  std::size_t num_groups() const { return groups_.size(); }
  std::int32_t page_tokens() const { return options_.page_tokens; }
  PageAllocator& pages(std::size_t group) { return groups_[group].pages; }
  const PageAllocator& pages(std::size_t group) const { return groups_[group].pages; }
  // Of the tokens of a group.
  static KvFormat format_of(const KvGroupSpec& group, const KvFormat& format) {
    return group.window_tokens > 0 && format.quantized() ? KvFormat{} : format;
  }
  // Bytes of a page, all layers of the group, scales included.
  std::int64_t page_bytes(std::size_t group) const { return groups_[group].page_bytes; }
  // Pages that sequences hold.
  std::int32_t pages_in_use(std::size_t group) const {
    const PageAllocator& pages = groups_[group].pages;
    return pages.total() - pages.num_free() - pages.num_idle();
  }
  // By model layer and range of heads (ForwardBatch::layer_kv). Layout inside a page: [head, token, dim].
  std::span<const std::vector<abi::KvPoolView>> layer_views() const { return views_; }
  // Copies K and V of every layer of the group from one page to another.
  Status copy_page(std::size_t group, std::int32_t from, std::int32_t to);
  // K and V of a token, in every layer, from one slot of each group (page * page_tokens + place in it) to another:
  // enqueued by move_tokens() or before whatever else is asked of the pages here. None reads what one before it wrote.
  void move_token(std::span<const abi::TokenMove> by_group);
  // To be called before anything reads or writes pages through layer_views(). Where it fails, it is to be called again:
  // until then nothing was moved.
  Status move_tokens();
  // Enqueues copies of a page to memory of the host that the device made, and back: page_bytes(group), one layer after
  // the other.
  Status save_page(std::size_t group, std::int32_t page, std::byte* to);
  Status load_page(std::size_t group, std::int32_t page, const std::byte* from);

 private:
  struct Group {
    PageAllocator pages;
    std::int64_t page_bytes = 0;
    std::shared_ptr<void> memory;         // [layers][K, V, scales of K, scales of V][pages]
    std::vector<abi::KvPoolView> layers;  // head 0 is the first that the group has of the layer
  };

  KvPool(Device& device, const KvPoolOptions& options) : device_(device), options_(options) {}
  Status allocate_group(Device& device, const KvGroupSpec& spec, std::int32_t num_pages);
  void make_views(const std::vector<KvGroupSpec>& groups, const std::vector<AttentionGroupSpec>& attention);
  Status make_planes();

  Device& device_;
  KvPoolOptions options_;
  std::vector<Group> groups_;
  std::vector<std::vector<abi::KvPoolView>> views_;
  std::vector<abi::KvPlane> planes_;           // of all groups and layers
  std::shared_ptr<void> planes_on_device_;     // a copy of them; null where operators read the host's
  std::vector<abi::TokenMove> waiting_moves_;  // [moves, groups]
};

}  // namespace fovea
