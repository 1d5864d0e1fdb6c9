// fovea_fake_server: the real server over an engine of a few lines that gives every request a token every 20 ms. What
// its process takes of the CPU is what HTTP and JSON cost. tests/soak measures it. Prints its URL, and ends with stdin.
// Its arguments are the tokens of each event (fovea serve --stream-interval), and the address to listen on.
#include <cstdio>
#include <cstdlib>

#include "server/server.h"
#include "server/testing/fake_engine.h"

int main(int argc, char** argv) {
  using fovea::server::FakeEngine;
  FakeEngine::Options options;
  options.token_time = std::chrono::milliseconds(20);
  options.endless = true;
  FakeEngine engine(std::move(options));
  fovea::server::ServerOptions server_options;
  server_options.http.port = 0;
  if (argc > 1) server_options.service.stream_interval = std::atoi(argv[1]);
  if (argc > 2) server_options.http.host = argv[2];
  auto server = fovea::server::Server::start(engine, server_options);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().message().c_str());
    return 1;
  }
  std::printf("fovea: serving fake at %s\n", (*server)->url().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
