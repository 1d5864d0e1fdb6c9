// Files: read whole with a size limit, map read-only, write atomically. Used by model loading, tokenizers, caches and
// tools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fovea/status.h"

namespace fovea {

// The file's bytes. kNotFound when absent, kOutOfRange when larger than max_bytes, kInvalidArgument when not a regular
// file.
Result<std::string> read_file(const std::string& path, std::uint64_t max_bytes);

// Writes beside the target, syncs, then renames over it: a reader sees the old bytes or the new, never a part.
Status write_file_atomic(const std::string& path, std::string_view bytes);

// A read-only mapping of a whole file; the file must not be truncated while it is mapped.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  // Asks the kernel to read the range ahead (weights about to be used). Advice only.
  void prefetch(std::size_t offset, std::size_t length_bytes) const;

 private:
  MappedFile(const std::byte* data, std::size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

  const std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace fovea
