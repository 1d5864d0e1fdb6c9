// An engine of random weights on a CUDA device without a GPU (cuda/testing/fake_driver.h, host_kernels.h), and requests
// for it. Used by tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/engine_model_test_util.h"
#include "engine/model/model_golden_test_util.h"
#include "tests/gpu/host_kernels.h"

namespace fovea {

// Before anything asks for the driver or for kernels.
inline const bool kPrepared =
    cuda::fake::name_driver_and_cache() && ::setenv("FOVEA_CUBLASLT", cuda::fake::library_path().c_str(), 1) == 0;

inline constexpr const char* kCudaDevice = "cuda:0";

inline void prepare_cuda(const std::string& golden) {
  ASSERT_TRUE(kPrepared);
  cuda::fake::state() = {};
  cuda::fake::state().memory_bytes = std::size_t{1} << 30;
  const auto config = load_model_config(kGoldens / golden);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  host_kernels::install(config->head_dim, config->attention_softcap > 0.0f ? VariantId::kSoftcap : VariantId::kPlain,
                        static_cast<abi::GateKind>(config->activation));
}

class CudaEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    prepare_cuda("llama31");
    path_ = temp_config("cuda_engine");
    ASSERT_TRUE(write_file_atomic(path_, config_of("llama31")).ok());
    options_.device = kCudaDevice;
    options_.num_threads = 1;
    options_.kv_cache_bytes = 16 << 20;
    options_.chunk_tokens = 64;
    options_.max_context = 400;
    PhiloxRng rng(3);
    for (int i = 0; i < 6; ++i) {
      GenerateRequest request;
      for (int t = 0; t < 20 + 30 * i; ++t) {
        request.prompt.push_back(t < 40 ? t : static_cast<std::int32_t>(rng.next_below(128)));
      }
      request.sampling.max_tokens = 12;
      request.sampling.ignore_eos = true;
      request.sampling.temperature = 0.0f;
      requests_.push_back(request);
    }
  }
  void TearDown() override {
    cuda::fake::state().failures.clear();
    std::filesystem::remove(path_);
  }
  std::vector<Answer> answers(bool together = true) {
    EngineStats stats;
    return run(path_, {}, options_, requests_, together, stats);
  }

  std::filesystem::path path_;
  EngineOptions options_;
  std::vector<GenerateRequest> requests_;
};

inline std::vector<Tokens> tokens_of(const std::vector<Answer>& answers) {
  std::vector<Tokens> all;
  for (const Answer& answer : answers) all.push_back(answer.tokens);
  return all;
}

}  // namespace fovea
