// A folder of segments (segment.h) of one model: finds them, writes new ones in one step, reads single pages. Many
// servers may read a folder, one writes to it: whoever holds the lock. Nothing here crashes or lies because of what a
// disk does; errors are statuses. Used by KvTier: open() and scan() on its thread, then read() on one thread, write()
// and remove() on another.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/store/segment.h"

namespace fovea {

struct SegmentFile {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  std::vector<SegmentPage> pages;
};

class SegmentFolder {
 public:
  // FOLDER/<space>, which is made; nobody else can look into it. kUnavailable: another server writes there and has not
  // begun; others: why the folder cannot be used.
  static Result<std::unique_ptr<SegmentFolder>> open(const std::string& folder, const Hash128& space);
  ~SegmentFolder();
  SegmentFolder(const SegmentFolder&) = delete;
  SegmentFolder& operator=(const SegmentFolder&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t key_seed() const { return key_seed_; }
  bool holds_lock() const { return holds_lock_; }

  // All whole segments, those that were used longest ago first. With the lock, what was left half written and what is
  // damaged is removed; num_damaged counts the latter.
  std::vector<SegmentFile> scan(std::size_t* num_damaged);

  // contents: of each page, as long as its bytes. Takes the lock if it has become free; kUnavailable: it has not.
  Result<SegmentFile> write(std::vector<SegmentPage> pages, std::span<const std::byte* const> contents);
  void remove(std::uint64_t id);

  // kDataLoss: the page is not what was written.
  Status read(std::uint64_t id, const SegmentPage& page, std::byte* to);

 private:
  SegmentFolder(std::string path, const Hash128& space) : path_(std::move(path)), space_(space) {}
  std::string path_of(std::uint64_t id) const;
  bool take_lock();
  Status find_seed();
  Result<SegmentFile> read_head(std::uint64_t id) const;
  void find_next_id();

  const std::string path_;
  const Hash128 space_;
  std::uint64_t key_seed_ = 0;
  std::atomic<bool> holds_lock_{false};
  int lock_ = -1;
  std::uint64_t next_id_ = 1;  // of the writing thread
  // Of the reading thread: pages of a prefix lie side by side.
  int open_file_ = -1;
  std::uint64_t open_id_ = 0;
};

}  // namespace fovea
