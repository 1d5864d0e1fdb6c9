// Files and the lock of a folder of segments.
#include "engine/store/segment_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/quote.h"
#include "base/status.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".kv";
constexpr std::string_view kTemporary = ".tmp";
// A read renews the time of a segment at most this often: the order of leaving needs no more.
constexpr std::int64_t kRenewSeconds = 60;

struct SeedFile {
  std::uint64_t seed;
  std::uint64_t hash;
};

Status disk_error(const char* what, const std::string& path, int error) {
  const StatusCode code = error == ENOSPC || error == EDQUOT || error == EFBIG ? StatusCode::kResourceExhausted
                          : error == ENOENT                                    ? StatusCode::kNotFound
                                                                               : StatusCode::kUnavailable;
  return make_status(code, "cannot {} {}: {}", what, shorten(path), std::strerror(error));
}

// Closes, and removes what it was not told to keep.
class NewFile {
 public:
  explicit NewFile(std::string path)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!kept_) ::unlink(path_.c_str());
  }
  bool is_open() const { return fd_ >= 0; }
  Status write(const void* data, std::size_t bytes) const {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(fd_, from, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return disk_error("write", path_, written < 0 ? errno : EIO);
      from += written;
      bytes -= static_cast<std::size_t>(written);
    }
    return ok_status();
  }
  Status keep_as(const std::string& path) {
    if (::fdatasync(fd_) != 0) return disk_error("sync", path_, errno);
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0) return disk_error("close", path_, errno);
    if (::rename(path_.c_str(), path.c_str()) != 0) return disk_error("rename to", path, errno);
    kept_ = true;
    return ok_status();
  }

 private:
  std::string path_;
  int fd_;
  bool kept_ = false;
};

Status read_at(int fd, const std::string& path, std::uint64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t got = ::pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return disk_error("read", path, errno);
    if (got == 0) return data_loss("{} is shorter than it was", shorten(path));
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
  return ok_status();
}

// The id of a segment by its file's name; 0: it is none.
std::uint64_t id_of(const fs::path& path) {
  const std::string name = path.stem().string();
  if (path.extension() != kSuffix || name.size() != 16) return 0;
  if (name.find_first_not_of("0123456789abcdef") != std::string::npos) return 0;
  return std::stoull(name, nullptr, 16);
}

}  // namespace

std::string SegmentFolder::path_of(std::uint64_t id) const { return fmt::format("{}/{:016x}{}", path_, id, kSuffix); }

Result<std::unique_ptr<SegmentFolder>> SegmentFolder::open(const std::string& folder, const Hash128& space) {
  auto made = std::unique_ptr<SegmentFolder>(
      new SegmentFolder(fmt::format("{}/{:016x}{:016x}", folder, space.high, space.low), space));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return disk_error("make the folder", folder, error.value());
  // Pages are what users wrote.
  if (::mkdir(made->path_.c_str(), 0700) != 0 && errno != EEXIST) return disk_error("make", made->path_, errno);
  made->take_lock();
  FOVEA_RETURN_IF_ERROR(made->find_seed());
  return made;
}

SegmentFolder::~SegmentFolder() {
  if (open_file_ >= 0) ::close(open_file_);
  if (lock_ >= 0) ::close(lock_);
}

bool SegmentFolder::take_lock() {
  if (holds_lock_) return true;
  const std::string path = path_ + "/lock";
  if (lock_ < 0) lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0 || ::flock(lock_, LOCK_EX | LOCK_NB) != 0) return false;
  find_next_id();
  holds_lock_ = true;
  return true;
}

void SegmentFolder::find_next_id() {
  std::error_code error;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    next_id_ = std::max(next_id_, id_of(it->path()) + 1);
  }
}

Status SegmentFolder::find_seed() {
  const std::string path = path_ + "/seed";
  SeedFile seed{};
  const Result<std::string> text = read_file(path, sizeof(seed));
  if (text.ok() && text->size() == sizeof(seed)) {
    std::memcpy(&seed, text->data(), sizeof(seed));
    if (seed.hash == hash_bytes(&seed.seed, sizeof(seed.seed))) {
      key_seed_ = seed.seed;
      return ok_status();
    }
  }
  if (!holds_lock_) {
    return Status(StatusCode::kUnavailable, fmt::format("{} has no seed that can be read, and no lock to write one: "
                                                        "another server uses it, or it may not be written to",
                                                        shorten(path_)));
  }
  // Pages under another seed are never found: scan() would keep them for nothing.
  std::error_code error;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (id_of(it->path()) != 0) fs::remove(it->path(), ignored);
  }
  if (::getrandom(&seed.seed, sizeof(seed.seed), 0) != sizeof(seed.seed)) {
    return disk_error("get random bytes for", path, errno);
  }
  seed.hash = hash_bytes(&seed.seed, sizeof(seed.seed));
  key_seed_ = seed.seed;
  return write_file_atomic(path, {reinterpret_cast<const char*>(&seed), sizeof(seed)});
}

