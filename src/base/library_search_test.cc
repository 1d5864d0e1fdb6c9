// Libraries are found by their names, in the order that is promised.
#include "base/library_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace fovea {
namespace {

namespace fs = std::filesystem;

class LibrarySearchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "fovea-libraries-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override {
    ::unsetenv("VIRTUAL_ENV");
    fs::remove_all(folder_);
  }
  void touch(const fs::path& name) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << "x";
  }

  fs::path folder_;
};

TEST_F(LibrarySearchTest, TheHighestNumberIsTheNewest) {
  EXPECT_FALSE(newest_library(folder_, "libx.so."));
  EXPECT_FALSE(newest_library(folder_ / "none", "libx.so."));
  for (const char* name :
       {"libx.so", "libx.so.9", "libx.so.12", "libx.so.12.1.7", "libx.so.12a", "libx.so.beta", "libxy.so.99"}) {
    touch(name);
  }
  const auto found = newest_library(folder_, "libx.so.");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version, 12);
  EXPECT_EQ(found->path, folder_ / "libx.so.12");
  EXPECT_EQ(newest_library(folder_, "libx.so.12.")->version, 1);
  EXPECT_EQ(newest_library(folder_, "libx.so.", 11)->version, 9);
  EXPECT_FALSE(newest_library(folder_, "libx.so.", 8));
}

TEST_F(LibrarySearchTest, WhatIsLoadedIsFoundWhereverItLies) {
  const auto found = loaded_library("libc.so.");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->version, 6);
  EXPECT_TRUE(fs::exists(found->path));
  EXPECT_FALSE(loaded_library("libof-nobody.so."));
}

TEST_F(LibrarySearchTest, WheelsOfTheEnvironmentComeAfterTheSystem) {
  touch("lib/python3.11/site-packages/nvidia/cu13/lib/libx.so.1");
  ::setenv("VIRTUAL_ENV", folder_.c_str(), 1);
  const std::vector<fs::path> folders = library_folders();
  const auto wheel =
      std::find(folders.begin(), folders.end(), folder_ / "lib/python3.11/site-packages/nvidia/cu13/lib");
  ASSERT_NE(wheel, folders.end());
  EXPECT_LT(std::find(folders.begin(), folders.end(), fs::path("/usr/lib")), wheel);
}

}  // namespace
}  // namespace fovea
