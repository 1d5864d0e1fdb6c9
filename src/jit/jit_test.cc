// Compiling with NVRTC: what comes out, where errors point, who compiles when many ask. NVRTC comes from its wheel,
// which set-up installs; no GPU is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/log.h"
#include "jit/attention_spec.h"
#include "jit/compiler.h"
#include "jit/nvrtc.h"
#include "jit/sources.h"

namespace fovea::jit {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::uint64_t kLimit = std::uint64_t{1} << 30;

// Gone with the test.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = ::testing::TempDir() + "fovea-jit-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

KernelSource small_kernel(const std::string& arch = "sm_90a") {
  return {"small",
          R"(#include "abi/attention_args.h"
extern "C" __global__ void first(float* p) {
  __shared__ float s[128];
  s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = s[127 - threadIdx.x];
}
extern "C" __global__ void second(fovea::abi::AttentionArgs args) { args.lse[0] = 0.0f; }
)",
          arch,
          {}};
}

TEST(SourcesTest, HoldWhatKernelsInclude) {
  EXPECT_TRUE(has_source(device_sources(), "abi/plan.h"));
  EXPECT_TRUE(has_source(device_sources(), "variant/variants_inl.h"));
  EXPECT_FALSE(has_source(device_sources(), "base/status.h"));
  EXPECT_TRUE(has_source(host_only_sources(), "cpu/attention/executor_inl.h"));
  for (const SourceFile& file : device_sources()) {
    std::ifstream in(std::string(FOVEA_SOURCE_DIR "/src/") + file.path);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    EXPECT_EQ(file.text(), text) << file.path;
    EXPECT_EQ(*file.end, '\0');
  }
}

TEST(CompilerTest, CompilesForBothArchitecturesAndTellsResources) {
  const TempFolder folder;
  Compiler compiler(folder / "cache", kLimit);
  for (const char* arch : {"sm_80", "sm_90a"}) {
    Origin origin;
    const Result<CubinPtr> cubin = compiler.get(small_kernel(arch), &origin);
    ASSERT_TRUE(cubin.ok()) << cubin.status().to_string();
    EXPECT_EQ(origin, Origin::kCompiled);
    const auto& bytes = (*cubin)->bytes;
    ASSERT_GT(bytes.size(), 1000u);
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(bytes.data()), 4), "\177ELF");
    ASSERT_EQ((*cubin)->kernels.size(), 2u) << (*cubin)->log;
    const KernelResources* first = (*cubin)->find("first");
    ASSERT_NE(first, nullptr);
    EXPECT_GT(first->registers, 4);
    EXPECT_EQ(first->static_smem_bytes, 512);
    EXPECT_EQ(first->spill_store_bytes, 0);
    EXPECT_EQ((*cubin)->find("second")->static_smem_bytes, 0);
    EXPECT_EQ((*cubin)->find("third"), nullptr);
  }
}

TEST(CompilerTest, LogTellsSpills) {
  const TempFolder folder;
  Compiler compiler(folder / "cache", kLimit);
  KernelSource source = small_kernel();
  source.text = R"(extern "C" __global__ void spills(float* p) {
  float x[96];
  #pragma unroll
  for (int i = 0; i < 96; ++i) x[i] = p[i * 7 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 96; ++i) p[(95 - i) * 5 + threadIdx.x] = x[i] * x[(i * 31) % 96];
})";
  source.flags = {"-maxrregcount=32"};
  const Result<CubinPtr> cubin = compiler.get(source);
  ASSERT_TRUE(cubin.ok()) << cubin.status().to_string();
  const KernelResources* kernel = (*cubin)->find("spills");
  ASSERT_NE(kernel, nullptr) << (*cubin)->log;
  EXPECT_EQ(kernel->registers, 32);
  EXPECT_GT(kernel->spill_store_bytes, 0);
  EXPECT_GT(kernel->spill_load_bytes, 0);
  EXPECT_GT(kernel->stack_bytes, 0);
}

TEST(CompilerTest, MemoryThenDiskThenCompiler) {
  const TempFolder folder;
  Origin origin;
  std::vector<std::byte> bytes;
  {
    Compiler compiler(folder / "a/b", kLimit);
    EXPECT_FALSE(compiler.is_stored(small_kernel()));
    Result<CubinPtr> cubin = compiler.get(small_kernel(), &origin);
    ASSERT_TRUE(cubin.ok()) << cubin.status().to_string();
    bytes = (*cubin)->bytes;
    EXPECT_EQ((*compiler.get(small_kernel(), &origin))->bytes, bytes);
    EXPECT_EQ(origin, Origin::kMemory);
    EXPECT_TRUE(compiler.is_stored(small_kernel()));
  }
  {
    Compiler compiler(folder / "a/b", kLimit);
    const Result<CubinPtr> cubin = compiler.get(small_kernel(), &origin);
    EXPECT_EQ(origin, Origin::kDisk);
    EXPECT_EQ((*cubin)->bytes, bytes);
    EXPECT_EQ((*cubin)->kernels.size(), 2u);
    KernelSource other = small_kernel();
    other.flags = {"-lineinfo"};
    ASSERT_TRUE(compiler.get(other, &origin).ok());
    EXPECT_EQ(origin, Origin::kCompiled);
  }
  for (const auto& entry : fs::directory_iterator(folder / "a/b")) {
    EXPECT_EQ(entry.path().extension(), ".bin") << "left behind: " << entry.path();
  }
}

