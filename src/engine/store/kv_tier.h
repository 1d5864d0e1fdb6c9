// KvTier: KV pages beyond the device's pool. Pages that the prefix cache gives up are copied to the host's memory; with
// a folder, every cached page also goes to its files, soon after it was computed, and is there after a restart. The
// scheduler asks for the pages of a waiting prompt and has them copied back (scheduler_restore.cc).
//
// Belongs to the engine's thread: it copies, looks up and decides; two threads read and write files. A page counts only
// if its key and its tokens are those asked for, and a page from a file only after its hash was checked in a slot of
// its own. Whatever the disk does costs a recomputation and a line in the log.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/cache/kv_pool.h"
#include "engine/cache/page_keeper.h"
#include "engine/store/host_pages.h"
#include "engine/store/io_worker.h"
#include "engine/store/segment_folder.h"

namespace fovea {

struct KvTierOptions {
  std::int64_t host_bytes = 0;
  bool spills = true;  // false: the host's memory is for pages on their way to files and back
  std::string folder;  // empty: no files
  std::int64_t folder_bytes = 0;
  Hash128 space;  // what KV depends on but tokens (kv_space.h)
};

struct KvTierStats {
  std::int64_t host_bytes = 0, host_pages = 0;    // now; a page is of one KV group
  std::int64_t store_bytes = 0, store_pages = 0;  // in files now
  std::uint64_t spilled_pages = 0;                // copied to the host
  std::uint64_t restored_pages = 0;               // copied back to the device
  std::uint64_t read_pages = 0, written_pages = 0;
  std::uint64_t errors = 0;  // of files
};

class KvTier final : public PageKeeper {
 public:
  // A folder that cannot be used is a line in the log, not an error. Device and pool must outlive it.
  static Result<std::unique_ptr<KvTier>> create(Device& device, KvPool& pool, const KvTierOptions& options);
  ~KvTier() override;

  std::uint64_t key_seed() const { return key_seed_; }
  bool has_folder() const { return folder_ != nullptr; }

  bool keep(const PrefixRun& page, std::span<const std::int32_t> pages, bool leaves) override;

  // Pages to come back. What has() found may be gone at any later call.
  bool has(const PageKey& key, std::span<const std::int32_t> tokens, std::size_t group) const;
  enum class Fetch : std::uint8_t { kHere, kOnTheWay, kMissing };
  // Begins to bring it to the host, as far as there is room.
  Fetch fetch(const PageKey& key, std::span<const std::int32_t> tokens, std::size_t group);
  // Of a page that is kHere: enqueues its copy to a page of the pool. Then finish_loads() before anything else.
  Status load(const PageKey& key, std::size_t group, std::int32_t page);
  Status finish_loads();
  std::int64_t page_bytes(std::size_t group) const { return host_.page_bytes(group); }

  // Takes what the threads have done and gives them more. Between steps.
  void service();
  // Whether service() will have something to do by itself.
  bool is_busy() const { return jobs_ > 0 || (!unwritten_.empty() && can_write()); }
  // Whether pages may be offered: how many bytes of them.
  std::int64_t room_for_offers() const;
  // Bytes that may be fetched ahead of what is loaded.
  std::int64_t fetch_ahead() const;
  // Until all that was kept is in files, or the time is over.
  void flush(double seconds);
  // Forgets everything, files too.
  void clear();
  KvTierStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Place;
  struct Entry;
  struct Segment {
    std::uint64_t bytes = 0;
    std::uint64_t last_use = 0;
    std::vector<Place*> places;  // that are in it
  };
  struct Place {  // a page of a group
    PageKey key;
    Entry* entry = nullptr;
    std::uint32_t group = 0;
    std::byte* host = nullptr;
    bool reading = false, writing = false;  // a thread works on `host`
    bool unwritten = false;                 // listed in unwritten_
    bool forgotten = false;                 // goes when its thread is done
    Segment* segment = nullptr;             // it is in a file:
    std::uint64_t segment_id = 0, offset = 0, hash = 0;
    std::list<Place*>::iterator age;  // in ages_ where `host`
  };
  struct Entry {
    PageKey before;
    std::uint32_t index = 0;
    std::vector<std::int32_t> tokens;
    std::vector<Place> places;  // by group
  };

  KvTier(Device& device, KvPool& pool, const KvTierOptions& options);
  void open_folder();
  Entry& entry_of(const PageKey& key, const PageKey& before, std::uint32_t index, std::span<const std::int32_t> tokens);
  const Place* find(const PageKey& key, std::span<const std::int32_t> tokens, std::size_t group) const;
  bool usable(const SegmentPage& page) const;
  void add_segment(SegmentFile file);
  void remove_segment(std::uint64_t id);
  void leave_segment(Place& place);
  void drop_host(Place& place);
  void erase_if_empty(Place& place);
  // For a page of the entry.
  std::byte* make_room(const Entry& entry, std::size_t group, bool drop_unwritten);
  bool can_write() const { return folder_ != nullptr && Clock::now() >= write_again_; }
  void list_unwritten(Place& place);
  void start_read(Place& place);
  void end_read(Place& place, const Status& status);
  void start_write();
  void end_write(std::span<Place* const> places, std::uint64_t generation, Result<SegmentFile> result);
  void finish(std::function<void()> done);
  // Copies that were enqueued are done, so that others may touch their memory.
  void settle();
  void count_error(const Status& status, const char* what);

  Device& device_;
  KvPool& pool_;
  KvTierOptions options_;
  HostPages host_;
  std::uint64_t key_seed_ = 0;
  std::unordered_map<PageKey, Entry, Hash128Bits> entries_;
  std::list<Place*> ages_;        // those with a slot of the host, oldest first
  std::deque<Place*> unwritten_;  // with a slot, to be written
  std::int64_t unwritten_bytes_ = 0, reading_bytes_ = 0;
  Clock::time_point unwritten_since_, read_moved_, write_again_, logged_;
  std::map<std::uint64_t, Segment> segments_;
  std::uint64_t uses_ = 0;
  std::uint64_t generation_ = 0;  // clear() begins a new one
  std::int64_t jobs_ = 0;
  bool write_runs_ = false, flushing_ = false, unsettled_ = false;
  KvTierStats stats_;

  std::mutex done_mutex_;
  std::vector<std::function<void()>> done_;  // by the threads, for service()
  std::unique_ptr<SegmentFolder> folder_;
  std::unique_ptr<IoWorker> reader_, writer_;  // last: their jobs use what is above
};

}  // namespace fovea
