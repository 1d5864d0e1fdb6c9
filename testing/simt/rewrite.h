// What of a kernel's source is rewritten so that it compiles for the host and runs in the emulator: assembly becomes
// calls that interpret it, dynamic shared memory that of the CTA. Nothing else changes, and lines stay where they are.
#pragma once

#include <string>
#include <string_view>

namespace simt {

// Throws std::runtime_error for what it cannot read.
std::string rewrite(std::string_view source);

// A translation unit that defines `extern "C" void simt_<name>(const void* const* params)`, which calls the kernel
// `entry` of a rewritten source. Names of the namespace `space` become its own, so that many units link together.
std::string translation_unit(std::string_view name, std::string_view space, std::string_view entry,
                             std::string_view source);

}  // namespace simt