TEST(CompilerTest, DamagedEntriesAreMadeAgain) {
  const TempFolder folder;
  ASSERT_TRUE(Compiler(folder / "", kLimit).get(small_kernel()).ok());
  const fs::path entry = fs::directory_iterator(folder / "")->path();
  const std::uint64_t size = fs::file_size(entry);
  const auto damage = [&](int how) {
    if (how == 0) fs::resize_file(entry, size / 2);
    if (how == 1) fs::resize_file(entry, 0);
    if (how == 2) {
      std::fstream file(entry, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(size) - 100);
      file.write("damage", 6);
    }
    if (how == 3) std::ofstream(entry) << std::string(100, 'x');
  };
  for (int how = 0; how < 4; ++how) {
    damage(how);
    Origin origin;
    ASSERT_TRUE(Compiler(folder / "", kLimit).get(small_kernel(), &origin).ok());
    EXPECT_EQ(origin, Origin::kCompiled) << how;
    EXPECT_GT(fs::file_size(entry), size - 100) << "the log tells times, so sizes differ a little";
    ASSERT_TRUE(Compiler(folder / "", kLimit).get(small_kernel(), &origin).ok());
    EXPECT_EQ(origin, Origin::kDisk) << how;
  }
}

// Two compilers share only the folder, as two processes do.
TEST(CompilerTest, ManyThreadsAndProcessesCompileOnce) {
  const TempFolder folder;
  Compiler compilers[2] = {{folder / "cache", kLimit}, {folder / "cache", kLimit}};
  std::vector<Origin> origins(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < origins.size(); ++i) {
    threads.emplace_back([&, i] {
      const Result<CubinPtr> cubin = compilers[i % 2].get(small_kernel(), &origins[i]);
      EXPECT_TRUE(cubin.ok()) << cubin.status().to_string();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count(origins.begin(), origins.end(), Origin::kCompiled), 1);
  EXPECT_EQ(std::count(origins.begin(), origins.end(), Origin::kDisk), 1);
  EXPECT_EQ(std::count(origins.begin(), origins.end(), Origin::kMemory), 6);
}

TEST(CompilerTest, WithoutADiskItWorksAndWarnsOnce) {
  const TempFolder folder;
  std::ofstream(folder / "file") << "not a folder";
  std::vector<std::string> warnings;
  const LogLevel level = log_level();
  set_log_level(LogLevel::kWarning);
  set_log_sink([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  Compiler compiler(folder / "file/below", kLimit);
  Origin origin;
  EXPECT_TRUE(compiler.get(small_kernel("sm_80"), &origin).ok());
  EXPECT_EQ(origin, Origin::kCompiled);
  EXPECT_TRUE(compiler.get(small_kernel("sm_80"), &origin).ok());
  EXPECT_EQ(origin, Origin::kMemory);
  EXPECT_TRUE(compiler.get(small_kernel("sm_90a"), &origin).ok());
  set_log_sink({});
  set_log_level(level);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("FOVEA_CACHE_DIR"));
  Compiler off("", kLimit);
  EXPECT_TRUE(off.get(small_kernel(), &origin).ok());
}

// A write that fails in the middle, as on a full disk.
TEST(CompilerTest, AFullDiskLeavesNothingBehind) {
  const TempFolder folder;
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit tiny { 100, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tiny), 0);
  Compiler compiler(folder / "", kLimit);
  Origin origin;
  const Status status = compiler.get(small_kernel(), &origin).status();
  const bool stored = compiler.is_stored(small_kernel());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(origin, Origin::kCompiled);
  EXPECT_FALSE(stored);
  EXPECT_TRUE(fs::is_empty(folder / ""));
}

class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("FOVEA_NVRTC"); value != nullptr) before_ = value;
  }
  void TearDown() override {
    ::setenv("FOVEA_NVRTC", before_.c_str(), 1);
    set_newest_cuda(0);
  }
  std::string before_;
};

