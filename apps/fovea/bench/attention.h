// What `fovea bench attention` was asked for, and the two devices that it runs on. Used by bench/attention*.cc.
#pragma once

#include <cstdint>
#include <string>

#include "fovea/status.h"

namespace fovea::app {

struct BenchAttentionFlags {
  std::string device = "cpu";
  std::string suite = "all";
  bool list = false;
  std::int32_t page = 16;
  std::int32_t repeats = 0;  // 0: 7 on the CPU, 25 on a GPU
  std::string json;
  std::int32_t seed = 1;      // of suite sweep,
  std::int32_t cases = 100;   // and how many of it
  bool alternatives = false;  // beside every schedule that could run a case
  // CPU
  std::int32_t threads = 0;
  std::string simd;
  std::string products = "bf16";
  double kv_gb = 1.0;
  double read_gb = 4.0;
  std::string peers;
  // GPU
  std::string layout = "NHD";
  std::string only;
  bool once = false;
};

// Whether the id holds one of the texts, which have commas between.
bool is_wanted(const std::string& id, const std::string& only);

Status bench_attention_cpu(const BenchAttentionFlags& flags);
Status bench_attention_cuda(const BenchAttentionFlags& flags);

}  // namespace fovea::app
