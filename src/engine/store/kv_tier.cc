// Pages of the host and of files: which are where, which leave, and what the two threads are given to do.
#include "engine/store/kv_tier.h"

#include <algorithm>

#include "base/log.h"
#include "base/quote.h"
#include "base/status.h"

namespace fovea {
namespace {

constexpr std::int64_t kMostAhead = std::int64_t{64} << 20;
// Reads that take longer are as if the page were not there.
constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::seconds kLogAgain{10};

}  // namespace

Result<std::unique_ptr<KvTier>> KvTier::create(Device& device, KvPool& pool, const KvTierOptions& options) {
  auto tier = std::unique_ptr<KvTier>(new KvTier(device, pool, options));
  std::int64_t least = 0;
  for (std::size_t g = 0; g < pool.num_groups(); ++g) least += 16 * pool.page_bytes(g);
  if (options.host_bytes < least) {
    return resource_exhausted("{} bytes of the host's memory for KV pages; this model needs {} at least",
                              options.host_bytes, least);
  }
  tier->key_seed_ = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  if (!options.folder.empty()) tier->open_folder();
  return tier;
}

KvTier::KvTier(Device& device, KvPool& pool, const KvTierOptions& options)
    : device_(device),
      pool_(pool),
      options_(options),
      host_(
          device,
          [&] {
            std::vector<std::int64_t> bytes;
            for (std::size_t g = 0; g < pool.num_groups(); ++g) bytes.push_back(pool.page_bytes(g));
            return bytes;
          }(),
          options.host_bytes) {}

KvTier::~KvTier() {
  reader_.reset();
  writer_.reset();
}

void KvTier::open_folder() {
  Result<std::unique_ptr<SegmentFolder>> folder = SegmentFolder::open(options_.folder, options_.space);
  if (!folder.ok()) {
    ++stats_.errors;
    log_warning("KV pages are not kept in {}: {}", shorten(options_.folder), folder.status().message());
    return;
  }
  folder_ = std::move(*folder);
  key_seed_ = folder_->key_seed();
  std::size_t damaged = 0;
  std::vector<SegmentFile> files = folder_->scan(&damaged);
  stats_.errors += damaged;
  reader_ = std::make_unique<IoWorker>();
  writer_ = std::make_unique<IoWorker>();
  for (SegmentFile& file : files) add_segment(std::move(file));
  log_info("{}: {} KV pages, {} bytes{}", folder_->path(), stats_.store_pages, stats_.store_bytes,
           folder_->holds_lock() ? "" : "; another server writes there, this one reads until it ends");
}

std::int64_t KvTier::fetch_ahead() const { return std::min(kMostAhead, host_.budget_bytes() / 4); }

std::int64_t KvTier::room_for_offers() const {
  if (!can_write()) return 0;
  return std::max<std::int64_t>(std::min(kMostAhead, host_.budget_bytes() / 2) - unwritten_bytes_, 0);
}

KvTier::Entry& KvTier::entry_of(const PageKey& key, const PageKey& before, std::uint32_t index,
                                std::span<const std::int32_t> tokens) {
  Entry& entry = entries_[key];
  if (!entry.places.empty()) return entry;
  entry.before = before;
  entry.index = index;
  entry.tokens.assign(tokens.begin(), tokens.end());
  entry.places.resize(pool_.num_groups());
  for (std::size_t g = 0; g < entry.places.size(); ++g) {
    entry.places[g].key = key;
    entry.places[g].entry = &entry;
    entry.places[g].group = static_cast<std::uint32_t>(g);
  }
  return entry;
}

const KvTier::Place* KvTier::find(const PageKey& key, std::span<const std::int32_t> tokens, std::size_t group) const {
  const auto found = entries_.find(key);
  if (found == entries_.end() ||
      !std::equal(tokens.begin(), tokens.end(), found->second.tokens.begin(), found->second.tokens.end())) {
    return nullptr;
  }
  const Place& place = found->second.places[group];
  return place.forgotten || (place.host == nullptr && place.segment == nullptr) ? nullptr : &place;
}

bool KvTier::has(const PageKey& key, std::span<const std::int32_t> tokens, std::size_t group) const {
  return find(key, tokens, group) != nullptr;
}

bool KvTier::keep(const PrefixRun& page, std::span<const std::int32_t> pages, bool leaves) {
  const PageKey& key = page.keys.front();
  Entry& entry = entry_of(key, page.before, static_cast<std::uint32_t>(page.first_page), page.tokens);
  bool all = true;
  for (std::size_t g = 0; g < pages.size(); ++g) {
    Place& place = entry.places[g];
    if (pages[g] == kDummyPage || place.forgotten) continue;
    if (place.host != nullptr) {
      ages_.splice(ages_.end(), ages_, place.age);
      continue;
    }
    // What is in a file is worth the host's memory too where there is memory for that: the disk is slower.
    if (place.segment != nullptr && !(leaves && options_.spills)) continue;
    if (!leaves && room_for_offers() < host_.page_bytes(g)) {
      all = false;
      continue;
    }
    place.host = make_room(entry, g, leaves && !can_write());
    if (place.host == nullptr) {
      all = false;
      continue;
    }
    place.age = ages_.insert(ages_.end(), &place);
    unsettled_ = true;
    if (const Status status = pool_.save_page(g, pages[g], place.host); !status.ok()) {
      count_error(status, "copied to the host");
      drop_host(place);
      all = false;
      continue;
    }
    ++stats_.spilled_pages;
    if (folder_ != nullptr && place.segment == nullptr) list_unwritten(place);
  }
  for (Place& place : entry.places) {
    if (place.host != nullptr || place.segment != nullptr) return all;
  }
  entries_.erase(key);
  return all;
}

void KvTier::list_unwritten(Place& place) {
  if (unwritten_.empty()) unwritten_since_ = Clock::now();
  place.unwritten = true;
  unwritten_.push_back(&place);
  unwritten_bytes_ += host_.page_bytes(place.group);
}

std::byte* KvTier::make_room(const Entry& entry, std::size_t group, bool drop_unwritten) {
  std::byte* slot = host_.take(group);
  for (auto it = ages_.begin(); slot == nullptr && it != ages_.end();) {
    Place& place = **it++;
    if (place.entry == &entry || place.reading || place.writing || (place.unwritten && !drop_unwritten)) continue;
    drop_host(place);
    erase_if_empty(place);
    slot = host_.take(group);
  }
  return slot;
}

void KvTier::drop_host(Place& place) {
  if (place.host == nullptr) return;
  if (place.unwritten) {
    std::erase(unwritten_, &place);
    unwritten_bytes_ -= host_.page_bytes(place.group);
    place.unwritten = false;
  }
  ages_.erase(place.age);
  host_.give_back(place.group, place.host);
  place.host = nullptr;
}

void KvTier::erase_if_empty(Place& place) {
  for (const Place& other : place.entry->places) {
    if (other.host != nullptr || other.segment != nullptr) return;
  }
  entries_.erase(PageKey(place.key));
}

KvTier::Fetch KvTier::fetch(const PageKey& key, std::span<const std::int32_t> tokens, std::size_t group) {
  auto* place = const_cast<Place*>(find(key, tokens, group));
  if (place == nullptr) return Fetch::kMissing;
  if (place->reading) {
    return Clock::now() - read_moved_ > kPatience ? Fetch::kMissing : Fetch::kOnTheWay;
  }
  if (place->host != nullptr) {
    ages_.splice(ages_.end(), ages_, place->age);
    return Fetch::kHere;
  }
  const std::int64_t bytes = host_.page_bytes(group);
  if (reading_bytes_ > 0 && reading_bytes_ + bytes > fetch_ahead()) return Fetch::kOnTheWay;
  place->host = make_room(*place->entry, group, false);
  if (place->host == nullptr) return is_busy() ? Fetch::kOnTheWay : Fetch::kMissing;
  place->age = ages_.insert(ages_.end(), place);
  start_read(*place);
  return Fetch::kOnTheWay;
}

Status KvTier::load(const PageKey& key, std::size_t group, std::int32_t page) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return not_found("the page has left the host's memory");
  const Place& place = found->second.places[group];
  if (place.host == nullptr || place.reading) return not_found("the page has left the host's memory");
  unsettled_ = true;
  FOVEA_RETURN_IF_ERROR(pool_.load_page(group, page, place.host));
  ++stats_.restored_pages;
  return ok_status();
}

