// A user's variant as kernels of the CPU backend: its text, put into the same executor as the shipped variants,
// compiled by the system's C++ compiler for the instruction set in use. Called by backends and by users' tests.
#pragma once

#include "cpu/attention/item.h"
#include "fovea/status.h"
#include "jit/host_compiler.h"
#include "jit/variant_spec.h"

namespace fovea::cpu {

// Kernels for run_attention with VariantArgs::shipped() as the parameters. kInvalidArgument with messages that point at
// lines of the variant's text; kUnavailable without a compiler or without Highway's headers (package libhwy-dev).
Result<AttentionKernels> compile_variant(const jit::VariantSpec& spec,
                                         jit::HostCompiler& compiler = jit::HostCompiler::shared(),
                                         jit::Origin* origin = nullptr);

}  // namespace fovea::cpu
