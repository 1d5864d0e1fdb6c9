// A served model asks for no kernel that `fovea warmup` has not compiled: on a CUDA device without a GPU, in a process
// of its own, since kernels are counted.
#include <gtest/gtest.h>

#include "attention/cuda_executor.h"
#include "device/cuda/cuda_linear.h"
#include "device/cuda/cuda_ops.h"
#include "jit/compiler.h"
#include "tests/gpu/cuda_engine_test_util.h"

namespace fovea {
namespace {

using CudaWarmup = CudaEngine;

TEST_F(CudaWarmup, ServingAsksForNothingElse) {
  const auto config = load_model_config(path_.string());
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  AttentionOptions attention;
  attention.device = "cuda";
  attention.num_qo_heads = config->num_qo_heads;
  attention.num_kv_heads = config->num_kv_heads;
  attention.head_dim = config->head_dim;
  attention.q_dtype = attention.kv_dtype = DType::kBF16;
  attention.page_tokens = 16;
  const std::string arch = "sm_90a";
  const ProductSizes sizes = {config->hidden_size, std::int64_t{config->num_qo_heads} * config->head_dim,
                              config->intermediate_size};
  std::size_t products = 0;
  for (const auto& kernels :
       {attention_kernels(attention, arch),
        op_kernels(arch, DType::kBF16, config->hidden_size, config->head_dim, config->rope.rotary_dim),
        product_kernels(arch, DType::kBF16, false, sizes, config->activation)}) {
    ASSERT_TRUE(kernels.ok()) << kernels.status().to_string();
    products = kernels->size();
    for (const jit::KernelSource& kernel : *kernels) {
      const auto cubin = jit::Compiler::shared().get(kernel);
      ASSERT_TRUE(cubin.ok()) << cubin.status().to_string();
    }
  }
  EXPECT_GE(products, 3u);
  const std::size_t known = jit::Compiler::shared().num_kernels();
  // Greedy and drawn, alone and together, with logits for the host: prompts, decodes, and steps of one and of many.
  requests_[1].sampling.temperature = 0.8f;
  requests_[2].sampling.logprobs = 1;
  requests_[3].n = 3;
  for (const bool together : {false, true}) {
    EXPECT_FALSE(answers(together).empty());
    EXPECT_EQ(jit::Compiler::shared().num_kernels(), known) << "a kernel was compiled while serving";
  }
  EXPECT_GT(cuda::fake::state().calls["cuGraphLaunch"], 0);
  // Draft trees with branches, some of them accepted: answers of few words.
  GenerateRequest wandering = requests_[0];
  for (int i = 0; i < 60; ++i) wandering.prompt.push_back(i * i % 3);
  for (std::int32_t token = 0; token < 3; ++token) wandering.sampling.logit_bias.push_back({token, 100.0f});
  wandering.sampling.temperature = 2.0f;
  wandering.sampling.max_tokens = 100;
  options_.speculate = "ngram";
  EngineStats stats;
  const auto even = [now = 0.0]() mutable { return now += 1e-3; };  // draft tokens cost next to nothing
  (void)run(path_, {}, options_, {wandering}, false, stats, {}, nullptr, nullptr, even);
  EXPECT_GT(stats.accepted_branches, 0u);
  EXPECT_EQ(jit::Compiler::shared().num_kernels(), known) << "a kernel was compiled for draft tokens";
}

}  // namespace
}  // namespace fovea
