// A file of KV pages: what it says of itself, and how that is read back. A segment is written whole and never changed:
// a header, a table of pages, their tokens, then the pages. Everything is hashed: header, table and tokens together;
// each page for itself, under the model it is of, its key and its group, so that a page in a wrong place is damaged
// too. Files come from a disk that anything may have happened to. Used by segment_folder.cc; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/cache/page_keeper.h"
#include "fovea/status.h"

namespace fovea {

// Of this file and of KV inside pages. Change it with either.
inline constexpr std::uint32_t kSegmentVersion = 1;

// A page of a KV group.
struct SegmentPage {
  PageKey key;
  PageKey before;  // key of the page before it
  std::uint32_t group = 0;
  std::uint32_t index = 0;  // of the prefix
  std::vector<std::int32_t> tokens;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  // page_content_hash
};

inline constexpr std::size_t kSegmentHeaderBytes = 64;
inline constexpr std::size_t kMostSegmentPages = std::size_t{1} << 16;

std::uint64_t page_content_hash(const Hash128& space, const PageKey& key, std::uint32_t group,
                                std::span<const std::byte> content);

// What stands before the pages; fills in their offsets. space: what the KV was computed with (kv_space.h). At most
// kMostSegmentPages.
std::string make_segment_head(const Hash128& space, std::span<SegmentPage> pages);

// Bytes of the whole head, by its first kSegmentHeaderBytes and the size of the file. kUnsupported: of another version
// or space; kDataLoss: damaged.
Result<std::uint64_t> segment_head_bytes(std::span<const std::byte> header, std::uint64_t file_bytes,
                                         const Hash128& space);
// The pages, every one inside the file. head: segment_head_bytes() of it.
Result<std::vector<SegmentPage>> parse_segment_head(std::span<const std::byte> head, std::uint64_t file_bytes,
                                                    const Hash128& space);

}  // namespace fovea
