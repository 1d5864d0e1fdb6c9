// Folders of segments: files that are damaged, gone, half written, too many or another process's.
#include "engine/store/segment_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "engine/store/io_worker.h"
#include "engine/store/store_test_util.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

constexpr Hash128 kSpace{5, 6};

struct Page {
  std::string content;
  SegmentPage record(std::uint64_t key) const {
    SegmentPage page;
    page.key = {key, key};
    page.tokens = {1, 2, 3, 4};
    page.bytes = content.size();
    return page;
  }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(content.data()); }
};

Result<SegmentFile> write_one(SegmentFolder& folder, std::uint64_t key, const std::string& content) {
  const Page page{content};
  const std::byte* contents[] = {page.data()};
  return folder.write({page.record(key)}, contents);
}

std::string read_one(SegmentFolder& folder, const SegmentFile& file) {
  std::string out(file.pages[0].bytes, '?');
  const Status status = folder.read(file.id, file.pages[0], reinterpret_cast<std::byte*>(out.data()));
  return status.ok() ? out : std::string(status_code_name(status.code()));
}

std::unique_ptr<SegmentFolder> open_folder(const std::string& path) {
  auto folder = SegmentFolder::open(path, kSpace);
  EXPECT_TRUE(folder.ok()) << folder.status().message();
  return folder.ok() ? std::move(*folder) : nullptr;
}

TEST(SegmentFolder, IsFoundAgain) {
  const TempFolder temp;
  std::uint64_t seed = 0;
  {
    const auto folder = open_folder(temp.path());
    seed = folder->key_seed();
    ASSERT_TRUE(write_one(*folder, 1, "first").ok());
    ASSERT_TRUE(write_one(*folder, 2, "second").ok());
  }
  const auto folder = open_folder(temp.path());
  EXPECT_EQ(folder->key_seed(), seed);
  std::size_t damaged = 0;
  const std::vector<SegmentFile> files = folder->scan(&damaged);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(damaged, 0u);
  EXPECT_EQ(files[0].pages[0].key, (Hash128{1, 1}));
  EXPECT_EQ(files[0].pages[0].tokens, (std::vector<std::int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(read_one(*folder, files[1]), "second");
  const auto third = write_one(*folder, 3, "third");
  ASSERT_TRUE(third.ok());
  EXPECT_GT(third->id, files[1].id);
  folder->remove(files[0].id);
  EXPECT_EQ(read_one(*folder, files[0]), "not found");
  // Another space is another folder.
  const auto other = SegmentFolder::open(temp.path(), {5, 7});
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE((*other)->scan(&damaged).empty());
  EXPECT_NE((*other)->key_seed(), seed);
}

TEST(SegmentFolder, DamageIsSeen) {
  const TempFolder temp;
  const auto folder = open_folder(temp.path());
  const auto file = write_one(*folder, 1, "content of a page");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(read_one(*folder, *file), "content of a page");
  const std::string path = fmt::format("{}/{:016x}.kv", folder->path(), file->id);
  const auto size = fs::file_size(path);
  {
    std::fstream change(path, std::ios::in | std::ios::out | std::ios::binary);
    change.seekp(static_cast<std::streamoff>(size) - 3);
    change.put('X');
  }
  EXPECT_EQ(read_one(*folder, *file), "data loss");
  fs::resize_file(path, size - 1);
  EXPECT_EQ(read_one(*folder, *file), "data loss");
  std::size_t damaged = 0;
  EXPECT_TRUE(folder->scan(&damaged).empty());
  EXPECT_EQ(damaged, 1u);
  EXPECT_FALSE(fs::exists(path));
}

TEST(SegmentFolder, LeftoversAreSweptAndStrangersStay) {
  const TempFolder temp;
  std::string path;
  {
    const auto folder = open_folder(temp.path());
    path = folder->path();
    ASSERT_TRUE(write_one(*folder, 1, "kept").ok());
  }
  std::ofstream(path + "/0000000000000009.kv.tmp") << "half";
  std::ofstream(path + "/notes.txt") << "somebody's";
  std::ofstream(path + "/000000000000000a.kv") << "short";
  fs::create_directory(path + "/000000000000000b.kv");
  fs::create_symlink(path + "/notes.txt", path + "/000000000000000c.kv");
  const auto folder = open_folder(temp.path());
  std::size_t damaged = 0;
  EXPECT_EQ(folder->scan(&damaged).size(), 1u);
  EXPECT_EQ(damaged, 3u);
  EXPECT_FALSE(fs::exists(path + "/0000000000000009.kv.tmp"));
  EXPECT_TRUE(fs::exists(path + "/notes.txt"));
}

TEST(SegmentFolder, ASpoiltSeedBeginsAnew) {
  const TempFolder temp;
  std::string path;
  std::uint64_t seed = 0;
  {
    const auto folder = open_folder(temp.path());
    path = folder->path();
    seed = folder->key_seed();
    ASSERT_TRUE(write_one(*folder, 1, "lost").ok());
  }
  std::ofstream(path + "/seed", std::ios::binary) << "sixteen bytes!!!";
  const auto folder = open_folder(temp.path());
  ASSERT_NE(folder, nullptr);
  EXPECT_NE(folder->key_seed(), seed);
  std::size_t damaged = 0;
  EXPECT_TRUE(folder->scan(&damaged).empty());
}

TEST(SegmentFolder, OneProcessWritesAndOthersRead) {
  const TempFolder temp;
  auto folder = open_folder(temp.path());
  const auto file = write_one(*folder, 1, "of the first");
  ASSERT_TRUE(file.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    auto second = SegmentFolder::open(temp.path(), kSpace);
    if (!second.ok() || (*second)->holds_lock()) ::_exit(1);
    std::size_t damaged = 0;
    const auto files = (*second)->scan(&damaged);
    if (files.size() != 1 || read_one(**second, files[0]) != "of the first") ::_exit(2);
    if (write_one(**second, 2, "no").status().code() != StatusCode::kUnavailable) ::_exit(3);
    (*second)->remove(files[0].id);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_one(*folder, *file), "of the first");
  // Whoever waits for the lock has it once it is free.
  const auto next = open_folder(temp.path());
  EXPECT_FALSE(next->holds_lock());
  folder.reset();
  const auto written = write_one(*next, 2, "of the next");
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_GT(written->id, file->id);
}

TEST(SegmentFolder, AFullDiskIsAnError) {
  const TempFolder temp;
  const auto folder = open_folder(temp.path());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  Status status;
  {
    // On a thread of IoWorker, where the signal of the limit is blocked.
    std::atomic<bool> done{false};
    IoWorker worker;
    worker.post([&] {
      status = write_one(*folder, 1, std::string(10000, 'x')).status();
      done = true;
    });
    while (!done) ::usleep(1000);
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
  std::size_t damaged = 0;
  EXPECT_TRUE(folder->scan(&damaged).empty());
  EXPECT_EQ(damaged, 0u);
  for (const auto& entry : fs::directory_iterator(folder->path())) EXPECT_NE(entry.path().extension(), ".tmp");
  EXPECT_TRUE(write_one(*folder, 1, "room again").ok());
}

TEST(SegmentFolder, WhatIsNoFolderIsAnError) {
  const TempFolder temp;
  std::ofstream(temp.path() + "/file") << "x";
  EXPECT_FALSE(SegmentFolder::open(temp.path() + "/file", kSpace).ok());
  EXPECT_FALSE(SegmentFolder::open("/proc/nowhere", kSpace).ok());
}

}  // namespace
}  // namespace fovea
