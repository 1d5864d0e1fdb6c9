// Instantiations of the kernels around attention compile, without spills, and bad ones are refused.
// (tests/peers/cache_kernels_test.py compiles more of them.)
#include "jit/cache_spec.h"

#include <gtest/gtest.h>

#include "jit/compiler.h"

namespace fovea::jit {
namespace {

using abi::KvDType;

void expect_entries(const Result<KernelSource>& source, const std::vector<std::string>& names) {
  ASSERT_TRUE(source.ok()) << source.status().to_string();
  Compiler compiler("", 1 << 30);
  const Result<CubinPtr> cubin = compiler.get(*source);
  ASSERT_TRUE(cubin.ok()) << cubin.status().to_string();
  EXPECT_EQ((*cubin)->kernels.size(), names.size());
  for (const std::string& name : names) {
    const KernelResources* kernel = (*cubin)->find(name);
    ASSERT_NE(kernel, nullptr) << name;
    EXPECT_EQ(kernel->spill_load_bytes + kernel->spill_store_bytes + kernel->stack_bytes, 0) << name;
  }
}

TEST(CacheSpecTest, Compile) {
  expect_entries(append_source({.q_dtype = KvDType::kF16, .pool_dtype = KvDType::kF8E4M3, .rotate = true}),
                 {"fovea_append"});
  expect_entries(merge_source({.arch = "sm_80", .out_dtype = KvDType::kF32}),
                 {"fovea_merge_state", "fovea_merge_states"});
  expect_entries(read_source({.slabs = true}), {"fovea_read_loads", "fovea_empty"});
  expect_entries(read_source({.threads = 256, .stages = 6}), {"fovea_read_bulk", "fovea_empty"});
  expect_entries(reschedule_source("sm_90a"), {"fovea_reschedule"});
}

TEST(CacheSpecTest, Refuse) {
  EXPECT_EQ(append_source({.head_dim = 24, .vec = 8}).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(append_source({.vec = 3}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(append_source({.q_dtype = KvDType::kF8E4M3}).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(append_source({.pool_dtype = KvDType::kI4, .rotate = true}).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(append_source({.pool_dtype = KvDType::kBF16, .token_scales = true}).status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(append_source({.pool_dtype = KvDType::kF8E4M3, .rotated = true}).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(append_source({.head_dim = 96, .pool_dtype = KvDType::kI4, .rotated = true}).status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(append_source({.arch = "sm_75"}).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(merge_source({.v_dtype = KvDType::kI8}).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(read_source({.arch = "sm_80", .threads = 256, .stages = 4}).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(read_source({.threads = 256, .stages = 4, .tile_bytes = 1000}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(read_source({.threads = 48}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fovea::jit
