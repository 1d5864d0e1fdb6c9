// The smallest user of an installed Fovea: asks for a model that is not there and expects to be told so.
#include <fovea/engine.h>

#include <cstdio>

int main() {
  const auto engine = fovea::Engine::create({.model = "/no/such/model"});
  std::printf("%s\n", engine.status().to_string().c_str());
  return engine.status().code() == fovea::StatusCode::kNotFound ? 0 : 1;
}
