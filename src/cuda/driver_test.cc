// What this folder says where there is no GPU; tests with one are in *_gpu_test.cc.
#include "cuda/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/device.h"

namespace fovea::cuda {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(CudaDriver, SaysWhatIsMissingAndWhatToDo) {
  const auto loaded = driver();
  if (loaded.ok()) {
    EXPECT_GE((*loaded)->version(), 12000);
    EXPECT_GE((*loaded)->num_devices(), 1);
    EXPECT_EQ(Device::open((*loaded)->num_devices()).status().code(), StatusCode::kNotFound);
    return;
  }
  EXPECT_EQ(loaded.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(loaded.status().message(), AnyOf(HasSubstr("install"), HasSubstr("update"), HasSubstr("nvidia-smi")));
  EXPECT_EQ(Device::open(0).status().to_string(), loaded.status().to_string());
}

TEST(CudaDevice, ArchitecturesAsCompilersNameThem) {
  DeviceInfo info;
  info.major = 9;
  EXPECT_EQ(info.arch(), "sm_90a");
  info.major = 8;
  info.minor = 9;
  EXPECT_EQ(info.arch(), "sm_89");
}

}  // namespace
}  // namespace fovea::cuda
