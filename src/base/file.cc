// POSIX file access behind base/file.h.
#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/quote.h"
#include "base/status.h"

namespace fovea {
namespace {

// Closes on scope exit.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Status errno_status(const char* what, const std::string& path, int error) {
  const StatusCode code = error == ENOENT || error == ENOTDIR  ? StatusCode::kNotFound
                          : error == ENOSPC || error == ENOMEM ? StatusCode::kResourceExhausted
                                                               : StatusCode::kInvalidArgument;
  return make_status(code, "{} {}: {}", what, shorten(path), std::strerror(error));
}

// Opens a regular file and gives its size.
Status open_regular(const std::string& path, int fd, std::uint64_t* size_bytes) {
  if (fd < 0) return errno_status("cannot open", path, errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_status("cannot stat", path, errno);
  if (!S_ISREG(info.st_mode)) return invalid_argument("{} is not a regular file", shorten(path));
  *size_bytes = static_cast<std::uint64_t>(info.st_size);
  return ok_status();
}

Status write_all(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno_status("cannot write", path, errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(fd) != 0) return errno_status("cannot sync", path, errno);
  return ok_status();
}

}  // namespace

Result<std::string> read_file(const std::string& path, std::uint64_t max_bytes) {
  // O_NONBLOCK: opening a FIFO must not hang before the check that it is a regular file.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::uint64_t size_bytes = 0;
  FOVEA_RETURN_IF_ERROR(open_regular(path, file.get(), &size_bytes));
  if (size_bytes > max_bytes) {
    return out_of_range("{} has {} bytes, expected at most {}", shorten(path), size_bytes, max_bytes);
  }
  std::string text(size_bytes, '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status("cannot read", path, errno);
    if (got == 0) return data_loss("{} ended after {} bytes, expected {}", shorten(path), filled, size_bytes);
    filled += static_cast<std::size_t>(got);
  }
  return text;
}

Status write_file_atomic(const std::string& path, std::string_view bytes) {
  static std::atomic<unsigned> counter{0};
  const std::string temporary = fmt::format("{}.{}.{}.tmp", path, ::getpid(), counter.fetch_add(1));
  {
    const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (file.get() < 0) return errno_status("cannot create", temporary, errno);
    Status status = write_all(file.get(), temporary, bytes);
    if (!status.ok()) {
      ::unlink(temporary.c_str());
      return status;
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return errno_status("cannot rename to", path, error);
  }
  return ok_status();
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::uint64_t size_bytes = 0;
  FOVEA_RETURN_IF_ERROR(open_regular(path, file.get(), &size_bytes));
  if (size_bytes == 0) return MappedFile();
  void* const data = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return errno_status("cannot map", path, errno);
  return MappedFile(static_cast<const std::byte*>(data), size_bytes);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

void MappedFile::prefetch(std::size_t offset, std::size_t length_bytes) const {
  if (offset >= size_bytes_) return;
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = offset / page * page;
  const std::size_t end = std::min(size_bytes_, offset + std::min(length_bytes, size_bytes_ - offset));
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_WILLNEED);
}

}  // namespace fovea