TEST_F(NvrtcTest, IsFoundWithItsVersionWithoutLoading) {
  const Result<NvrtcPlace> place = find_nvrtc();
  ASSERT_TRUE(place.ok()) << place.status().to_string();
  const Result<const Nvrtc*> nvrtc = Nvrtc::load();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.status().to_string();
  EXPECT_EQ((*nvrtc)->version(), place->version);
  ::setenv("FOVEA_NVRTC", fs::path(place->path).parent_path().c_str(), 1);
  EXPECT_EQ(find_nvrtc()->path, place->path);
  ::setenv("FOVEA_NVRTC", place->path.c_str(), 1);
  EXPECT_EQ(find_nvrtc()->version, place->version);
}

TEST_F(NvrtcTest, AbsentItSaysWhatToDoAndTheCacheStillServes) {
  const TempFolder folder;
  ASSERT_TRUE(Compiler(folder / "", kLimit).get(small_kernel()).ok());
  ::setenv("FOVEA_NVRTC", "/nowhere/libnvrtc.so.13", 1);
  Compiler compiler(folder / "", kLimit);
  Origin origin;
  EXPECT_TRUE(compiler.get(small_kernel(), &origin).ok());
  EXPECT_EQ(origin, Origin::kDisk);
  const Status status = compiler.get(small_kernel("sm_80")).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("FOVEA_NVRTC is /nowhere/libnvrtc.so.13"));
  ::setenv("FOVEA_NVRTC", (folder / "").c_str(), 1);
  EXPECT_THAT(find_nvrtc().status().message(), HasSubstr("a folder without libnvrtc.so"));
}

