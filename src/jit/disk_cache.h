// A folder of compiled kernels that processes share. An entry is found by a key of everything that went into it, is
// written in one step, and carries a checksum; what is damaged counts as absent and is written again. Entries are code:
// a folder or a file that another user (but root) owns or may write to is not used. A folder that cannot be used costs
// one warning and nothing else. Used by compiler.h and host_compiler.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::jit {

struct CacheEntry {
  std::string log;  // of the compiler
  std::vector<std::byte> data;
};

// 32 hexadecimal digits over all fields and their borders.
std::string cache_key(std::initializer_list<std::string_view> fields);

// FOVEA_CACHE_DIR, else XDG_CACHE_HOME/fovea, else HOME/.cache/fovea, else empty: nothing is kept.
std::string default_cache_folder();

// What lies in a cache folder.
struct CacheUse {
  std::string folder;
  std::int64_t num_entries = 0;
  std::uint64_t bytes = 0;
  bool can_write = false;  // the folder, or the one it would be made in, and nobody else may
};
CacheUse cache_use(const std::string& folder);

class DiskCache {
 public:
  // folder is made when first needed; empty: no disk. limit_bytes: what the folder may hold; the entries that were not
  // used for longest go first.
  DiskCache(std::string folder, std::uint64_t limit_bytes);

  const std::string& folder() const { return folder_; }

  // The entry of `key` made by `tool` (a file name's worth of text, such as "nvrtc13.0").
  std::optional<CacheEntry> find(const std::string& key, std::string_view tool);
  // Whose entries of `key` there are, in the order of their names.
  std::vector<std::string> tools_of(const std::string& key) const;
  void publish(const std::string& key, std::string_view tool, const CacheEntry& entry);

  // Keeps other processes from making the same entry meanwhile; waits while one does, but not for ever. Never fails:
  // without a lock both make it.
  class Lock {
   public:
    Lock(DiskCache& cache, const std::string& key);
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock();

   private:
    int fd_ = -1;
    std::string path_;
  };

 private:
  std::string path_of(const std::string& key, std::string_view tool) const;
  std::optional<CacheEntry> read(const std::string& path) const;
  bool make_folder();
  bool trusts_folder();
  void warn_once(const std::string& why);
  void evict(const std::string& keep);

  const std::string folder_;
  const std::uint64_t limit_bytes_;
  std::mutex mutex_;
  bool warned_ = false;
};

}  // namespace fovea::jit
