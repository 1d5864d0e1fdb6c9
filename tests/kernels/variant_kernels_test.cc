// The gallery (examples/variants) inside the attention kernel itself: every variant compiles for both architectures,
// and costs no spills on the one that is tuned. Needs NVRTC, no GPU.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "jit/attention_spec.h"
#include "jit/compiler.h"
#include "jit/gallery_test_util.h"
#include "tune/attention_choice.h"

namespace fovea {
namespace {

Result<jit::KernelSource> kernel_of(const VariantSpec& variant, const std::string& arch) {
  tune::AttentionNeed need;
  need.arch = arch;
  need.transforms_kv = jit::may_transform_kv(variant);
  FOVEA_ASSIGN_OR_RETURN(const tune::AttentionChoice choice, tune::choose_attention(need));
  jit::AttentionKernelSpec spec;
  spec.arch = arch;
  spec.header = choice.header;
  spec.head_dim = need.head_dim;
  spec.q_dtype = need.q_dtype;
  spec.kv_dtype = need.kv_dtype;
  spec.loader = choice.tma ? jit::KvLoader::kTma : jit::KvLoader::kGather;
  spec.box_tokens = choice.box_tokens;
  spec.variant = variant;
  spec.tuning = choice.tuning;
  return jit::attention_source(spec);
}

TEST(VariantKernelsTest, GalleryCompilesInTheAttentionKernel) {
  struct Work {
    std::string what;
    jit::KernelSource source;
    bool tuned;
  };
  std::vector<Work> work;
  for (const jit::GalleryEntry& entry : jit::read_gallery()) {
    for (const char* arch : {"sm_80", "sm_90a"}) {
      if (std::string(arch) == "sm_80" && entry.spec.name != "FusedRope") continue;
      Result<jit::KernelSource> source = kernel_of(entry.spec, arch);
      ASSERT_TRUE(source.ok()) << source.status().to_string();
      work.push_back({entry.title + " for " + arch, *std::move(source), std::string(arch) == "sm_90a"});
    }
  }
  jit::Compiler compiler("", 0);
  std::vector<Result<jit::CubinPtr>> cubins(work.size(), Status(StatusCode::kInternal, "not compiled"));
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < work.size();) cubins[i] = compiler.get(work[i].source);
  };
  std::thread other(run);
  run();
  other.join();
  for (std::size_t i = 0; i < work.size(); ++i) {
    ASSERT_TRUE(cubins[i].ok()) << work[i].what << ": " << cubins[i].status().to_string();
    const jit::KernelResources* kernel = (*cubins[i])->find("fovea_attention");
    ASSERT_NE(kernel, nullptr) << (*cubins[i])->log;
    if (work[i].tuned) {
      EXPECT_EQ(kernel->spill_store_bytes, 0) << work[i].what << "\n" << (*cubins[i])->log;
    }
  }
}

}  // namespace
}  // namespace fovea
