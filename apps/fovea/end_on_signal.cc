#include "end_on_signal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "command.h"

namespace fovea::app {
namespace {

void watch(int signals, int over, const std::string& last_words) {
  pollfd entries[] = {{signals, POLLIN, 0}, {over, POLLIN, 0}};
  while (::poll(entries, 2, -1) < 0 && errno == EINTR) {
  }
  ::close(signals);
  if ((entries[1].revents & POLLIN) != 0) return;  // a signal as well is left to who waits for it next
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, last_words.data(), last_words.size());
  std::_Exit(kExitOk);
}

}  // namespace

EndOnSignal::EndOnSignal(std::string last_words) : over_(::eventfd(0, EFD_CLOEXEC)) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  const int signals = ::signalfd(-1, &set, SFD_CLOEXEC);
  if (over_ < 0 || signals < 0) {  // no descriptors: signals wait for what comes next, as they would without
    if (signals >= 0) ::close(signals);
    return;
  }
  thread_ = std::thread([signals, over = over_, words = std::move(last_words)] { watch(signals, over, words); });
}

EndOnSignal::~EndOnSignal() {
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(over_, &one, sizeof one);
    thread_.join();
  }
  if (over_ >= 0) ::close(over_);
}

}  // namespace fovea::app
