// Levels and sinks of the log.
#include "base/log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/fork_test_util.h"

namespace fovea {
namespace {

class LogTest : public testing::Test {
 protected:
  void SetUp() override {
    level_ = log_level();
    set_log_sink([this](LogLevel level, std::string_view text) {
      lines_.push_back(std::string(log_level_name(level)) + " " + std::string(text));
    });
  }
  void TearDown() override {
    set_log_sink({});
    set_log_level(level_);
  }
  LogLevel level_ = LogLevel::kOff;
  std::vector<std::string> lines_;
};

TEST_F(LogTest, LevelFilters) {
  set_log_level(LogLevel::kWarning);
  log_info("hidden {}", 1);
  log_warning("shown {}", 2);
  log_error("shown {}", 3);
  EXPECT_EQ(lines_, (std::vector<std::string>{"warning shown 2", "error shown 3"}));
}

TEST_F(LogTest, OffIsSilent) {
  set_log_level(LogLevel::kOff);
  log_error("hidden");
  EXPECT_TRUE(lines_.empty());
}

TEST_F(LogTest, BracesInTheMessageAreNotFormatted) {
  set_log_level(LogLevel::kInfo);
  log_info("{}", "a {} b %s");
  EXPECT_EQ(lines_, (std::vector<std::string>{"info a {} b %s"}));
}

TEST_F(LogTest, AChildOfForkLogsWhateverOtherThreadsDid) {
  set_log_level(LogLevel::kInfo);
  set_log_sink([](LogLevel, std::string_view) { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) log_info("busy");
  });
  for (int i = 0; i < 30; ++i) {
    ASSERT_STREQ(in_child([] {
                   log_info("in the child");
                   return true;
                 }),
                 "well");
  }
  stop = true;
  other.join();
}

TEST_F(LogTest, StderrIsTheDefaultAndStdoutStaysEmpty) {
  set_log_sink({});
  set_log_level(LogLevel::kInfo);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  log_info("to stderr");
  const std::string err = testing::internal::GetCapturedStderr();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_NE(err.find("info to stderr\n"), std::string::npos) << err;
}

TEST(LogLevelNames, RoundTripAndRejects) {
  for (const char* name : {"trace", "debug", "info", "warning", "error", "off"}) {
    const auto level = parse_log_level(name);
    ASSERT_TRUE(level.ok());
    EXPECT_EQ(log_level_name(*level), name);
  }
  EXPECT_FALSE(parse_log_level("loud").ok());
  EXPECT_FALSE(parse_log_level("").ok());
}

}  // namespace
}  // namespace fovea
