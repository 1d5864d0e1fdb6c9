// A `fovea serve` of its own on a free port, as a child process: what `fovea demo` and `fovea bench serve` talk to. It
// ends with this object, and with this process.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "fovea/status.h"
#include "server/http/client.h"

namespace fovea::app {

class ChildServer {
 public:
  // Starts this binary with `serve --port 0` and the arguments; returns when it has printed its URL.
  static Result<std::unique_ptr<ChildServer>> start(const std::vector<std::string>& arguments);
  ~ChildServer();
  ChildServer(const ChildServer&) = delete;
  ChildServer& operator=(const ChildServer&) = delete;

  const std::string& url() const { return url_; }
  const server::Url& address() const { return address_; }
  // Seconds of CPU that all its threads have used.
  double cpu_seconds() const;
  // Most resident bytes so far.
  std::int64_t peak_bytes() const;
  // SIGTERM, then waits; its exit code, or -1.
  int stop();

 private:
  ChildServer(pid_t pid, std::string url, server::Url address)
      : pid_(pid), url_(std::move(url)), address_(std::move(address)) {}

  pid_t pid_;
  std::string url_;
  server::Url address_;
};

}  // namespace fovea::app
