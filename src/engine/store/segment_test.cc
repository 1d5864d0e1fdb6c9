// Segments: what is written is read, and nothing else is.
#include "engine/store/segment.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace fovea {
namespace {

constexpr Hash128 kSpace{11, 12};

std::vector<SegmentPage> some_pages() {
  std::vector<SegmentPage> pages(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    pages[i].key = {100 + i, 200 + i};
    pages[i].before = {i == 0 ? 1 : 99 + i, 199 + i};
    pages[i].group = i % 2;
    pages[i].index = 7 + i;
    pages[i].tokens = {1, 2, static_cast<std::int32_t>(i)};
    pages[i].bytes = 40 + i;
    pages[i].hash = 1000 + i;
  }
  return pages;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(Segment, WhatIsWrittenIsRead) {
  std::vector<SegmentPage> pages = some_pages();
  const std::string head = make_segment_head(kSpace, pages);
  const std::uint64_t file_bytes = head.size() + 40 + 41 + 42;
  const auto size = segment_head_bytes(bytes_of(head).first(kSegmentHeaderBytes), file_bytes, kSpace);
  ASSERT_TRUE(size.ok()) << size.status().message();
  EXPECT_EQ(*size, head.size());
  const auto read = parse_segment_head(bytes_of(head), file_bytes, kSpace);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->size(), pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    EXPECT_EQ((*read)[i].key, pages[i].key);
    EXPECT_EQ((*read)[i].before, pages[i].before);
    EXPECT_EQ((*read)[i].group, pages[i].group);
    EXPECT_EQ((*read)[i].index, pages[i].index);
    EXPECT_EQ((*read)[i].tokens, pages[i].tokens);
    EXPECT_EQ((*read)[i].offset, pages[i].offset);
    EXPECT_EQ((*read)[i].bytes, 40 + i);
    EXPECT_EQ((*read)[i].hash, 1000 + i);
  }
  EXPECT_EQ(pages[0].offset, head.size());
  EXPECT_EQ(pages[2].offset, head.size() + 81);
}

TEST(Segment, EveryBitOfTheHeadCounts) {
  std::vector<SegmentPage> pages = some_pages();
  const std::string head = make_segment_head(kSpace, pages);
  const std::uint64_t file_bytes = head.size() + 123;
  for (std::size_t i = 0; i < head.size() * 8; ++i) {
    std::string damaged = head;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ (1 << (i % 8)));
    EXPECT_FALSE(parse_segment_head(bytes_of(damaged), file_bytes, kSpace).ok()) << "bit " << i;
  }
}

TEST(Segment, OtherSizesAndSpacesAreRefused) {
  std::vector<SegmentPage> pages = some_pages();
  const std::string head = make_segment_head(kSpace, pages);
  const std::uint64_t file_bytes = head.size() + 123;
  for (std::size_t size = 0; size < head.size(); ++size) {
    EXPECT_FALSE(parse_segment_head(bytes_of(head).first(size), file_bytes, kSpace).ok()) << size;
  }
  EXPECT_FALSE(parse_segment_head(bytes_of(head), file_bytes - 1, kSpace).ok());  // the file lost its end
  EXPECT_FALSE(parse_segment_head(bytes_of(head), file_bytes + 1, kSpace).ok());
  EXPECT_EQ(parse_segment_head(bytes_of(head), file_bytes, {11, 13}).status().code(), StatusCode::kUnsupported);
}

TEST(Segment, ContentsAreHashedWithTheirPlace) {
  const std::string content = "sixteen bytes ..";
  const std::uint64_t hash = page_content_hash(kSpace, {1, 2}, 0, bytes_of(content));
  EXPECT_EQ(page_content_hash(kSpace, {1, 2}, 0, bytes_of(content)), hash);
  EXPECT_NE(page_content_hash({11, 13}, {1, 2}, 0, bytes_of(content)), hash);
  EXPECT_NE(page_content_hash(kSpace, {1, 3}, 0, bytes_of(content)), hash);
  EXPECT_NE(page_content_hash(kSpace, {1, 2}, 1, bytes_of(content)), hash);
  EXPECT_NE(page_content_hash(kSpace, {1, 2}, 0, bytes_of("sixteen bytes .,")), hash);
}

}  // namespace
}  // namespace fovea
