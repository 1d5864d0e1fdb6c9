// ProcessGroup: the ranks of tensor parallelism, processes of one host that compute one model together. Rank 0 tells
// the others what to do (broadcast), all exchange what they computed (all_reduce, all_gather), and when one of them
// dies or fails all end with a message. Host memory only; devices with a faster way between them use the group to set
// it up. Given to devices in DeviceOptions; made by apps/fovea/ranks.cc, and over threads by tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "device/group/group_memory.h"
#include "device/group/group_socket.h"
#include "fovea/status.h"

namespace fovea {

class ProcessGroup {
 public:
  // Rank 0, of connections to ranks 1, 2, ..: waits for what join() sends.
  static Result<std::shared_ptr<ProcessGroup>> lead(std::vector<GroupSocket> followers);
  // Another rank, of its connection to rank 0.
  static Result<std::shared_ptr<ProcessGroup>> join(GroupSocket leader, int rank, int size);
  // All ranks of a group in this process, for threads of their own.
  static Result<std::vector<std::shared_ptr<ProcessGroup>>> of_threads(int size);
  // Without leave(), the others end.
  ~ProcessGroup();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Collectives: every rank calls the same ones in the same order, one at a time; they return when this rank's part is
  // done, or with why the group has ended.
  // x = the sum of all ranks' x, added in the order of ranks: the same bits everywhere.
  Status all_reduce(float* x, std::int64_t count, ThreadPool& pool);
  // Rows [rows, width] with row_stride: rank r has columns [r * step, (r + 1) * step), and then each has all of them.
  Status all_gather(float* rows, std::int64_t num_rows, std::int64_t row_stride, std::int64_t width, std::int64_t step);
  // all: `bytes` (at most GroupMemory::kSlotBytes) of every rank, one after the other.
  Status all_gather(const void* mine, std::size_t bytes, void* all);
  Status barrier();
  // What rank 0 has; the others get it. Ranks may lag behind by as much as fits into the ring.
  Status broadcast(std::vector<std::int32_t>& words);

  // Why the group has ended; ok while it runs.
  Status status() const { return memory_->status(); }
  // Ends the group: others' collectives return this, and their handlers are called.
  void end(const Status& why) { memory_->end(why, size_); }
  // Called once, on a thread of the group's, when the group has ended by end() or a death. A handler that is set later
  // is called then.
  void on_end(std::function<void(const Status&)> handler);
  // No more collectives follow, on any rank: what happens to others from now on is their affair.
  void leave();

 private:
  ProcessGroup(std::shared_ptr<GroupMemory> memory, std::vector<GroupSocket> sockets, int rank, int size);
  void watch();
  bool watch_socket(std::size_t index);
  // Slots of this turn are written.
  Status exchange();
  std::byte* my_slot() { return memory_->slot(rank_, turn_); }
  std::byte* slot(int rank) { return memory_->slot(rank, turn_); }
  Status write_ring(const std::byte* from, std::size_t bytes);
  Status read_ring(std::byte* to, std::size_t bytes);

  std::shared_ptr<GroupMemory> memory_;
  std::vector<GroupSocket> sockets_;  // of rank 0: to ranks 1, 2, ..; of others: to rank 0
  int rank_;
  int size_;
  std::uint32_t turn_ = 0;  // exchanges that were begun
  std::atomic<bool> left_{false};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<std::function<void(const Status&)>> handlers_;
  bool told_ = false;  // the handlers
  std::thread watcher_;
};

}  // namespace fovea
