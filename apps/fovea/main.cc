// The fovea command line: serve, generate, chat, eval, bench, plan, doctor.
#include <cstdio>

#include "fovea/version.h"

int main() {
  std::printf("fovea %s\n", fovea::kVersion);
  return 0;
}