// A driver of CUDA 12 loads no kernel that an NVRTC of 13 made.
TEST_F(NvrtcTest, IsNoNewerThanTheDriver) {
  const TempFolder folder;
  const Result<NvrtcPlace> place = find_nvrtc();
  ASSERT_TRUE(place.ok()) << place.status().to_string();
  const int major = std::stoi(place->version);
  for (const int version : {major + 1, major, major - 1}) {
    std::ofstream(folder / ("libnvrtc.so." + std::to_string(version))) << "x";
    std::ofstream(folder / ("libnvrtc-builtins.so." + std::to_string(version) + ".4")) << "x";
  }
  ::setenv("FOVEA_NVRTC", (folder / "").c_str(), 1);
  EXPECT_EQ(find_nvrtc()->version, std::to_string(major + 1) + ".4");
  set_newest_cuda(major);
  EXPECT_EQ(find_nvrtc()->version, std::to_string(major) + ".4");
  set_newest_cuda(major - 2);
  const std::string too_new = "speaks CUDA " + std::to_string(major - 2) + ", does not load";
  EXPECT_EQ(find_nvrtc().status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(find_nvrtc().status().message(), HasSubstr(too_new));
  ::setenv("FOVEA_NVRTC", place->path.c_str(), 1);
  set_newest_cuda(major - 1);
  EXPECT_EQ(find_nvrtc().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(Nvrtc::load().status().code(), StatusCode::kUnavailable);
  set_newest_cuda(major);
  EXPECT_TRUE(Nvrtc::load().ok());
}

TEST_F(NvrtcTest, AbsentItTheNewestKernelThatTheDriverLoadsServes) {
  const TempFolder folder;
  ASSERT_TRUE(Compiler(folder / "", kLimit).get(small_kernel()).ok());
  const fs::path made = fs::directory_iterator(folder / "")->path();
  const std::string key = made.stem().stem().stem().string();
  ASSERT_EQ(key.size(), 32u);
  DiskCache cache(folder / "", kLimit);
  for (const char* tool : {"nvrtc9.2", "nvrtc12.10", "nvrtc12.9", "nvrtc99.0"}) cache.publish(key, tool, {tool, {}});
  fs::remove(made);
  ::setenv("FOVEA_NVRTC", "/nowhere/libnvrtc.so.13", 1);
  const auto served = [&](int newest) {
    set_newest_cuda(newest);
    const Result<CubinPtr> cubin = Compiler(folder / "", kLimit).get(small_kernel());
    return cubin.ok() ? (*cubin)->log : cubin.status().message();
  };
  EXPECT_EQ(served(0), "nvrtc99.0");
  EXPECT_EQ(served(12), "nvrtc12.10");
  EXPECT_EQ(served(11), "nvrtc9.2");
  EXPECT_THAT(served(8), HasSubstr("is not in the cache"));
}

TEST(CompilerTest, UnknownArchitecturesAreRefused) {
  Compiler compiler("", kLimit);
  EXPECT_EQ(compiler.get(small_kernel("sm_1")).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(compiler.get(small_kernel("compute_80")).status().code(), StatusCode::kUnsupported);
  for (const char* arch : {"", "90a", "sm_", "sm_75", "hopper"}) {
    EXPECT_EQ(kernel_arch(arch).status().code(), StatusCode::kUnsupported) << arch;
  }
  EXPECT_EQ(*kernel_arch("sm_90a"), 900);
  EXPECT_EQ(*kernel_arch("sm_89"), 800);
}

// A kernel that calls the hooks, in place of an attention kernel.
KernelSource hooks_kernel(const VariantSpec& variant, const std::string& arch) {
  AttentionKernelSpec spec;
  spec.arch = arch;
  spec.header = "variant/scalar_math.h";
  spec.variant = variant;
  Result<KernelSource> source = attention_source(spec);
  EXPECT_TRUE(source.ok()) << source.status().to_string();
  source->text += R"(
using V = FOVEA_VARIANT;
using M = fovea::variant::ScalarMath;
extern "C" __global__ void hooks(const fovea::AttentionParams* params, float* x) {
  const auto& p = fovea::variant::params_of<V>(*params);
  const fovea::variant::LogitPlace<float> at{1.0f, 2.0f, 3, 4};
  const fovea::variant::RowPlace row{static_cast<int>(threadIdx.x), 1, FOVEA_HEAD_DIM};
  if (V::kHasLogit) x[0] = V::template logit<M>(p, x[0], at);
  if (V::kHasVisible && !V::template visible<M>(p, at)) x[1] = 0.0f;
  if (!V::kSoftmax) x[2] = V::template weight<M>(p, x[2]);
  if (V::kHasQuery) x[3] = V::query(p, x, 1, row);
  if (V::kHasKey) x[4] = V::key(p, x, 1, row);
  if (V::kHasValue) x[5] = V::value(p, x, 1, row);
  if (V::kHasExtraLogit) x[6] = V::extra_logit(p, 2);
  if (V::kHasOutput) x[7] = V::output(p, x[7], 1, row);
}
)";
  return *source;
}

TEST(AttentionSpecTest, ShippedVariantsCompile) {
  Compiler compiler("", kLimit);
  for (int id = 0; id < kNumVariants; ++id) {
    for (const char* arch : {"sm_80", "sm_90a"}) {
      const Result<CubinPtr> cubin = compiler.get(hooks_kernel(shipped_variant(static_cast<VariantId>(id)), arch));
      EXPECT_TRUE(cubin.ok()) << cubin.status().to_string();
    }
  }
}

TEST(AttentionSpecTest, WrongSpecsAreRefused) {
  AttentionKernelSpec spec;
  spec.header = "variant/scalar_math.h";
  ASSERT_TRUE(attention_source(spec).ok());
  const auto code = [&](auto change) {
    AttentionKernelSpec wrong = spec;
    change(wrong);
    return attention_source(wrong).status().code();
  };
  EXPECT_EQ(code([](auto& s) { s.head_dim = 100; }), StatusCode::kUnsupported);
  EXPECT_EQ(code([](auto& s) { s.head_dim = 512; }), StatusCode::kUnsupported);
  EXPECT_EQ(code([](auto& s) { s.q_dtype = abi::KvDType::kF32; }), StatusCode::kUnsupported);
  EXPECT_EQ(code([](auto& s) { s.kv_dtype = abi::KvDType::kF32; }), StatusCode::kUnsupported);
  EXPECT_EQ(code([](auto& s) { s.arch = "sm_70"; }), StatusCode::kUnsupported);
  EXPECT_EQ(code([](auto& s) { s.header = "kernels/none.cuh"; }), StatusCode::kNotFound);
  EXPECT_EQ(code([](auto& s) { s.variant.name = "not a name"; }), StatusCode::kInvalidArgument);
}

TEST(AttentionSpecTest, ErrorsPointAtTheUsersLine) {
  Compiler compiler("", kLimit);
  VariantSpec variant;
  variant.name = "Wrong";
  variant.file = "my_variant.h";
  variant.source = R"(struct Wrong : Plain {
  template <class M>
  static typename M::F logit(const Params& p, typename M::F s, const LogitPlace<typename M::F>& at) {
    return s * M::set(p.temperature);
  }
};)";
  Status status = compiler.get(hooks_kernel(variant, "sm_90a")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("my_variant.h(4): error"));
  EXPECT_THAT(status.message(), HasSubstr("temperature"));
  variant.params = {{"temperature", VariantParamType::kFloat}};
  const Result<CubinPtr> cubin = compiler.get(hooks_kernel(variant, "sm_90a"));
  EXPECT_TRUE(cubin.ok()) << cubin.status().to_string();
  variant.source = "struct Wrong : Plain { static float query(const Params&) { return 0; } ;";
  EXPECT_EQ(compiler.get(hooks_kernel(variant, "sm_90a")).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fovea::jit
