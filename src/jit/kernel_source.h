// What goes into the compiler of kernels and what comes out: one source text, one cubin. Made by attention_spec.h and
// by backends for their other kernels; loaded by cuda/.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::jit {

// One translation unit of CUDA C++. It may include every embedded source by its path below src/ and nothing else; its
// functions without annotations are device functions.
struct KernelSource {
  std::string name;                // for messages and listings: "attention-plain-d128-bf16"
  std::string text;                // defines macros, includes a header of kernels/
  std::string arch;                // "sm_90a", "sm_80"
  std::vector<std::string> flags;  // further options of NVRTC: "-lineinfo"
};

// What ptxas says about an entry function.
struct KernelResources {
  std::string name;
  int registers = 0;  // a thread
  int stack_bytes = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int static_smem_bytes = 0;
};

struct Cubin {
  std::string name;  // KernelSource::name
  std::vector<std::byte> bytes;
  std::string log;  // of the compiler; holds warnings
  std::vector<KernelResources> kernels;

  // The entry function's, or null.
  const KernelResources* find(std::string_view kernel) const {
    for (const KernelResources& k : kernels) {
      if (k.name == kernel) return &k;
    }
    return nullptr;
  }
};
using CubinPtr = std::shared_ptr<const Cubin>;

// The resources that a log of `ptxas -v` tells, one element an entry function, in the log's order.
std::vector<KernelResources> parse_ptxas_log(std::string_view log);

}  // namespace fovea::jit
