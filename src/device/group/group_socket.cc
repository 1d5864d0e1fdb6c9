// Unix sockets: pairs that a child inherits, and abstract names for ranks that have no common parent of ours.
#include "device/group/group_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

#include "base/status.h"
#include "fovea/version.h"

namespace fovea {
namespace {

constexpr char kGoodbye = 'q';

Status failed(const char* what) {
  return make_status(StatusCode::kUnavailable, "the ranks cannot reach each other: {}: {}", what, std::strerror(errno));
}

// Abstract: no file is left behind.
socklen_t address_of(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

GroupSocket make_socket() { return GroupSocket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

// Whether the other end belongs to the same user.
bool same_user(int descriptor) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::getuid();
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

GroupSocket& GroupSocket::operator=(GroupSocket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

void GroupSocket::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

Result<std::pair<GroupSocket, GroupSocket>> GroupSocket::pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return failed("socketpair");
  return std::pair{GroupSocket(ends[0]), GroupSocket(ends[1])};
}

Status GroupSocket::wait(double seconds) const {
  pollfd entry{descriptor_, POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&entry, 1, static_cast<int>(seconds * 1e3));
  while (ready < 0 && errno == EINTR);
  if (ready > 0) return ok_status();
  if (ready < 0) return failed("poll");
  return {StatusCode::kUnavailable, "the other end of the ranks' connection says nothing"};
}

Status GroupSocket::send_hello(int rank, int size) const {
  Hello hello;
  std::strncpy(hello.version, kVersion, sizeof(hello.version) - 1);
  hello.rank = rank;
  hello.size = size;
  if (::send(descriptor_, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) return failed("send");
  return ok_status();
}

Result<GroupSocket::Hello> GroupSocket::receive_hello(int size, double seconds, bool peek) const {
  FOVEA_RETURN_IF_ERROR(wait(seconds));
  Hello hello;
  const ssize_t got = ::recv(descriptor_, &hello, sizeof hello, peek ? MSG_PEEK : 0);
  if (got == 0) return Status(StatusCode::kUnavailable, "it ended before it joined");
  if (got != sizeof hello) return Status(StatusCode::kUnavailable, "it is not a rank of this program");
  hello.version[sizeof(hello.version) - 1] = '\0';
  if (std::string_view(hello.version) != kVersion) {
    return unsupported("it is Fovea {}, this is {}", hello.version, kVersion);
  }
  if (hello.size != size || hello.rank < 1 || hello.rank >= size) {
    return invalid_argument("it says that it is rank {} of {}, expected 1 to {} of {}", hello.rank, hello.size,
                            size - 1, size);
  }
  return hello;
}

Status GroupSocket::send_descriptor(int descriptor) const {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  if (::sendmsg(descriptor_, &message, MSG_NOSIGNAL) != 1) return failed("sendmsg");
  return ok_status();
}

Result<int> GroupSocket::receive_descriptor(double seconds) const {
  FOVEA_RETURN_IF_ERROR(wait(seconds));
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(descriptor_, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* const header = got == 1 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) {
    return Status(StatusCode::kUnavailable, "rank 0 ended before all ranks had joined");
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return descriptor;
}

void GroupSocket::send_goodbye() const {
  [[maybe_unused]] const ssize_t sent = ::send(descriptor_, &kGoodbye, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

Result<std::vector<GroupSocket>> accept_ranks(const std::string& name, int size, double seconds) {
  const GroupSocket listener = make_socket();
  sockaddr_un address;
  const socklen_t length = address_of(name, &address);
  if (listener.descriptor() < 0 ||
      ::bind(listener.descriptor(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(listener.descriptor(), size) != 0) {
    return failed("listen");
  }
  const auto begin = std::chrono::steady_clock::now();
  std::vector<GroupSocket> found(static_cast<std::size_t>(size) - 1);
  for (int joined = 1; joined < size;) {
    const double left = seconds - seconds_since(begin);
    if (left <= 0.0 || !listener.wait(left).ok()) {
      return make_status(StatusCode::kUnavailable, "{} of {} ranks came within {:.0f} s; start all of them", joined,
                         size, seconds);
    }
    GroupSocket socket(::accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.descriptor() < 0 || !same_user(socket.descriptor())) continue;
    const Result<GroupSocket::Hello> hello = socket.receive_hello(size, 5.0, true);
    if (!hello.ok()) {
      return make_status(hello.status().code(), "a rank tried to join, but {}", hello.status().message());
    }
    GroupSocket& place = found[static_cast<std::size_t>(hello->rank) - 1];
    if (place.descriptor() >= 0) return invalid_argument("two processes say that they are rank {}", hello->rank);
    place = std::move(socket);
    ++joined;
  }
  return found;
}

Result<GroupSocket> connect_rank(const std::string& name, double seconds) {
  sockaddr_un address;
  const socklen_t length = address_of(name, &address);
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    GroupSocket socket = make_socket();
    if (socket.descriptor() < 0) return failed("socket");
    if (::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
        same_user(socket.descriptor())) {
      return socket;
    }
    if (seconds_since(begin) > seconds) {
      return make_status(StatusCode::kUnavailable, "rank 0 does not answer within {:.0f} s", seconds);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace fovea
