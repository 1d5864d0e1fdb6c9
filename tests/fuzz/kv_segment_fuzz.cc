// The head of a file of KV pages (engine/store/segment.h): as it comes, and with the hashes made right, so that the
// checks behind them are reached.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/store/segment.h"

using fovea::Hash128;

namespace {

constexpr Hash128 kSpace{1, 2};

void parse(const std::string& head, std::uint64_t file_bytes) {
  const auto bytes = std::as_bytes(std::span(head));
  const auto size =
      fovea::segment_head_bytes(bytes.first(std::min(bytes.size(), fovea::kSegmentHeaderBytes)), file_bytes, kSpace);
  if (size.ok() && *size > file_bytes) std::abort();
  const auto pages = fovea::parse_segment_head(bytes, file_bytes, kSpace);
  if (!pages.ok()) return;
  for (const fovea::SegmentPage& page : *pages) {
    if (page.offset < bytes.size() || page.offset > file_bytes || page.bytes > file_bytes - page.offset) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string head(reinterpret_cast<const char*>(data), size);
  const std::uint64_t file_bytes = size + (size > 0 ? data[0] : 0);
  parse(head, file_bytes);
  if (size < fovea::kSegmentHeaderBytes) return 0;
  // As segment.cc lays a header out: magic, version, pages, space, tokens, bytes of the file, two hashes.
  std::vector<fovea::SegmentPage> none(1);
  const std::string good = fovea::make_segment_head(kSpace, none);
  std::memcpy(head.data(), good.data(), 12);
  std::memcpy(head.data() + 16, good.data() + 16, 16);
  std::memcpy(head.data() + 40, &file_bytes, sizeof(file_bytes));
  const auto fill = [&](std::size_t at, std::uint64_t hash) { std::memcpy(head.data() + at, &hash, sizeof(hash)); };
  fill(48, fovea::hash_bytes(head.data() + 64, size - 64));
  fill(56, fovea::hash_bytes(head.data(), 56, fovea::kSegmentVersion));
  parse(head, file_bytes);
  return 0;
}
