// Entries are files KEY.TOOL in one folder: a header of three words, the log, the data.
#include "jit/disk_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

namespace fovea::jit {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMagic = 0x31304a4145564f46;  // "FOVEAJ01"
constexpr std::uint64_t kMaxEntryBytes = std::uint64_t{256} << 20;
// A hit renews the time of an entry at most this often: the order of leaving needs no more.
constexpr std::int64_t kRenewSeconds = 3600;
constexpr std::string_view kSuffix = ".bin";
// Longer than any kernel takes to compile.
constexpr std::chrono::seconds kLongestWait{120};
// What write_file_atomic leaves behind when its process is killed.
constexpr std::string_view kTemporary = ".tmp";
constexpr std::chrono::hours kTemporaryAge{24};

struct Header {
  std::uint64_t magic;
  std::uint64_t log_bytes;
  std::uint64_t checksum;  // of the log and the data, seeded with log_bytes
};

bool is_entry(const fs::path& path) { return path.extension() == kSuffix; }

void renew(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || info.st_mtime + kRenewSeconds > ::time(nullptr)) return;
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
}

// Why code in a file or folder may not be this user's; empty: it is, or there is no such file.
std::string distrust(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return "";
  if (info.st_uid != ::geteuid() && info.st_uid != 0) return fmt::format("it belongs to user {}", info.st_uid);
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "others may write to it (chmod go-w takes that from them)";
  return "";
}

}  // namespace

std::string cache_key(std::initializer_list<std::string_view> fields) {
  std::string all;
  for (const std::string_view field : fields) {
    all += std::to_string(field.size());
    all += ':';
    all += field;
  }
  return fmt::format("{:016x}{:016x}", hash_string(all, 1), hash_string(all, 2));
}

std::string default_cache_folder() {
  if (std::string folder = env_string(EnvVar::kCacheDir); !folder.empty()) return folder;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg == '/')
    return std::string(xdg) + "/fovea";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return std::string(home) + "/.cache/fovea";
  }
  return "";
}

CacheUse cache_use(const std::string& folder) {
  CacheUse use;
  use.folder = folder;
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, error)) {
    const std::uint64_t size = file.file_size(error);
    if (!is_entry(file.path()) || error) continue;
    ++use.num_entries;
    use.bytes += size;
  }
  fs::path nearest = fs::absolute(folder, error);
  while (!fs::exists(nearest, error) && nearest.has_relative_path()) nearest = nearest.parent_path();
  use.can_write =
      fs::is_directory(nearest, error) && ::access(nearest.c_str(), W_OK | X_OK) == 0 && distrust(folder).empty();
  return use;
}

DiskCache::DiskCache(std::string folder, std::uint64_t limit_bytes)
    : folder_(std::move(folder)), limit_bytes_(limit_bytes) {}

std::string DiskCache::path_of(const std::string& key, std::string_view tool) const {
  return fmt::format("{}/{}.{}{}", folder_, key, tool, kSuffix);
}

std::optional<CacheEntry> DiskCache::read(const std::string& path) const {
  if (const std::string why = distrust(path); !why.empty()) {
    log_warning("{} is not used: {}", path, why);
    return std::nullopt;
  }
  Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return std::nullopt;
  Header header{};
  if (file->size_bytes() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, file->data(), sizeof(header));
  const std::span<const std::byte> payload = file->bytes().subspan(sizeof(header));
  if (header.magic != kMagic || header.log_bytes > payload.size() ||
      header.checksum != hash_bytes(payload.data(), payload.size(), header.log_bytes)) {
    log_warning("{} is damaged; it will be made again", path);
    return std::nullopt;
  }
  CacheEntry entry;
  entry.log.assign(reinterpret_cast<const char*>(payload.data()), header.log_bytes);
  entry.data.assign(payload.begin() + static_cast<std::ptrdiff_t>(header.log_bytes), payload.end());
  renew(path);
  return entry;
}

