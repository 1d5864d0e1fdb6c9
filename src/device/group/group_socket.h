// GroupSocket: a connection between rank 0 and another rank: over it they find each other and the memory they share,
// and its end tells each that the other has died. Used by ProcessGroup, and by the program to find ranks that something
// else started.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fovea/status.h"

namespace fovea {

class GroupSocket {
 public:
  GroupSocket() = default;
  explicit GroupSocket(int descriptor) : descriptor_(descriptor) {}
  GroupSocket(GroupSocket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  GroupSocket& operator=(GroupSocket&& other) noexcept;
  ~GroupSocket() { close(); }

  static Result<std::pair<GroupSocket, GroupSocket>> pair();

  int descriptor() const { return descriptor_; }
  void close();

  // What the other end must be: another version of this program computes otherwise.
  struct Hello {
    char version[32] = {};
    int rank = 0;
    int size = 0;
  };
  Status send_hello(int rank, int size) const;
  // Of a rank of a group of `size`; waits for `seconds` at most. peek: it can be received once more.
  Result<Hello> receive_hello(int size, double seconds, bool peek = false) const;
  Status send_descriptor(int descriptor) const;
  Result<int> receive_descriptor(double seconds) const;
  // The other end's silence means no death from now on.
  void send_goodbye() const;
  // Until there is something to receive, or the other end has gone.
  Status wait(double seconds) const;

 private:
  int descriptor_ = -1;
};

// Rank 0's connections to ranks 1, 2, .., which connect under a name that all ranks know; and the other end.
Result<std::vector<GroupSocket>> accept_ranks(const std::string& name, int size, double seconds);
Result<GroupSocket> connect_rank(const std::string& name, double seconds);

}  // namespace fovea
