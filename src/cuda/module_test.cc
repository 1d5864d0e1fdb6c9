// Loading cubins, launching kernels, encoding tensor maps: arguments that reach the driver, and those that must not.
#include "cuda/module.h"

#include <cstring>
#include <vector>

#include "cuda/fake_test_util.h"
#include "cuda/memory.h"
#include "cuda/tensor_map.h"

namespace fovea::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// An ELF header, and one section of 64 bytes in its table.
std::vector<std::byte> cubin() {
  std::vector<std::byte> bytes(128);
  std::memcpy(bytes.data(),
              "\x7f"
              "ELF",
              4);
  const std::uint64_t table = 64;
  const std::uint16_t section[2] = {64, 1};
  std::memcpy(bytes.data() + 40, &table, sizeof table);
  std::memcpy(bytes.data() + 58, section, sizeof section);
  return bytes;
}

class ModuleTest : public FakeCudaTest {
 protected:
  Function fill() {
    const auto module = Module::load(*device_, cubin());
    EXPECT_TRUE(module.ok()) << module.status().to_string();
    const auto function = module->function("fill");
    EXPECT_TRUE(function.ok()) << function.status().to_string();
    return *function;
  }
};

TEST_F(ModuleTest, AFunctionKeepsItsModule) {
  {
    const Function function = fill();
    EXPECT_EQ(fake::state().alive.modules, 1);
    EXPECT_TRUE(function.set_max_smem(200 << 10).ok());
    EXPECT_EQ(function.set_max_smem(1 << 20).code(), StatusCode::kUnsupported);
  }
  EXPECT_EQ(fake::state().alive.modules, 0);
}

TEST_F(ModuleTest, CubinsThatAreNotWholeNeverReachTheDriver) {
  const std::vector<std::byte> whole = cubin();
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_EQ(Module::load(*device_, std::span(whole).first(bytes)).status().code(), StatusCode::kDataLoss) << bytes;
  }
  std::vector<std::byte> far = whole;
  std::memset(far.data() + 40, 0xff, 8);  // the table lies beyond any file
  EXPECT_EQ(Module::load(*device_, far).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(fake::state().calls["cuModuleLoadData"], 0);
}

TEST_F(ModuleTest, CubinsThatTheDriverRefuses) {
  fail("cuModuleLoadData", kCuNoBinaryForDevice);
  const Status other = Module::load(*device_, cubin()).status();
  EXPECT_EQ(other.code(), StatusCode::kUnsupported);
  EXPECT_THAT(other.message(), HasSubstr("Fake H200 (sm_90a)"));
  fail("cuModuleLoadData", kCuOutOfMemory);
  EXPECT_EQ(Module::load(*device_, cubin()).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(ModuleTest, KernelsThatAreNotThere) {
  const auto module = Module::load(*device_, cubin());
  const Status status = module->function("file").status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("no kernel file"));
  EXPECT_EQ(launch(Function(), {}, {}).code(), StatusCode::kInvalidArgument);
}

TEST_F(ModuleTest, LaunchesPassEverythingOn) {
  const Function function = fill();
  const auto buffer = DeviceBuffer::create(*device_, 16, true);
  std::uint32_t* to = buffer->as<std::uint32_t>();
  std::uint32_t value = 77, count = 3;
  void* const args[] = {&to, &value, &count};
  LaunchConfig config;
  config.grid[0] = 132;
  config.block[0] = 128;
  config.smem_bytes = 1000;
  ASSERT_TRUE(launch(function, config, args).ok());
  EXPECT_EQ(std::vector<std::uint32_t>(to, to + 4), (std::vector<std::uint32_t>{77, 77, 77, 0}));
  EXPECT_EQ(fake::state().launch.grid[0], 132u);
  EXPECT_EQ(fake::state().launch.block[0], 128u);
  EXPECT_EQ(fake::state().launch.smem_bytes, 1000u);
  EXPECT_EQ(fake::state().launch.cluster[0], 0u);
  EXPECT_FALSE(fake::state().launch.programmatic);

  config.cluster[0] = 2;
  config.programmatic_serialization = true;
  ASSERT_TRUE(launch(function, config, args).ok());
  EXPECT_EQ(fake::state().launch.cluster[0], 2u);
  EXPECT_EQ(fake::state().launch.cluster[1], 1u);
  EXPECT_TRUE(fake::state().launch.programmatic);

  fail("cuLaunchKernelEx", 1);
  const Status status = launch(function, config, args);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("132 x 1 x 1 CTAs of 128 x 1 x 1 threads with 1000 bytes"),
                                      HasSubstr("clusters of 2 x 1 x 1"), HasSubstr("programmatic serialization")));
}

class TensorMapTest : public FakeCudaTest {
 protected:
  TensorMapSpec spec() const {
    TensorMapSpec s;
    s.address = reinterpret_cast<void*>(0x1000);
    s.rank = 2;
    s.dims[0] = 128;
    s.dims[1] = 1000;
    s.strides[1] = 256;
    s.box[0] = 64;
    s.box[1] = 16;
    s.swizzle = Swizzle::k128;
    return s;
  }
  Result<abi::TensorMap> encode(const TensorMapSpec& s) const { return encode_tensor_map(device_->driver(), s); }
};

TEST_F(TensorMapTest, IsWhatTheDriverMade) {
  const auto map = encode(spec());
  ASSERT_TRUE(map.ok()) << map.status().to_string();
  EXPECT_EQ(map->words[0], 0x1000u);
  fail("cuTensorMapEncodeTiled", 1);
  const Status status = encode(spec()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("128 (stride 0, box 64), 1000 (stride 256, box 16)"));
}

TEST_F(TensorMapTest, LimitsAreNamedBeforeTheDriverIsAsked) {
  const auto expect = [&](const char* text, auto change) {
    TensorMapSpec s = spec();
    change(s);
    const Status status = encode(s).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  expect("0 dims", [](TensorMapSpec& s) { s.rank = 0; });
  expect("6 dims", [](TensorMapSpec& s) { s.rank = 6; });
  expect("aligned to 16", [](TensorMapSpec& s) { s.address = reinterpret_cast<void*>(0x1008); });
  expect("aligned to 16", [](TensorMapSpec& s) { s.address = nullptr; });
  expect("dim 1 of a tensor map has 0 elements", [](TensorMapSpec& s) { s.dims[1] = 0; });
  expect("dim 0", [](TensorMapSpec& s) { s.dims[0] = (std::uint64_t{1} << 32) + 1; });
  expect("stride of 120 bytes", [](TensorMapSpec& s) { s.strides[1] = 120; });
  expect("below 2^40", [](TensorMapSpec& s) { s.strides[1] = std::uint64_t{1} << 40; });
  expect("257 elements in dim 1", [](TensorMapSpec& s) { s.box[1] = 257; });
  expect("0 elements in dim 0", [](TensorMapSpec& s) { s.box[0] = 0; });
  expect("have 40 bytes, expected a multiple of 16", [](TensorMapSpec& s) { s.box[0] = 20; });
  expect("have 256 bytes, its swizzle takes 128", [](TensorMapSpec& s) { s.box[0] = 128; });
  expect("its swizzle takes 32", [](TensorMapSpec& s) { s.swizzle = Swizzle::k32; });
  expect("unknown swizzle 9", [](TensorMapSpec& s) { s.swizzle = static_cast<Swizzle>(9); });
  expect("unknown type 9", [](TensorMapSpec& s) { s.type = static_cast<TensorMapType>(9); });
  EXPECT_EQ(fake::state().calls["cuTensorMapEncodeTiled"], 0);
}

}  // namespace
}  // namespace fovea::cuda