Result<SegmentFile> SegmentFolder::read_head(std::uint64_t id) const {
  const std::string path = path_of(id);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return disk_error("open", path, errno);
  const auto read = [&]() -> Result<SegmentFile> {
    struct stat info {};
    if (::fstat(fd, &info) != 0) return disk_error("stat", path, errno);
    SegmentFile file;
    file.id = id;
    file.bytes = static_cast<std::uint64_t>(info.st_size);
    if (!S_ISREG(info.st_mode) || file.bytes < kSegmentHeaderBytes) return data_loss("it ends inside its header");
    std::vector<std::byte> head(kSegmentHeaderBytes);
    FOVEA_RETURN_IF_ERROR(read_at(fd, path, 0, head));
    FOVEA_ASSIGN_OR_RETURN(const std::uint64_t bytes, segment_head_bytes(head, file.bytes, space_));
    head.resize(bytes);
    FOVEA_RETURN_IF_ERROR(read_at(fd, path, 0, head));
    FOVEA_ASSIGN_OR_RETURN(file.pages, parse_segment_head(head, file.bytes, space_));
    return file;
  };
  Result<SegmentFile> result = read();
  ::close(fd);
  return result;
}

std::vector<SegmentFile> SegmentFolder::scan(std::size_t* num_damaged) {
  struct Found {
    fs::file_time_type time;
    std::uint64_t id;
  };
  *num_damaged = 0;
  std::vector<Found> found;
  std::error_code error;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (holds_lock_ && it->path().extension() == kTemporary) fs::remove(it->path(), ignored);
    if (const std::uint64_t id = id_of(it->path()); id != 0) found.push_back({it->last_write_time(ignored), id});
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.time != b.time ? a.time < b.time : a.id < b.id; });
  std::vector<SegmentFile> files;
  for (const Found& one : found) {
    Result<SegmentFile> file = read_head(one.id);
    if (file.ok()) {
      files.push_back(std::move(*file));
      continue;
    }
    const StatusCode code = file.status().code();
    if (code == StatusCode::kNotFound) continue;  // its server has just removed it
    ++*num_damaged;
    const bool remove_it = holds_lock_ && (code == StatusCode::kDataLoss || code == StatusCode::kUnsupported);
    log_warning("KV pages in {} are not used: {}{}", path_of(one.id), file.status().message(),
                remove_it ? "; it is removed" : "");
    if (remove_it) remove(one.id);
  }
  return files;
}

Result<SegmentFile> SegmentFolder::write(std::vector<SegmentPage> pages, std::span<const std::byte* const> contents) {
  if (!take_lock()) {
    return Status(StatusCode::kUnavailable, fmt::format("another server writes to {}", shorten(path_)));
  }
  SegmentFile made;
  made.id = next_id_;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    pages[i].hash = page_content_hash(space_, pages[i].key, pages[i].group, {contents[i], pages[i].bytes});
  }
  const std::string head = make_segment_head(space_, pages);
  const std::string path = path_of(made.id);
  NewFile file(path + std::string(kTemporary));
  if (!file.is_open()) return disk_error("create", path, errno);
  FOVEA_RETURN_IF_ERROR(file.write(head.data(), head.size()));
  made.bytes = head.size();
  for (std::size_t i = 0; i < pages.size(); ++i) {
    FOVEA_RETURN_IF_ERROR(file.write(contents[i], pages[i].bytes));
    made.bytes += pages[i].bytes;
  }
  FOVEA_RETURN_IF_ERROR(file.keep_as(path));
  ++next_id_;
  made.pages = std::move(pages);
  return made;
}

void SegmentFolder::remove(std::uint64_t id) {
  if (holds_lock_) ::unlink(path_of(id).c_str());
}

Status SegmentFolder::read(std::uint64_t id, const SegmentPage& page, std::byte* to) {
  const std::string path = path_of(id);
  if (open_id_ != id) {
    if (open_file_ >= 0) ::close(open_file_);
    open_id_ = 0;
    open_file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (open_file_ < 0) return disk_error("open", path, errno);
    open_id_ = id;
    struct stat info {};
    if (::fstat(open_file_, &info) == 0 && info.st_mtime + kRenewSeconds < ::time(nullptr)) {
      ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
    }
  }
  FOVEA_RETURN_IF_ERROR(read_at(open_file_, path, page.offset, {to, page.bytes}));
  if (page_content_hash(space_, page.key, page.group, {to, page.bytes}) != page.hash) {
    return data_loss("a page of {} tokens in {} is not what was written", page.tokens.size(), shorten(path));
  }
  return ok_status();
}

}  // namespace fovea
