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

namespace {

// The bits of the bytes that [at, end) has in its first cell, and where the next one begins.
struct Piece {
  std::uint16_t mask;
  std::uint32_t next;
};
Piece piece_at(std::uint32_t at, std::uint32_t end) {
  const std::uint32_t first = at % 16, last = std::min(16u, first + (end - at));
  return {static_cast<std::uint16_t>((0xffffu >> (16 - (last - first))) << first), at + last - first};
}

// What the other proxy wrote must be fenced for this one; what it only read need not.
bool crosses(const Act& act, const Clock& seen, std::uint8_t flags) {
  return seen.proxies() && (flags & kAsync) != 0 && (act.flags & (kAsync | kWrite)) == kWrite;
}

}  // namespace

void SharedMemory::Cell::add(const Act& act) {
  for (int i = 0; i < count; ++i) {  // a wide access comes in pieces
    Act& known = acts[static_cast<std::size_t>(i)];
    if (known.agent != act.agent || known.number != act.number || known.flags != act.flags) continue;
    known.bytes |= act.bytes;
    return;
  }
  if (count < acts.size()) {
    acts[count++] = act;
    return;
  }
  oldest = static_cast<std::uint8_t>((oldest + 1) % acts.size());
  acts[oldest] = act;
}

// Whether act i of the cell conflicts with one behind what was seen. ordered: it was seen.
bool SharedMemory::conflicts(const Cell& cell, int i, const Clock& seen, std::uint16_t mask, std::uint8_t flags,
                             bool& ordered) {
  const Act& act = cell.acts[static_cast<std::size_t>(i)];
  ordered = act.number <= seen[act.agent];
  if ((act.bytes & mask) == 0 || ((act.flags | flags) & kWrite) == 0) return false;
  if ((act.flags & kAtomic) != 0 && (flags & kAtomic) != 0) return false;
  const auto visible = [&](const Act& a) {
    return a.number <= seen[a.agent] && !(crosses(a, seen, flags) && a.number > seen.fenced(a.agent));
  };
  if (visible(act)) return false;
  if ((act.flags & kSame) == 0 || (flags & kWrite) != 0) return true;
  std::uint32_t left = act.bytes & mask;  // that no visible write of the same gave
  for (int j = 0; j < cell.count; ++j) {
    const Act& other = cell.acts[static_cast<std::size_t>(j)];
    if ((other.flags & kSame) != 0 && visible(other)) left &= ~std::uint32_t{other.bytes};
  }
  return left != 0;
}

SharedMemory::Conflict SharedMemory::access(Agent agent, std::uint32_t number, const Clock& seen, std::uint32_t offset,
                                            std::uint32_t bytes, std::uint8_t flags, bool looks_first) {
  Conflict conflict;
  const std::uint32_t end = offset + bytes;
  for (std::uint32_t at = offset; looks_first && at < end;) {
    const Piece piece = piece_at(at, end);
    const Cell& cell = cells_[at / 16];
    for (int i = 0; i < cell.count; ++i) {
      bool ordered;
      if (conflicts(cell, i, seen, piece.mask, flags, ordered)) {
        return {true, ordered, cell.acts[static_cast<std::size_t>(i)], at};
      }
    }
    at = piece.next;
  }
  for (std::uint32_t at = offset; at < end;) {
    const Piece piece = piece_at(at, end);
    Cell& cell = cells_[at / 16];
    bool dropped[std::tuple_size_v<decltype(cell.acts)>] = {};
    for (int i = 0; i < cell.count; ++i) {
      const Act& act = cell.acts[static_cast<std::size_t>(i)];
      bool ordered;
      if (conflicts(cell, i, seen, piece.mask, flags, ordered) && !conflict.found) {
        conflict = {true, ordered, act, at};
      }
      // Acts that this one is behind and covers tell nothing more.
      dropped[i] = ordered && (act.bytes & ~piece.mask) == 0 && (act.flags == flags || (flags & kWrite) != 0);
    }
    int kept = 0;
    for (int i = 0; i < cell.count; ++i) {
      if (!dropped[i]) cell.acts[static_cast<std::size_t>(kept++)] = cell.acts[static_cast<std::size_t>(i)];
    }
    cell.count = static_cast<std::uint8_t>(kept);
    cell.add({number, agent, piece.mask, flags});
    at = piece.next;
  }
  return conflict;
}

void SharedMemory::write_same(Agent agent, std::uint32_t number, const Clock& seen, std::uint32_t offset,
                              std::uint32_t bytes) {
  for (std::uint32_t at = offset; at < offset + bytes;) {
    const Piece piece = piece_at(at, offset + bytes);
    Cell& cell = cells_[at / 16];
    for (int i = 0; i < cell.count; ++i) {
      Act& act = cell.acts[static_cast<std::size_t>(i)];
      const bool ordered = act.number <= seen[act.agent];
      if (!ordered && (act.flags & kWrite) != 0 && (act.bytes & piece.mask) != 0) act.flags |= kSame;
    }
    cell.add({number, agent, piece.mask, kWrite | kSame});
    at = piece.next;
  }
}

}  // namespace simt
