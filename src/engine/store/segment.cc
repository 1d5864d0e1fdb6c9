// Writes and parses the head of a segment: records of fixed size, copied out of the bytes one by one.
#include "engine/store/segment.h"

#include <cstring>

#include "base/hash.h"
#include "base/status.h"

namespace fovea {
namespace {

constexpr std::uint64_t kMagic = 0x31564b4145564f46;  // "FOVEAKV1"
constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 24;

struct Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t num_pages;
  Hash128 space;
  std::uint64_t num_tokens;
  std::uint64_t file_bytes;
  std::uint64_t body_hash;  // of table and tokens
  std::uint64_t hash;       // of the fields before
};
static_assert(sizeof(Header) == kSegmentHeaderBytes);

struct Record {
  PageKey key;
  PageKey before;
  std::uint32_t group;
  std::uint32_t index;
  std::uint64_t num_tokens;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t hash;
};
static_assert(sizeof(Record) == 72);

std::uint64_t hash_of(const Header& header) { return hash_bytes(&header, offsetof(Header, hash), kSegmentVersion); }

std::uint64_t head_bytes(const Header& header) {
  return sizeof(Header) + header.num_pages * sizeof(Record) + header.num_tokens * sizeof(std::int32_t);
}

Result<Header> read_header(std::span<const std::byte> bytes, std::uint64_t file_bytes, const Hash128& space) {
  Header header{};
  if (bytes.size() < sizeof(header)) return data_loss("it ends inside its header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) return data_loss("it does not begin as a file of KV pages does");
  if (header.version != kSegmentVersion) {
    return unsupported("its pages have layout version {}, this build's {}", header.version, kSegmentVersion);
  }
  if (header.hash != hash_of(header)) return data_loss("its header is not what was written");
  if (header.space != space) return unsupported("its pages were computed by another model, or otherwise");
  if (header.num_pages == 0 || header.num_pages > kMostSegmentPages || header.num_tokens > kMostTokens ||
      header.file_bytes != file_bytes || head_bytes(header) > file_bytes) {
    return data_loss("it has {} bytes, and its header says {}", file_bytes, header.file_bytes);
  }
  return header;
}

}  // namespace

std::uint64_t page_content_hash(const Hash128& space, const PageKey& key, std::uint32_t group,
                                std::span<const std::byte> content) {
  const std::uint64_t place[6] = {space.low, space.high, key.low, key.high, group, kSegmentVersion};
  return hash_bytes(content.data(), content.size(), hash_bytes(place, sizeof(place)));
}

std::string make_segment_head(const Hash128& space, std::span<SegmentPage> pages) {
  Header header{kMagic, kSegmentVersion, static_cast<std::uint32_t>(pages.size()), space, 0, 0, 0, 0};
  for (const SegmentPage& page : pages) header.num_tokens += page.tokens.size();
  header.file_bytes = head_bytes(header);
  for (SegmentPage& page : pages) {
    page.offset = header.file_bytes;
    header.file_bytes += page.bytes;
  }
  std::string head(head_bytes(header), '\0');
  char* to = head.data() + sizeof(header);
  for (const SegmentPage& page : pages) {
    const Record record{page.key,           page.before, page.group, page.index,
                        page.tokens.size(), page.offset, page.bytes, page.hash};
    std::memcpy(to, &record, sizeof(record));
    to += sizeof(record);
  }
  for (const SegmentPage& page : pages) {
    const std::size_t bytes = page.tokens.size() * sizeof(std::int32_t);
    if (bytes > 0) std::memcpy(to, page.tokens.data(), bytes);
    to += bytes;
  }
  header.body_hash = hash_bytes(head.data() + sizeof(header), head.size() - sizeof(header));
  header.hash = hash_of(header);
  std::memcpy(head.data(), &header, sizeof(header));
  return head;
}

Result<std::uint64_t> segment_head_bytes(std::span<const std::byte> header, std::uint64_t file_bytes,
                                         const Hash128& space) {
  FOVEA_ASSIGN_OR_RETURN(const Header read, read_header(header, file_bytes, space));
  return head_bytes(read);
}

Result<std::vector<SegmentPage>> parse_segment_head(std::span<const std::byte> head, std::uint64_t file_bytes,
                                                    const Hash128& space) {
  FOVEA_ASSIGN_OR_RETURN(const Header header, read_header(head, file_bytes, space));
  if (head.size() != head_bytes(header)) return data_loss("its head was read in part");
  const std::span<const std::byte> body = head.subspan(sizeof(Header));
  if (hash_bytes(body.data(), body.size()) != header.body_hash) {
    return data_loss("its table of pages is not what was written");
  }
  // Hashes say that this is what somebody wrote; that it makes sense is checked all the same.
  std::vector<SegmentPage> pages(header.num_pages);
  const std::byte* tokens = body.data() + header.num_pages * sizeof(Record);
  std::uint64_t tokens_left = header.num_tokens;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    Record record{};
    std::memcpy(&record, body.data() + i * sizeof(Record), sizeof(record));
    if (record.num_tokens > tokens_left || record.offset < head.size() || record.offset > file_bytes ||
        record.bytes > file_bytes - record.offset) {
      return data_loss("page {} of its table lies outside of the file", i);
    }
    tokens_left -= record.num_tokens;
    SegmentPage& page = pages[i];
    page.key = record.key;
    page.before = record.before;
    page.group = record.group;
    page.index = record.index;
    page.offset = record.offset;
    page.bytes = record.bytes;
    page.hash = record.hash;
    page.tokens.resize(record.num_tokens);
    const std::size_t bytes = record.num_tokens * sizeof(std::int32_t);
    if (bytes > 0) std::memcpy(page.tokens.data(), tokens, bytes);
    tokens += bytes;
  }
  return pages;
}

}  // namespace fovea