Status KvTier::finish_loads() {
  if (!unsettled_) return ok_status();
  unsettled_ = false;
  return device_.wait();
}

void KvTier::settle() {
  if (const Status status = finish_loads(); !status.ok()) count_error(status, "copied");
}

void KvTier::service() {
  std::vector<std::function<void()>> done;
  {
    const std::lock_guard lock(done_mutex_);
    done.swap(done_);
  }
  jobs_ -= static_cast<std::int64_t>(done.size());
  for (const auto& one : done) one();
  start_write();
}

void KvTier::finish(std::function<void()> done) {
  const std::lock_guard lock(done_mutex_);
  done_.push_back(std::move(done));
}

void KvTier::flush(double seconds) {
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * seconds));
  flushing_ = true;
  service();
  while (is_busy() && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    service();
  }
  flushing_ = false;
}

void KvTier::clear() {
  ++generation_;
  std::vector<std::uint64_t> ids;
  for (const auto& [id, segment] : segments_) ids.push_back(id);
  for (const std::uint64_t id : ids) remove_segment(id);
  for (auto it = ages_.begin(); it != ages_.end();) {
    Place& place = **it++;
    if (place.reading || place.writing) {
      place.forgotten = true;
      continue;
    }
    drop_host(place);
    erase_if_empty(place);
  }
}

KvTierStats KvTier::stats() const {
  KvTierStats stats = stats_;
  stats.host_bytes = host_.bytes_in_use();
  stats.host_pages = static_cast<std::int64_t>(ages_.size());
  return stats;
}

void KvTier::count_error(const Status& status, const char* what) {
  ++stats_.errors;
  const Clock::time_point now = Clock::now();
  if (stats_.errors > 1 && now - logged_ < kLogAgain) return;
  logged_ = now;
  log_warning("KV pages are not {}: {}", what, status.message());
}

}  // namespace fovea
