// What loading a driver and opening a device say where something is missing.
#include "cuda/driver.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "cuda/fake_test_util.h"

namespace fovea::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Status load_status(const std::string& path) { return Driver::load(path).status(); }

class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override { fake::state() = {}; }
  void TearDown() override { fake::state() = {}; }
};

TEST_F(DriverTest, LoadsTheLibraryThatTheEnvironmentNames) {
  const auto loaded = driver();
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ((*loaded)->path(), fake::library_path());
  EXPECT_EQ((*loaded)->version(), 13000);
  EXPECT_EQ((*loaded)->num_devices(), 1);
  EXPECT_EQ(*driver(), *loaded);
}

TEST_F(DriverTest, NoDriver) {
  const Status status = load_status("/nowhere/libcuda.so.1");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("/nowhere/libcuda.so.1"));
}

TEST_F(DriverTest, TheSystemsDriverOrWhatToDoWithoutIt) {
  const auto loaded = Driver::load("libcuda.so.1");
  if (loaded.ok()) {
    EXPECT_GE((*loaded)->num_devices(), 1);
    return;
  }
  EXPECT_EQ(loaded.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(loaded.status().message(),
              ::testing::AnyOf(HasSubstr("install"), HasSubstr("update"), HasSubstr("nvidia-smi")));
}

TEST_F(DriverTest, ALibraryThatIsNoDriver) {
  const Status status = load_status("libm.so.6");
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("libm.so.6 is no CUDA driver"));
}

TEST_F(DriverTest, ADriverThatIsTooOld) {
  fake::state().version = 11080;
  const Status status = load_status(fake::library_path());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("speaks CUDA 11.8, expected 12.0"), HasSubstr("update")));
}

TEST_F(DriverTest, ADriverThatLacksAFunction) {
  const auto folder = std::filesystem::path(fake::library_path()).parent_path();
  const Status status = load_status((folder / "libfovea_bare_driver.so").string());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("CUDA 12.4 and lacks cuInit"), HasSubstr("update")));
}

TEST_F(DriverTest, ADriverWithoutDevices) {
  fake::state().num_devices = 0;
  const Status status = load_status(fake::library_path());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("no device"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST_F(DriverTest, ADriverThatDoesNotStart) {
  fake::state().failures["cuInit"] = 803;
  const Status status = load_status(fake::library_path());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("cuInit: error 803"), HasSubstr("restart")));
}

TEST_F(DriverTest, ResultsHaveNamesAndKinds) {
  const Driver& d = **driver();
  EXPECT_TRUE(d.status(0, "cuCall").ok());
  EXPECT_EQ(d.status(2, "cuCall").to_string(), "resource exhausted: cuCall: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  EXPECT_EQ(d.status(46, "cuCall").code(), StatusCode::kUnavailable);
  EXPECT_EQ(d.status(101, "cuCall").code(), StatusCode::kNotFound);
  const Status fault = d.status(700, "cuStreamSynchronize");
  EXPECT_EQ(fault.code(), StatusCode::kInternal);
  EXPECT_THAT(fault.message(), AllOf(HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"), HasSubstr("start anew")));
  EXPECT_THAT(d.status(719, "cuCall").message(), AllOf(HasSubstr("waited ten seconds"), HasSubstr("start anew")));
  EXPECT_THAT(d.status(999, "cuCall").message(), HasSubstr("error 999"));
}

TEST_F(DriverTest, DevicesThatAreNotThere) {
  for (const int index : {-1, 1, 7}) {
    const Status status = Device::open(index).status();
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_THAT(status.message(), HasSubstr("cuda:" + std::to_string(index)));
  }
}

TEST_F(DriverTest, AFailureWhileOpeningLeavesNothing) {
  for (const char* function :
       {"cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2", "cuDevicePrimaryCtxRetain"}) {
    fake::state().failures = {{function, 2}};
    EXPECT_EQ(Device::open(0).status().code(), StatusCode::kResourceExhausted) << function;
    EXPECT_EQ(fake::state().alive.contexts, 0) << function;
  }
}

TEST_F(DriverTest, WhatADeviceIs) {
  const auto device = Device::open(0);
  ASSERT_TRUE(device.ok());
  const DeviceInfo& info = device->info();
  EXPECT_EQ(info.name, "Fake H200");
  EXPECT_EQ(info.arch(), "sm_90a");
  EXPECT_EQ(info.num_sms, fake::kMultiprocessors);
  EXPECT_EQ(info.smem_optin_bytes, 232448);
  EXPECT_EQ(info.memory_bytes, std::int64_t{1} << 24);
  EXPECT_EQ(info.driver_version, 13000);
  EXPECT_EQ(*device->memory_available(), std::size_t{1} << 24);
  DeviceInfo ada;
  ada.major = 8;
  ada.minor = 9;
  EXPECT_EQ(ada.arch(), "sm_89");
}

TEST_F(DriverTest, TheContextIsKeptWhileADeviceIs) {
  {
    auto device = Device::open(0);
    const Device copy = *device;
    device = Status(StatusCode::kCancelled, "gone");
    EXPECT_EQ(fake::state().alive.contexts, 1);
    const ScopedContext outer(copy);
    const ScopedContext inner(copy);
    EXPECT_EQ(fake::state().calls["cuCtxPushCurrent_v2"], 1);  // not again where it is current
  }
  EXPECT_EQ(fake::state().alive.contexts, 0);
  EXPECT_EQ(fake::state().calls["cuCtxPopCurrent_v2"], 1);
}

// The driver keeps nothing for a child that was forked behind its start, and answers it with codes that say nothing.
TEST_F(DriverTest, AChildOfAProcessThatStartedCudaIsTold) {
  ASSERT_TRUE(driver().ok()) << driver().status().to_string();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Status status = driver().status();
    const bool told = status.code() == StatusCode::kUnavailable && status.message().find("spawn") != std::string::npos;
    ::_exit(told ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

}  // namespace
}  // namespace fovea::cuda
