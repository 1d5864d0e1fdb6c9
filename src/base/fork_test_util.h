// Runs what a test says of a forked process in a child, which may hang where the code is wrong. Used by tests of
// several folders.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <exception>
#include <thread>

namespace fovea {

// "well" where f() returned true in a child of this process within a minute, else how it ended.
template <typename F>
const char* in_child(F f) {
  const pid_t child = ::fork();
  if (child < 0) return "no fork";
  if (child == 0) {
    bool right = false;
    try {
      right = f();
    } catch (const std::exception&) {
      ::_exit(3);
    }
    ::_exit(right ? 0 : 2);
  }
  int state = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (::waitpid(child, &state, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &state, 0);
      return "hung";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!WIFEXITED(state)) return "crashed";
  return WEXITSTATUS(state) == 0 ? "well" : WEXITSTATUS(state) == 2 ? "wrong" : "failed";
}

}  // namespace fovea
