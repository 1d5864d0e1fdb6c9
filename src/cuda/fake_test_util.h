// What the tests of cuda/ share: a device of the fake driver, and a look at what is left when a test ends.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "cuda/device.h"
#include "cuda/testing/fake_driver.h"

namespace fovea::cuda {

// Before anything asks for the driver, which is loaded once.
inline const bool kFakeIsNamed = [] {
  const std::string path = fake::library_path();
  return ::setenv("FOVEA_LIBCUDA", path.c_str(), 1) == 0 && ::setenv("FOVEA_CUBLASLT", path.c_str(), 1) == 0;
}();

class FakeCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake::state() = {};
    auto device = Device::open(0);
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    device_ = std::move(*device);
    context_.emplace(*device_);
    ASSERT_TRUE(context_->status().ok());
  }

  void TearDown() override {
    fake::state().failures.clear();
    context_.reset();
    device_.reset();
    EXPECT_TRUE(fake::state().alive == fake::Alive{}) << "something of the driver outlives its owner";
  }

  static void fail(const std::string& function, int code) { fake::state().failures[function] = code; }

  std::optional<Device> device_;
  std::optional<ScopedContext> context_;
};

}  // namespace fovea::cuda
