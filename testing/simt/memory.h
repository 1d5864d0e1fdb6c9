// Who knows what of whom (vector clocks), and who touched which bytes of a CTA's shared memory last. Used by machine.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace simt {

// Who acts: the lanes of a CTA first, then the cp.async copies of each lane, then the copies that arrive on each
// mbarrier.
using Agent = std::uint16_t;

// What an agent has seen of every agent: its acts up to that number. With proxies a second half: the acts that a proxy
// fence made visible to the asynchronous proxy.
class Clock {
 public:
  Clock() = default;
  Clock(std::size_t agents, bool proxies) : half_(agents), at_(proxies ? 2 * agents : agents) {}
  void join(const Clock& other) {
    const std::size_t n = at_.size();
    std::uint32_t* const to = at_.data();
    const std::uint32_t* const from = other.at_.data();
    for (std::size_t i = 0; i < n; ++i) to[i] = std::max(to[i], from[i]);
  }
  // A proxy fence.
  void fence() {
    if (!proxies()) return;
    for (std::size_t i = 0; i < half_; ++i) at_[half_ + i] = std::max(at_[half_ + i], at_[i]);
  }
  bool proxies() const { return at_.size() > half_; }
  std::uint32_t& operator[](std::size_t agent) { return at_[agent]; }
  std::uint32_t operator[](std::size_t agent) const { return at_[agent]; }
  std::uint32_t fenced(std::size_t agent) const { return at_[half_ + agent]; }

 private:
  std::size_t half_ = 0;
  std::vector<std::uint32_t> at_;
};

enum AccessFlags : std::uint8_t {
  kWrite = 1,
  kAsync = 2,   // by the asynchronous proxy: TMA, wgmma
  kAtomic = 4,  // volatile or atomic: does not race with its like
  kSame = 8,    // a write of what was there, beside one that nothing orders it with: who sees one of them sees both
};

// An act on some bytes of a cell.
struct Act {
  std::uint32_t number;
  Agent agent;
  std::uint16_t bytes;  // a bit each
  std::uint8_t flags;
};

// The shared memory of a CTA and what happened to it, 16 bytes at a time.
class SharedMemory {
 public:
  // Kernels see shared addresses from here on: not 0, which would hide mistakes.
  static constexpr std::uint32_t kBase = 1024;

  void reset(std::uint32_t bytes);
  std::uint8_t* data() const { return data_; }
  std::uint32_t bytes() const { return bytes_; }
  bool contains(const void* p) const {
    return static_cast<std::size_t>(static_cast<const std::uint8_t*>(p) - data_) < bytes_;
  }

  struct Conflict {
    bool found = false;
    bool proxy = false;  // ordered, but no proxy fence in between
    Act earlier{};
    std::uint32_t offset = 0;
  };
  // The first act that one of `agent`, its `number`-th, on [offset, offset + bytes) races with. seen: what is ordered
  // before it. Records the act; with `looks_first` only where there is no race.
  Conflict access(Agent agent, std::uint32_t number, const Clock& seen, std::uint32_t offset, std::uint32_t bytes,
                  std::uint8_t flags, bool looks_first = false);
  // Records a write that races with others, but wrote what they did.
  void write_same(Agent agent, std::uint32_t number, const Clock& seen, std::uint32_t offset, std::uint32_t bytes);

 private:
  struct Cell {
    std::uint8_t count = 0;
    std::uint8_t oldest = 0;
    std::array<Act, 32> acts;

    void add(const Act& act);
  };
  static bool conflicts(const Cell& cell, int i, const Clock& seen, std::uint16_t mask, std::uint8_t flags,
                        bool& ordered);
  std::vector<std::uint8_t> memory_;
  std::uint8_t* data_ = nullptr;
  std::uint32_t bytes_ = 0;
  std::vector<Cell> cells_;
};

}  // namespace simt
