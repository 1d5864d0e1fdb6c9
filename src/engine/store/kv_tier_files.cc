// KvTier's files: what its threads are asked to read and write, and what becomes of the answers.
#include <algorithm>

#include "base/log.h"
#include "base/status.h"
#include "engine/store/kv_tier.h"

namespace fovea {
namespace {

constexpr std::int64_t kSegmentBytes = std::int64_t{16} << 20;
// Pages wait so long at most until a segment is written, however few they are.
constexpr std::chrono::milliseconds kGather{200};
// After an error, nothing is written for a while.
constexpr std::chrono::seconds kPause{30};

}  // namespace

bool KvTier::usable(const SegmentPage& page) const {
  return page.group < pool_.num_groups() && page.bytes == static_cast<std::uint64_t>(host_.page_bytes(page.group)) &&
         page.tokens.size() == static_cast<std::size_t>(pool_.page_tokens());
}

void KvTier::add_segment(SegmentFile file) {
  Segment& segment = segments_[file.id];
  segment.bytes = file.bytes;
  segment.last_use = ++uses_;
  stats_.store_bytes += static_cast<std::int64_t>(file.bytes);
  for (SegmentPage& page : file.pages) {
    if (!usable(page)) continue;
    Entry& entry = entry_of(page.key, page.before, page.index, page.tokens);
    Place& place = entry.places[page.group];
    if (place.forgotten || place.segment != nullptr || entry.tokens != page.tokens) continue;
    place.segment = &segment;
    place.segment_id = file.id;
    place.offset = page.offset;
    place.hash = page.hash;
    segment.places.push_back(&place);
    ++stats_.store_pages;
  }
  if (segment.places.empty()) remove_segment(file.id);
  // The latest stays, so that writing leads somewhere.
  while (stats_.store_bytes > options_.folder_bytes && segments_.size() > 1) {
    const auto oldest = std::min_element(segments_.begin(), segments_.end(), [](const auto& a, const auto& b) {
      return a.second.last_use < b.second.last_use;
    });
    remove_segment(oldest->first);
  }
}

void KvTier::leave_segment(Place& place) {
  place.segment = nullptr;
  --stats_.store_pages;
}

void KvTier::remove_segment(std::uint64_t id) {
  const auto found = segments_.find(id);
  if (found == segments_.end()) return;
  for (Place* place : found->second.places) {
    leave_segment(*place);
    erase_if_empty(*place);
  }
  stats_.store_bytes -= static_cast<std::int64_t>(found->second.bytes);
  segments_.erase(found);
  ++jobs_;
  writer_->post([this, id] {
    folder_->remove(id);
    finish([] {});
  });
}

void KvTier::start_read(Place& place) {
  settle();  // copies from the slot, of the page that was there before
  place.segment->last_use = ++uses_;
  SegmentPage page;
  page.key = place.key;
  page.group = place.group;
  page.offset = place.offset;
  page.bytes = static_cast<std::uint64_t>(host_.page_bytes(place.group));
  page.hash = place.hash;
  place.reading = true;
  if (reading_bytes_ == 0) read_moved_ = Clock::now();
  reading_bytes_ += host_.page_bytes(place.group);
  ++jobs_;
  reader_->post([this, &place, page, id = place.segment_id, to = place.host] {
    const Status status = folder_->read(id, page, to);
    finish([this, &place, status] { end_read(place, status); });
  });
}

void KvTier::end_read(Place& place, const Status& status) {
  place.reading = false;
  reading_bytes_ -= host_.page_bytes(place.group);
  read_moved_ = Clock::now();
  if (status.ok()) ++stats_.read_pages;
  if (!status.ok()) {
    // Another server may have removed the file.
    if (status.code() != StatusCode::kNotFound) count_error(status, "read");
    if (place.segment != nullptr) {
      std::erase(place.segment->places, &place);
      leave_segment(place);
    }
  }
  if (!status.ok() || place.forgotten) drop_host(place);
  place.forgotten = false;
  erase_if_empty(place);
}

void KvTier::start_write() {
  if (write_runs_ || unwritten_.empty() || !can_write()) return;
  if (unwritten_bytes_ < kSegmentBytes && !flushing_ && Clock::now() - unwritten_since_ < kGather) return;
  settle();  // copies to the slots
  std::vector<SegmentPage> pages;
  std::vector<const std::byte*> contents;
  std::vector<Place*> places;
  std::int64_t bytes = 0;
  while (!unwritten_.empty() && bytes < kSegmentBytes && pages.size() < kMostSegmentPages) {
    Place& place = *unwritten_.front();
    unwritten_.pop_front();
    place.unwritten = false;
    place.writing = true;
    SegmentPage& page = pages.emplace_back();
    page.key = place.key;
    page.before = place.entry->before;
    page.group = place.group;
    page.index = place.entry->index;
    page.tokens = place.entry->tokens;
    page.bytes = static_cast<std::uint64_t>(host_.page_bytes(place.group));
    contents.push_back(place.host);
    places.push_back(&place);
    bytes += host_.page_bytes(place.group);
  }
  unwritten_bytes_ -= bytes;
  unwritten_since_ = Clock::now();
  write_runs_ = true;
  ++jobs_;
  writer_->post([this, generation = generation_, pages = std::move(pages), contents = std::move(contents),
                 places = std::move(places)]() mutable {
    auto result = std::make_shared<Result<SegmentFile>>(folder_->write(std::move(pages), contents));
    finish(
        [this, generation, result, places = std::move(places)] { end_write(places, generation, std::move(*result)); });
  });
}

void KvTier::end_write(std::span<Place* const> places, std::uint64_t generation, Result<SegmentFile> result) {
  write_runs_ = false;
  for (Place* place : places) {
    place->writing = false;
    if (place->forgotten) {
      drop_host(*place);
      place->forgotten = false;
      erase_if_empty(*place);
    } else if (!result.ok()) {
      list_unwritten(*place);
    }
  }
  if (!result.ok()) {
    write_again_ = Clock::now() + kPause;
    if (folder_->holds_lock()) {
      count_error(result.status(), "written");
    } else {
      log_debug("KV pages are not written: {}", result.status().message());
    }
    return;
  }
  stats_.written_pages += result->pages.size();
  const std::uint64_t id = result->id;
  add_segment(std::move(*result));
  if (generation != generation_) remove_segment(id);  // flushed meanwhile
}

}  // namespace fovea