std::optional<CacheEntry> DiskCache::find(const std::string& key, std::string_view tool) {
  if (folder_.empty() || !trusts_folder()) return std::nullopt;
  return read(path_of(key, tool));
}

std::vector<std::string> DiskCache::tools_of(const std::string& key) const {
  std::vector<std::string> tools;
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(folder_, error)) {
    const std::string name = file.path().stem().string();
    if (is_entry(file.path()) && name.starts_with(key + ".")) tools.push_back(name.substr(key.size() + 1));
  }
  std::sort(tools.begin(), tools.end());
  return tools;
}

bool DiskCache::trusts_folder() {
  const std::string why = distrust(folder_);
  if (!why.empty()) warn_once(why);
  return why.empty();
}

bool DiskCache::make_folder() {
  if (folder_.empty()) return false;
  std::error_code error;
  const fs::path folder = fs::path(folder_).has_filename() ? fs::path(folder_) : fs::path(folder_).parent_path();
  if (folder.has_parent_path()) fs::create_directories(folder.parent_path(), error);
  if (!error && (::mkdir(folder.c_str(), 0755) == 0 || fs::is_directory(folder, error))) return trusts_folder();
  if (!error) error = std::error_code(errno, std::generic_category());
  warn_once(fmt::format("cannot make the folder: {}", error.message()));
  return false;
}

void DiskCache::publish(const std::string& key, std::string_view tool, const CacheEntry& entry) {
  const std::uint64_t size = sizeof(Header) + entry.log.size() + entry.data.size();
  if (size > kMaxEntryBytes || !make_folder()) return;
  std::string bytes(sizeof(Header), '\0');
  bytes.reserve(size);
  bytes += entry.log;
  bytes.append(reinterpret_cast<const char*>(entry.data.data()), entry.data.size());
  const std::string_view payload = std::string_view(bytes).substr(sizeof(Header));
  const Header header{kMagic, entry.log.size(), hash_bytes(payload.data(), payload.size(), entry.log.size())};
  std::memcpy(bytes.data(), &header, sizeof(header));
  const std::string path = path_of(key, tool);
  if (const Status status = write_file_atomic(path, bytes); !status.ok()) return warn_once(status.message());
  evict(path);
}

void DiskCache::warn_once(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (warned_) return;
  warned_ = true;
  log_warning(
      "compiled kernels are not kept in {}: {}. Each process compiles its own until FOVEA_CACHE_DIR names a folder "
      "that "
      "can be written",
      folder_, why);
}

// Other processes may add and remove files meanwhile: what cannot be looked at is skipped.
void DiskCache::evict(const std::string& keep) {
  struct File {
    fs::file_time_type time;
    std::uint64_t size;
    fs::path path;
  };
  const std::lock_guard lock(mutex_);
  std::vector<File> files;
  std::uint64_t total = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    std::error_code no_time, no_size;
    if (entry.path().extension() == kTemporary &&
        entry.last_write_time(no_time) < fs::file_time_type::clock::now() - kTemporaryAge && !no_time) {
      fs::remove(entry.path(), no_size);
    }
    if (!is_entry(entry.path())) continue;
    File file{entry.last_write_time(no_time), entry.file_size(no_size), entry.path()};
    if (no_time || no_size) continue;
    total += file.size;
    files.push_back(std::move(file));
  }
  if (total <= limit_bytes_) return;
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.time < b.time; });
  for (const File& file : files) {
    if (total <= limit_bytes_) break;
    // What the caller just made stays, whatever its size.
    if (file.path != keep && fs::remove(file.path, error)) total -= file.size;
  }
}

DiskCache::Lock::Lock(DiskCache& cache, const std::string& key) : path_(cache.folder_ + "/" + key + ".lock") {
  if (!cache.make_folder()) return;
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) return;
  const auto give_up = std::chrono::steady_clock::now() + kLongestWait;
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() > give_up) {
      ::close(fd_);
      fd_ = -1;
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// Removed while held: a process that still waits for this file goes on when it is let go, finds the entry, and takes a
// lock of its own next time.
DiskCache::Lock::~Lock() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace fovea::jit
