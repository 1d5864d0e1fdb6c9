// The folder of compiled kernels: what is found, what is evicted, what a key tells apart.
#include "jit/disk_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "jit/kernel_source.h"

namespace fovea::jit {
namespace {

namespace fs = std::filesystem;

class DiskCacheTest : public ::testing::Test {
 protected:
  DiskCacheTest() {
    std::string pattern = ::testing::TempDir() + "fovea-cache-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~DiskCacheTest() override { fs::remove_all(folder_); }

  static CacheEntry entry(std::size_t size, int seed) {
    CacheEntry entry;
    entry.log = "log " + std::to_string(seed);
    for (std::size_t i = 0; i < size; ++i) entry.data.push_back(static_cast<std::byte>(i * 7 + seed));
    return entry;
  }
  // The file of a key was last used so many hours ago.
  void age(const std::string& key, int hours) {
    fs::last_write_time(folder_ + "/" + key + ".tool.bin",
                        fs::file_time_type::clock::now() - std::chrono::hours(hours));
  }

  std::string folder_;
};

TEST_F(DiskCacheTest, KeysTellFieldsApart) {
  EXPECT_EQ(cache_key({"a", "b"}).size(), 32u);
  EXPECT_EQ(cache_key({"a", "b"}), cache_key({"a", "b"}));
  EXPECT_NE(cache_key({"a", "b"}), cache_key({"ab", ""}));
  EXPECT_NE(cache_key({"a", "b"}), cache_key({"b", "a"}));
  EXPECT_NE(cache_key({"a", "1:b"}), cache_key({"a1:b"}));
}

TEST_F(DiskCacheTest, FindsWhatWasPublishedByItsTool) {
  DiskCache cache(folder_, 1 << 20);
  const std::string key = cache_key({"kernel"});
  EXPECT_FALSE(cache.find(key, "tool").has_value());
  cache.publish(key, "tool", entry(1000, 3));
  const auto found = cache.find(key, "tool");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->log, "log 3");
  EXPECT_EQ(found->data, entry(1000, 3).data);
  EXPECT_FALSE(cache.find(key, "other").has_value());
  cache.publish(key, "another.tool", entry(1, 1));
  EXPECT_EQ(cache.tools_of(key), (std::vector<std::string>{"another.tool", "tool"}));
  EXPECT_TRUE(cache.tools_of(cache_key({"another"})).empty());
  cache.publish(key, "tool", entry(0, 4));
  EXPECT_EQ(cache.find(key, "tool")->data.size(), 0u);
}

TEST_F(DiskCacheTest, WhatWasNotUsedForLongestGoesFirst) {
  DiskCache cache(folder_, 3500);
  const std::string a = cache_key({"a"}), b = cache_key({"b"}), c = cache_key({"c"}), d = cache_key({"d"});
  cache.publish(a, "tool", entry(1000, 1));
  cache.publish(b, "tool", entry(1000, 2));
  cache.publish(c, "tool", entry(1000, 3));
  age(a, 30);
  age(b, 20);
  age(c, 10);
  EXPECT_TRUE(cache.find(a, "tool").has_value());  // used now
  std::ofstream(folder_ + "/someone-elses.txt") << std::string(100000, 'x');
  std::ofstream(folder_ + "/killed.tmp") << "half";
  fs::last_write_time(folder_ + "/killed.tmp", fs::file_time_type::clock::now() - std::chrono::hours(48));
  cache.publish(d, "tool", entry(1000, 4));
  EXPECT_TRUE(cache.find(a, "tool").has_value());
  EXPECT_FALSE(cache.find(b, "tool").has_value());
  EXPECT_TRUE(cache.find(c, "tool").has_value());
  EXPECT_TRUE(cache.find(d, "tool").has_value());
  EXPECT_TRUE(fs::exists(folder_ + "/someone-elses.txt"));
  EXPECT_FALSE(fs::exists(folder_ + "/killed.tmp"));
  cache.publish(b, "tool", entry(100000, 5));
  EXPECT_TRUE(cache.find(b, "tool").has_value()) << "larger than the limit, but just made";
  EXPECT_FALSE(cache.find(d, "tool").has_value());
}

// Entries are code that this user runs.
TEST_F(DiskCacheTest, WhatOthersMayHaveWrittenIsNotUsed) {
  const std::string key = cache_key({"kernel"}), below = folder_ + "/below", file = below + "/" + key + ".tool.bin";
  {
    const mode_t before = ::umask(0);  // whatever the caller's is
    DiskCache(below, 1 << 20).publish(key, "tool", entry(1000, 3));
    ::umask(before);
  }
  struct stat info {};
  ASSERT_EQ(::stat(below.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 022u, 0u);
  DiskCache cache(below, 1 << 20);
  EXPECT_TRUE(cache.find(key, "tool").has_value());
  for (const mode_t mode : {0775u, 0757u}) {
    ASSERT_EQ(::chmod(below.c_str(), mode), 0);
    EXPECT_FALSE(cache.find(key, "tool").has_value());
    EXPECT_FALSE(cache_use(below).can_write);
    cache.publish(cache_key({"other"}), "tool", entry(10, 1));
    EXPECT_TRUE(cache.tools_of(cache_key({"other"})).empty());
  }
  ASSERT_EQ(::chmod(below.c_str(), 0755), 0);
  for (const mode_t mode : {0664u, 0646u}) {
    ASSERT_EQ(::chmod(file.c_str(), mode), 0);
    EXPECT_FALSE(cache.find(key, "tool").has_value());
  }
  cache.publish(key, "tool", entry(1000, 4));  // replaced by one that is this user's alone
  EXPECT_EQ(cache.find(key, "tool")->log, "log 4");
  if (::geteuid() != 0) return;  // only root gives files away
  ASSERT_EQ(::chown(file.c_str(), 12345, 12345), 0);
  EXPECT_FALSE(cache.find(key, "tool").has_value());
}

TEST_F(DiskCacheTest, TheFolderFollowsTheEnvironment) {
  ::setenv("FOVEA_CACHE_DIR", "/somewhere", 1);
  EXPECT_EQ(default_cache_folder(), "/somewhere");
  ::unsetenv("FOVEA_CACHE_DIR");
  ::setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(default_cache_folder(), "/xdg/fovea");
  ::unsetenv("XDG_CACHE_HOME");
  ::setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(default_cache_folder(), "/home/someone/.cache/fovea");
}

TEST_F(DiskCacheTest, UseIsCounted) {
  DiskCache cache(folder_ + "/a/b", 1 << 20);
  EXPECT_EQ(cache_use(folder_ + "/a/b").num_entries, 0);
  EXPECT_TRUE(cache_use(folder_ + "/a/b").can_write);
  cache.publish(cache_key({"one"}), "tool", entry(1000, 1));
  cache.publish(cache_key({"two"}), "tool", entry(1000, 2));
  const CacheUse use = cache_use(folder_ + "/a/b");
  EXPECT_EQ(use.num_entries, 2);
  EXPECT_GT(use.bytes, 2000u);
  std::ofstream(folder_ + "/file") << "no folder";
  EXPECT_FALSE(cache_use(folder_ + "/file/below").can_write);
}

TEST(PtxasLogTest, ReadsEveryKernelAndNothingElse) {
  const std::vector<KernelResources> kernels = parse_ptxas_log(R"(t.cu(3): warning: variable "x" is unused
ptxas info    : 16 bytes gmem
ptxas info    : Function properties for helper
ptxas         .     64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
ptxas         .     48 bytes stack frame, 44 bytes spill stores, 40 bytes spill loads
ptxas info    : Function properties for helper
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers, 1024 bytes smem, 360 bytes cmem[0]
)");
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].name, "second");
  EXPECT_EQ(kernels[0].stack_bytes, 48);
  EXPECT_EQ(kernels[0].spill_store_bytes, 44);
  EXPECT_EQ(kernels[0].spill_load_bytes, 40);
  EXPECT_EQ(kernels[1].name, "first");
  EXPECT_EQ(kernels[1].registers, 168);
  EXPECT_EQ(kernels[1].static_smem_bytes, 1024);
  EXPECT_TRUE(parse_ptxas_log("").empty());
  EXPECT_TRUE(parse_ptxas_log("ptxas info : Used 5 registers\n'").empty());
}

}  // namespace
}  // namespace fovea::jit
