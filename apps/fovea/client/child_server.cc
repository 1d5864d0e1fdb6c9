#include "client/child_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fstream>
#include <utility>

#include "base/status.h"

namespace fovea::app {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";

// One line from the pipe, or what came before its end.
std::string read_line(int fd) {
  std::string line;
  char c = 0;
  for (;;) {
    const ssize_t count = ::read(fd, &c, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || c == '\n') return line;
    line.push_back(c);
  }
}

[[noreturn]] void become_server(int out, pid_t parent, const std::vector<std::string>& arguments) {
  // The terminal's Ctrl-C is for the parent, which then ends this process.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(out, STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(kThisProgram, argv.data());
  _exit(127);
}

}  // namespace

Result<std::unique_ptr<ChildServer>> ChildServer::start(const std::vector<std::string>& arguments) {
  if (::access(kThisProgram, X_OK) != 0) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("the server is this program started again as {}: {}; mount /proc", kThisProgram,
                              std::strerror(errno)));
  }
  std::vector<std::string> all = {"fovea", "serve", "--port", "0", "--host", "127.0.0.1", "--quiet"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return internal_error("cannot make a pipe: {}", std::strerror(errno));
  const pid_t parent = getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become_server(ends[1], parent, all);
  ::close(ends[1]);
  if (pid < 0) {
    ::close(ends[0]);
    return resource_exhausted("cannot start a process: {}", std::strerror(errno));
  }
  const std::string line = read_line(ends[0]);
  ::close(ends[0]);
  const std::size_t at = line.find("http://");
  auto address = server::parse_url(at == std::string::npos ? "" : line.substr(at));
  if (!address.ok()) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return Status(StatusCode::kUnavailable, "the server did not start; its message stands above");
  }
  return std::unique_ptr<ChildServer>(new ChildServer(pid, line.substr(at), std::move(*address)));
}

ChildServer::~ChildServer() { stop(); }

int ChildServer::stop() {
  if (pid_ <= 0) return -1;
  ::kill(pid_, SIGTERM);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

double ChildServer::cpu_seconds() const {
  clockid_t clock = 0;
  timespec used{};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0.0;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

std::int64_t ChildServer::peak_bytes() const {
  std::ifstream file(fmt::format("/proc/{}/status", pid_));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::atoll(line.c_str() + 6) << 10;
  }
  return 0;
}

}  // namespace fovea::app
