// How a group is put together, and how its end is noticed.
#include "device/group/process_group.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "base/status.h"

namespace fovea {
namespace {

// What starts ranks may take its time: a container, a slow disk.
constexpr double kJoinSeconds = 120.0;
constexpr int kWatchMilliseconds = 100;

Status check_size(int size) {
  if (size >= 2 && size <= GroupMemory::kMostRanks) return ok_status();
  return invalid_argument("{} ranks compute a model together, expected 2 to {}", size, GroupMemory::kMostRanks);
}

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<GroupMemory> memory, std::vector<GroupSocket> sockets, int rank, int size)
    : memory_(std::move(memory)), sockets_(std::move(sockets)), rank_(rank), size_(size) {
  memory_->ranks[rank_].process.store(::getpid());
  watcher_ = std::thread([this] { watch(); });
}

ProcessGroup::~ProcessGroup() {
  stop_.store(true);
  watcher_.join();
}

Result<std::shared_ptr<ProcessGroup>> ProcessGroup::lead(std::vector<GroupSocket> followers) {
  const int size = static_cast<int>(followers.size()) + 1;
  FOVEA_RETURN_IF_ERROR(check_size(size));
  for (int rank = 1; rank < size; ++rank) {
    const auto hello = followers[static_cast<std::size_t>(rank) - 1].receive_hello(size, kJoinSeconds);
    if (!hello.ok()) {
      return make_status(hello.status().code(), "rank {} of {} did not join: {}", rank, size, hello.status().message());
    }
  }
  int descriptor = -1;
  FOVEA_ASSIGN_OR_RETURN(std::shared_ptr<GroupMemory> memory, create_group_memory(size, &descriptor));
  Status sent;
  for (const GroupSocket& socket : followers) {
    if (sent.ok()) sent = socket.send_descriptor(descriptor);
  }
  ::close(descriptor);
  FOVEA_RETURN_IF_ERROR(sent);
  return std::shared_ptr<ProcessGroup>(new ProcessGroup(std::move(memory), std::move(followers), 0, size));
}

Result<std::shared_ptr<ProcessGroup>> ProcessGroup::join(GroupSocket leader, int rank, int size) {
  FOVEA_RETURN_IF_ERROR(check_size(size));
  if (rank < 1 || rank >= size) return invalid_argument("rank {} of {}, expected 1 to {}", rank, size, size - 1);
  FOVEA_RETURN_IF_ERROR(leader.send_hello(rank, size));
  FOVEA_ASSIGN_OR_RETURN(const int descriptor, leader.receive_descriptor(kJoinSeconds));
  Result<std::shared_ptr<GroupMemory>> memory = map_group_memory(descriptor, size);
  ::close(descriptor);
  if (!memory.ok()) return memory.status();
  std::vector<GroupSocket> sockets;
  sockets.push_back(std::move(leader));
  return std::shared_ptr<ProcessGroup>(new ProcessGroup(std::move(*memory), std::move(sockets), rank, size));
}

Result<std::vector<std::shared_ptr<ProcessGroup>>> ProcessGroup::of_threads(int size) {
  FOVEA_RETURN_IF_ERROR(check_size(size));
  FOVEA_ASSIGN_OR_RETURN(const std::shared_ptr<GroupMemory> memory, create_group_memory(size, nullptr));
  std::vector<GroupSocket> leader;
  std::vector<std::shared_ptr<ProcessGroup>> ranks(1);
  for (int rank = 1; rank < size; ++rank) {
    FOVEA_ASSIGN_OR_RETURN(auto ends, GroupSocket::pair());
    leader.push_back(std::move(ends.first));
    std::vector<GroupSocket> own;
    own.push_back(std::move(ends.second));
    ranks.push_back(std::shared_ptr<ProcessGroup>(new ProcessGroup(memory, std::move(own), rank, size)));
  }
  ranks[0] = std::shared_ptr<ProcessGroup>(new ProcessGroup(memory, std::move(leader), 0, size));
  return ranks;
}

void ProcessGroup::on_end(std::function<void(const Status&)> handler) {
  const std::lock_guard lock(mutex_);
  if (told_) {
    handler(status());
  } else {
    handlers_.push_back(std::move(handler));
  }
}

void ProcessGroup::leave() {
  if (left_.exchange(true)) return;
  for (const GroupSocket& socket : sockets_) socket.send_goodbye();
}

// False once nothing more can come from there.
bool ProcessGroup::watch_socket(std::size_t index) {
  char bytes[64];
  const ssize_t got = ::recv(sockets_[index].descriptor(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0) return true;
  if (got == 0 && !left_.load()) {
    const int rank = rank_ == 0 ? static_cast<int>(index) + 1 : 0;
    memory_->end(make_status(StatusCode::kUnavailable, "rank {} of {} (process {}) has ended", rank, size_,
                             memory_->ranks[rank].process.load()),
                 size_);
  }
  return false;  // dead, or a goodbye
}

void ProcessGroup::watch() {
  std::vector<bool> open(sockets_.size(), true);
  while (!stop_.load()) {
    std::vector<pollfd> entries;
    for (std::size_t i = 0; i < sockets_.size(); ++i) {
      entries.push_back({open[i] ? sockets_[i].descriptor() : -1, POLLIN, 0});
    }
    if (::poll(entries.data(), entries.size(), kWatchMilliseconds) > 0) {
      for (std::size_t i = 0; i < entries.size(); ++i) {
        if (entries[i].revents != 0) open[i] = watch_socket(i);
      }
    }
    const Status why = status();
    if (why.ok()) continue;
    const std::lock_guard lock(mutex_);
    told_ = true;
    for (const auto& handler : handlers_) handler(why);
    return;
  }
}

}  // namespace fovea
