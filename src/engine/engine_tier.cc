// KV beyond the cache: the engine's part of engine/store; and who hears what the cache holds.
#include <algorithm>

#include "base/cgroup.h"
#include "base/status.h"
#include "engine/engine_core.h"
#include "engine/store/kv_space.h"

namespace fovea {
namespace {

// For pages on their way to files and back where no memory was asked for.
constexpr std::int64_t kStagingBytes = std::int64_t{256} << 20;
// Offered between two steps, and where none runs.
constexpr std::int64_t kSliceBytes = std::int64_t{4} << 20;
constexpr std::int64_t kIdleSliceBytes = std::int64_t{32} << 20;
constexpr double kSaveSeconds = 10.0;  // at the end

}  // namespace

Status check_tier_options(const EngineOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 46;
  if (options.kv_spill_bytes < 0 || options.kv_spill_bytes > kMost) {
    return invalid_argument("kv_spill_bytes is {}; expected 0 to {}", options.kv_spill_bytes, kMost);
  }
  if (options.kv_store_bytes < (std::int64_t{64} << 20)) {
    return invalid_argument("kv_store_bytes is {}; expected 64 MiB at least", options.kv_store_bytes);
  }
  if (options.kv_spill_bytes == 0 && options.kv_store.empty()) return ok_status();
  if (!options.prefix_cache) {
    return invalid_argument("prefix_cache is off: there are no prefixes for kv_spill or kv_store to keep");
  }
  if (options.sparse != "off") {
    return unsupported("kv_spill and kv_store do not keep the statistics of pages that sparse \"{}\" reads; use one",
                       options.sparse);
  }
  return ok_status();
}

Status EngineCore::set_up_tier() {
  const EngineOptions& options = parts_.options;
  if (options.kv_spill_bytes == 0 && options.kv_store.empty()) return ok_status();
  const auto room = static_cast<std::int64_t>(available_memory_bytes());
  if (options.kv_spill_bytes > room) {
    return resource_exhausted("kv_spill asks for {} bytes of memory, and {} are left; ask for less",
                              options.kv_spill_bytes, room);
  }
  KvTierOptions tier;
  tier.spills = options.kv_spill_bytes > 0;
  tier.host_bytes = options.kv_spill_bytes;
  if (!tier.spills) {
    std::int64_t pages = 0;
    for (std::size_t g = 0; g < pool_->num_groups(); ++g) pages += pool_->page_bytes(g);
    tier.host_bytes = std::max(kStagingBytes, 64 * pages);
  }
  tier.folder = options.kv_store;
  tier.folder_bytes = options.kv_store_bytes;
  tier.space = kv_space(parts_.model_hash, options, parts_.device->name(), parts_.model->kv_groups());
  FOVEA_ASSIGN_OR_RETURN(tier_, KvTier::create(*parts_.device, *pool_, tier));
  return ok_status();
}

void EngineCore::set_up_listeners() {
  if (parts_.options.on_kv_events != nullptr) {
    events_ =
        std::make_unique<KvEventLog>(parts_.options.page_tokens, parts_.device->place().kind == DeviceKind::kCuda);
  }
  const bool keeps = tier_ != nullptr;
  const std::uint64_t seed =
      keeps ? tier_->key_seed() : static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  if (keeps || events_ != nullptr) {
    scheduler_->cache().tell(tier_.get(), keeps && tier_->has_folder(), events_.get(), seed);
  }
}

void EngineCore::send_kv_events() {
  if (events_ == nullptr) return;
  if (std::vector<KvEvent> events = events_->take(); !events.empty()) parts_.options.on_kv_events(std::move(events));
}

bool EngineCore::tier_is_busy() const {
  return tier_ != nullptr && (tier_->is_busy() || (scheduler_->cache().has_offers() && tier_->room_for_offers() > 0));
}

void EngineCore::tend_tier() {
  if (tier_ == nullptr) return;
  tier_->service();
  if (!scheduler_->cache().has_offers()) return;
  std::int64_t page = 0;
  for (std::size_t g = 0; g < pool_->num_groups(); ++g) page += pool_->page_bytes(g);
  const std::int64_t slice = scheduler_->num_running() > 0 ? kSliceBytes : kIdleSliceBytes;
  const std::int64_t pages = std::min(std::max(slice / page, std::int64_t{1}), tier_->room_for_offers() / page);
  if (pages > 0) scheduler_->cache().offer(static_cast<std::int32_t>(pages));
}

void EngineCore::save_tier() {
  if (tier_ == nullptr) return;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * kSaveSeconds));
  while (true) {
    const bool offered = tier_->room_for_offers() > 0 && scheduler_->cache().offer(1 << 20) > 0;
    const double left = std::chrono::duration<double>(end - Clock::now()).count();
    tier_->flush(left);
    if (!offered || left <= 0.0) return;
  }
}

}  // namespace fovea
