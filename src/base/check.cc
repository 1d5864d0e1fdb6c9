// Where a failed FOVEA_CHECK ends; see base/check.h.
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace fovea {

void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace fovea
