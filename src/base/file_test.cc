// Reading, mapping and atomic writing, on good and on bad paths.
#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace fovea {
namespace {

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(testing::TempDir()) / ("fovea_file_test_" + std::to_string(::getpid()) + "_" +
                                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::filesystem::path folder_;
};

TEST_F(FileTest, WriteThenRead) {
  const std::string bytes("a\0b\xff", 4);
  ASSERT_TRUE(write_file_atomic(path("x"), bytes).ok());
  EXPECT_EQ(*read_file(path("x"), 4), bytes);
  ASSERT_TRUE(write_file_atomic(path("x"), "").ok());
  EXPECT_EQ(*read_file(path("x"), 4), "");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);  // no temporary file is left
}

TEST_F(FileTest, LimitIsInclusive) {
  ASSERT_TRUE(write_file_atomic(path("x"), "12345").ok());
  EXPECT_TRUE(read_file(path("x"), 5).ok());
  const auto result = read_file(path("x"), 4);
  EXPECT_EQ(result.status().code(), StatusCode::kOutOfRange);
  EXPECT_NE(result.status().message().find("has 5 bytes, expected at most 4"), std::string::npos);
}

TEST_F(FileTest, BadPathsSayWhich) {
  EXPECT_EQ(read_file(path("none"), 1).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::open(path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read_file(folder_.string(), 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedFile::open(folder_.string()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(read_file(path("none"), 1).status().message().find(path("none")), std::string::npos);
  EXPECT_EQ(write_file_atomic(path("no/folder/x"), "a").code(), StatusCode::kNotFound);
}

TEST_F(FileTest, FifoDoesNotHang) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_file(path("pipe"), 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MappedFile::open(path("pipe")).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileTest, MappingHoldsTheBytesAndMoves) {
  ASSERT_TRUE(write_file_atomic(path("x"), "hello").ok());
  auto opened = MappedFile::open(path("x"));
  ASSERT_TRUE(opened.ok());
  MappedFile mapped = std::move(*opened);
  MappedFile other;
  other = std::move(mapped);
  ASSERT_EQ(other.size_bytes(), 5u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(other.data()), 5), "hello");
  EXPECT_EQ(mapped.size_bytes(), 0u);
  other.prefetch(0, 5);
  other.prefetch(3, 1000);
  other.prefetch(1000, 1);
}

TEST_F(FileTest, EmptyFileMapsToNothing) {
  ASSERT_TRUE(write_file_atomic(path("x"), "").ok());
  const auto mapped = MappedFile::open(path("x"));
  ASSERT_TRUE(mapped.ok());
  EXPECT_TRUE(mapped->bytes().empty());
}

}  // namespace
}  // namespace fovea
