// The kernels of the ladder, from a thread a row to what the prefill kernel is built on: sources and launches. Used by
// `fovea bench attention --suite ladder` and the emulator's tests; docs/kernels/prefill.md explains them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "fovea/status.h"
#include "jit/kernel_source.h"

namespace fovea::jit {

struct LadderKernel {
  const char* name;
  const char* header;
  const char* entry;  // kernel(abi::LadderArgs), with maps also kernel(abi::LadderArgs, abi::LadderMaps)
  bool overlapped;
  bool maps;
  std::uint32_t rows;     // query tokens a CTA, of one head
  std::uint32_t threads;  // a CTA
  std::uint32_t smem_bytes;

  std::uint32_t ctas(std::uint32_t tokens, std::uint32_t heads) const { return (tokens + rows - 1) / rows * heads; }
};

// From the slowest to the fastest.
std::span<const LadderKernel> ladder_kernels();
// kUnsupported for architectures that the kernel does not run on.
Result<KernelSource> ladder_source(const LadderKernel& kernel, const std::string& arch);

}  // namespace fovea::jit
