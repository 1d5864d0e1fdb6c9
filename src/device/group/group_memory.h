// The memory that the ranks of a ProcessGroup share: who has arrived where, records of rank 0, what ranks hand each
// other, and why the group has ended. Mapped by process_group.cc; zeroed memory is its first state.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "fovea/status.h"

namespace fovea {

// Something that ranks wait for: `count` grows with every signal.
struct GroupEvent {
  std::atomic<std::uint32_t> count;
  std::atomic<std::uint32_t> sleepers;

  void signal();
};

struct GroupMemory {
  static constexpr int kMostRanks = 16;
  static constexpr std::size_t kRingBytes = std::size_t{1} << 20;
  // Of a rank: two slots, so that one is read while the next is written.
  static constexpr std::size_t kSlotBytes = std::size_t{256} << 10;
  static constexpr std::size_t kMessageBytes = 1024;
  enum Ended : std::uint32_t { kRunning, kEnding, kEnded };

  struct alignas(64) Rank {
    GroupEvent arrived;                 // at exchanges of slots
    GroupEvent has_read;                // of the ring
    std::atomic<std::uint64_t> read;    // bytes of the ring
    std::atomic<std::int32_t> process;  // its id
  };
  std::atomic<std::uint32_t> ended;
  std::uint32_t code;
  char message[kMessageBytes];
  Rank ranks[kMostRanks];
  alignas(64) GroupEvent has_written;  // to the ring
  std::atomic<std::uint64_t> written;  // bytes
  alignas(64) std::byte ring[kRingBytes];
  // [size][2][kSlotBytes]
  std::byte* slot(int rank, std::uint32_t turn) {
    return reinterpret_cast<std::byte*>(this + 1) + (static_cast<std::size_t>(rank) * 2 + turn % 2) * kSlotBytes;
  }
  static std::size_t bytes(int size) { return sizeof(GroupMemory) + static_cast<std::size_t>(size) * 2 * kSlotBytes; }

  // Waits until ready() holds, which a signal of the event makes true; the Status says why the group has ended.
  template <typename Ready>
  Status wait(GroupEvent& event, const Ready& ready);
  // Ends the group, unless it has ended: waiting ranks return with this.
  void end(const Status& why, int size);
  // Why the group has ended; ok while it runs.
  Status status() const;

 private:
  static void relax();
  static void sleep(GroupEvent& event, std::uint32_t seen);
};

template <typename Ready>
Status GroupMemory::wait(GroupEvent& event, const Ready& ready) {
  // Ranks that compute alike arrive within microseconds; those that share a CPU gain nothing by spinning for long.
  constexpr int kSpins = 400;
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return ok_status();
    relax();
  }
  while (true) {
    event.sleepers.fetch_add(1);
    const std::uint32_t seen = event.count.load();
    const bool there = ready();
    if (!there && ended.load() == kRunning) sleep(event, seen);
    event.sleepers.fetch_sub(1);
    if (there || ready()) return ok_status();
    if (Status why = status(); !why.ok()) return why;
  }
}

// Maps new memory for so many ranks; *descriptor, where it is not null, becomes a file of it that others can map.
Result<std::shared_ptr<GroupMemory>> create_group_memory(int size, int* descriptor);
Result<std::shared_ptr<GroupMemory>> map_group_memory(int descriptor, int size);

}  // namespace fovea
