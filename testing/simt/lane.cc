// Votes, shuffles and places of lanes; see lane.h.
#include "testing/simt/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "testing/simt/machine.h"

namespace simt {
namespace {

struct Slot {
  std::uint64_t value = 0;
  std::uint32_t from = 0;
  std::uint64_t result = 0;
};

Cta& cta() { return *current_lane()->warp->cta; }

// Instructions of a kind that lanes of a warp come to; their addresses tell them apart.
constexpr char kShuffle[] = "a shuffle", kVote[] = "a vote", kReduce[] = "a reduction", kSyncWarp[] = "__syncwarp";

template <typename F>
void each(std::uint32_t mask, const F& f) {
  for (std::uint32_t left = mask; left != 0; left &= left - 1) f(static_cast<std::uint32_t>(std::countr_zero(left)));
}

}  // namespace

Index thread_index() { return {current_lane()->thread, 0, 0}; }
Index block_index() { return {cta().number, 0, 0}; }
Index block_size() { return {cta().threads, 1, 1}; }
Index grid_size() { return {cta().machine->launch().grid, 1, 1}; }
std::uint32_t lane_index() { return current_lane()->lane; }

std::uint8_t* dynamic_shared() { return cta().shared.data(); }
std::uint32_t shared_address(const void* p) {
  const SharedMemory& shared = cta().shared;
  const auto offset = static_cast<const std::uint8_t*>(p) - shared.data();
  if (offset < 0 || offset > static_cast<std::ptrdiff_t>(shared.bytes())) {
    cta().machine->fail("the shared address of what is not in shared memory");
  }
  return SharedMemory::kBase + static_cast<std::uint32_t>(offset);
}

std::uint64_t shuffle(std::uint32_t mask, std::uint64_t bits, std::uint32_t from) {
  Slot slot{bits, from, 0};
  meet(
      kShuffle, kShuffle, mask, &slot,
      [](Warp& warp, std::uint32_t lanes, void* const* slots, const void*) {
        warp.cta->machine->progress();
        each(lanes, [&](std::uint32_t l) {
          Slot& s = *static_cast<Slot*>(slots[l]);
          if ((lanes >> s.from & 1) == 0) warp.cta->machine->fail(fmt::format("a shuffle from lane {}", s.from));
          s.result = static_cast<Slot*>(slots[s.from])->value;
        });
      },
      nullptr);
  return slot.result;
}

std::uint32_t ballot(std::uint32_t mask, bool x) {
  Slot slot{x, 0, 0};
  meet(
      kVote, kVote, mask, &slot,
      [](Warp&, std::uint32_t lanes, void* const* slots, const void*) {
        std::uint64_t votes = 0;
        each(lanes, [&](std::uint32_t l) { votes |= static_cast<Slot*>(slots[l])->value << l; });
        each(lanes, [&](std::uint32_t l) { static_cast<Slot*>(slots[l])->result = votes; });
      },
      nullptr);
  return static_cast<std::uint32_t>(slot.result);
}

std::uint32_t reduce(std::uint32_t mask, std::uint32_t x, Reduction how) {
  Slot slot{x, static_cast<std::uint32_t>(how), 0};
  meet(
      kReduce, kReduce, mask, &slot,
      [](Warp& warp, std::uint32_t lanes, void* const* slots, const void*) {
        warp.cta->machine->progress();
        const auto of = [&](std::uint32_t l) -> Slot& { return *static_cast<Slot*>(slots[l]); };
        const auto first = static_cast<std::uint32_t>(std::countr_zero(lanes));
        auto all = static_cast<std::uint32_t>(of(first).value);
        each(lanes & (lanes - 1), [&](std::uint32_t l) {
          const auto y = static_cast<std::uint32_t>(of(l).value);
          switch (static_cast<Reduction>(of(l).from)) {
            case Reduction::kOr: all |= y; break;
            case Reduction::kMax: all = std::max(all, y); break;
            case Reduction::kMin: all = std::min(all, y); break;
            case Reduction::kAdd: all += y; break;
          }
        });
        each(lanes, [&](std::uint32_t l) { of(l).result = all; });
      },
      nullptr);
  return static_cast<std::uint32_t>(slot.result);
}

void sync_lanes(std::uint32_t mask) {
  meet(
      kSyncWarp, kSyncWarp, mask, nullptr,
      [](Warp& warp, std::uint32_t lanes, void* const*, const void*) { sync_warp(warp, lanes); }, nullptr);
}

void sync_cta() {
  Lane& lane = *current_lane();
  settle_store(lane);
  barrier_arrive(lane, 0, (cta().threads + 31) / 32 * 32, true, "__syncthreads");
}

void rest() { machine_of(*current_lane()).poll(*current_lane(), "__nanosleep"); }

std::int64_t clock() {
  Machine& machine = *cta().machine;
  return static_cast<std::int64_t>(++machine.clock_looks * machine.launch().clocks);
}
void trap() { cta().machine->fail("the kernel ends itself by __trap()"); }

void before_atomic(void* at, std::size_t bytes) {
  Machine& machine = *cta().machine;
  machine.check_global(at, bytes, true);
  machine.poll(*current_lane(), "an atomic operation");
  machine.progress();
}

void store_bits(void* at, const void* from, std::size_t bytes) { std::memcpy(at, from, bytes); }

void load_bits(void* to, const void* from, std::size_t bytes) {
  cta().machine->check_global(from, bytes, false);
  std::memcpy(to, from, bytes);
}

bool planted(int fault) { return current_lane() != nullptr && machine_of(*current_lane()).launch().fault == fault; }

}  // namespace simt
