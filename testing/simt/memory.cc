// The record of shared memory; see memory.h.
#include "testing/simt/memory.h"

#include <cstring>

namespace simt {

void SharedMemory::reset(std::uint32_t bytes) {
  constexpr std::size_t kAlignment = 1024;
  bytes_ = (bytes + 15) / 16 * 16;
  memory_.resize(bytes_ + kAlignment);
  data_ = memory_.data() + (kAlignment - reinterpret_cast<std::uintptr_t>(memory_.data()) % kAlignment) % kAlignment;
  std::memset(data_, 0xff, bytes_);  // NaN in every type that has one
  cells_.resize(bytes_ / 16);
  for (Cell& cell : cells_) cell.count = cell.oldest = 0;
}

SharedMemory::Conflict SharedMemory::access(Agent agent, std::uint32_t number, const Clock& seen, std::uint32_t offset,
                                            std::uint32_t bytes, std::uint8_t flags) {
  Conflict conflict;
  const std::uint32_t end = offset + bytes;
  for (std::uint32_t at = offset; at < end;) {
    const std::uint32_t first = at % 16, last = std::min(16u, first + (end - at));
    const auto mask = static_cast<std::uint16_t>((0xffffu >> (16 - (last - first))) << first);
    Cell& cell = cells_[at / 16];
    int kept = 0;
    for (int i = 0; i < cell.count; ++i) {
      const Act act = cell.acts[static_cast<std::size_t>(i)];
      const bool overlaps = (act.bytes & mask) != 0;
      const bool ordered = act.agent == agent || act.number <= seen[act.agent];
      if (overlaps && !conflict.found && ((act.flags | flags) & kWrite) != 0 &&
          !((act.flags & kAtomic) != 0 && (flags & kAtomic) != 0)) {
        // What the other proxy wrote must be fenced for this one; what it only read need not.
        const bool crosses = seen.proxies() && (flags & kAsync) != 0 && (act.flags & (kAsync | kWrite)) == kWrite;
        if (!ordered || (crosses && act.number > seen.fenced(act.agent))) {
          conflict = {true, ordered, act, at};
        }
      }
      // Acts that this one is behind and covers tell nothing more.
      const bool covered = (act.bytes & ~mask) == 0 && ordered && act.flags == flags;
      const bool overwritten = (act.bytes & ~mask) == 0 && ordered && (flags & kWrite) != 0;
      if (covered || overwritten) continue;
      cell.acts[static_cast<std::size_t>(kept++)] = act;
    }
    if (kept == static_cast<int>(cell.acts.size())) {
      cell.oldest = static_cast<std::uint8_t>((cell.oldest + 1) % cell.acts.size());
      cell.acts[cell.oldest] = {number, agent, mask, flags};
    } else {
      cell.acts[static_cast<std::size_t>(kept++)] = {number, agent, mask, flags};
    }
    cell.count = static_cast<std::uint8_t>(kept);
    at += last - first;
  }
  return conflict;
}

}  // namespace simt
