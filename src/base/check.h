// FOVEA_CHECK: for bugs of our own, never for input. Prints the place and the condition, then aborts.
#pragma once

namespace fovea {
[[noreturn]] void check_failed(const char* file, int line, const char* condition);
}  // namespace fovea

#define FOVEA_CHECK(condition) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : ::fovea::check_failed(__FILE__, __LINE__, #condition))
