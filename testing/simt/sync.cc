// What lanes wait at: barriers of the CTA and of warps, and mbarriers with their phases, arrivals and bytes.
#include <fmt/format.h>

#include <bit>

#include "testing/simt/machine.h"

namespace simt {

void barrier_arrive(Lane& lane, std::uint32_t id, std::uint32_t threads, bool waits, const char* doing) {
  Cta& cta = *lane.warp->cta;
  Machine& machine = *cta.machine;
  if (id >= 16) machine.fail(fmt::format("{}: barrier {}, there are 16", doing, id));
  if (threads == 0 || threads % 32 != 0 || threads > (cta.threads + 31) / 32 * 32) {
    machine.fail(fmt::format("{}: {} threads, expected a multiple of 32 up to {}", doing, threads, cta.threads));
  }
  NamedBarrier& barrier = cta.barriers[id];
  if (barrier.arrived == 0) {
    barrier.expected = threads;
  } else if (barrier.expected != threads) {
    machine.fail(fmt::format("{}: barrier {} of {} threads, others said {}", doing, id, threads, barrier.expected));
  }
  barrier.clock.join(lane.clock);
  lane.tick();
  ++barrier.arrived;
  lane.awaited = id;
  if (barrier.arrived < barrier.expected) {
    if (!waits) return;
    barrier.waiting.push_back(&lane);
    return machine.wait(lane, Where::kBarrier, doing);
  }
  if (waits) lane.see(barrier.clock);
  for (Lane* other : barrier.waiting) {
    other->see(barrier.clock);
    machine.wake(*other);
  }
  barrier.waiting.clear();
  barrier.arrived = 0;
  machine.progress();
}

void sync_warp(Warp& warp, std::uint32_t mask) {
  Clock all = warp.lane[std::countr_zero(mask)]->clock;
  for (std::uint32_t left = mask & (mask - 1); left != 0; left &= left - 1) {
    all.join(warp.lane[std::countr_zero(left)]->clock);
  }
  for (std::uint32_t left = mask; left != 0; left &= left - 1) {
    Lane& lane = *warp.lane[std::countr_zero(left)];
    lane.clock = all;
    lane.tick();
  }
}

Mbarrier& find_mbarrier(Lane& lane, std::uint32_t address) {
  Cta& cta = *lane.warp->cta;
  const std::uint32_t offset = shared_offset(lane, address, 8);
  const auto found = cta.mbarriers.find(offset);
  if (found == cta.mbarriers.end()) {
    cta.machine->fail(fmt::format("no mbarrier was initialized at shared+{:#x}", offset));
  }
  Mbarrier& barrier = *found->second;
  if (lane.clock[barrier.initializer] < barrier.initialized) {
    cta.machine->fail(
        fmt::format("the mbarrier at shared+{:#x} is used, but nothing orders that behind its "
                    "initialization by {}",
                    offset, cta.name_of(barrier.initializer)));
  }
  return barrier;
}

void mbarrier_init(Lane& lane, std::uint32_t address, std::uint32_t count) {
  Cta& cta = *lane.warp->cta;
  const std::uint32_t offset = shared_offset(lane, address, 8);
  if (offset % 8 != 0) cta.machine->fail(fmt::format("an mbarrier at shared+{:#x}, expected a multiple of 8", offset));
  if (count == 0 || count >= 1u << 20) cta.machine->fail(fmt::format("an mbarrier of {} arrivals", count));
  shared_access(lane, offset, 8, kWrite);
  auto& barrier = cta.mbarriers[offset];
  if (barrier == nullptr) {
    if (cta.mbarriers.size() > Cta::kMaxMbarriers) cta.machine->fail("more mbarriers than the emulator has room for");
    barrier = std::make_unique<Mbarrier>();
    barrier->agent = static_cast<Agent>(2 * cta.threads + cta.mbarriers.size() - 1);
    barrier->arriving = barrier->completed = Clock(cta.agents(), cta.machine->launch().checks_proxies);
  }
  barrier->offset = offset;
  barrier->count = barrier->pending = count;
  barrier->phase = 0;
  barrier->bytes = 0;
  barrier->initializer = lane.self();
  barrier->initialized = lane.clock[lane.self()];
}

void mbarrier_count_down(Machine& machine, Mbarrier& barrier, std::uint32_t arrivals, std::int64_t bytes) {
  if (arrivals > barrier.pending) {
    machine.fail(fmt::format("the mbarrier at shared+{:#x} gets {} arrivals, its phase {} waits for {}", barrier.offset,
                             arrivals, barrier.phase, barrier.pending));
  }
  barrier.pending -= arrivals;
  barrier.bytes -= bytes;
  machine.progress();
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.count;
  barrier.arriving[barrier.agent] = barrier.phase;
  barrier.completed = barrier.arriving;
  for (Lane* lane : barrier.waiting) machine.wake(*lane);
  barrier.waiting.clear();
}

void mbarrier_arrive(Lane& lane, std::uint32_t address, std::uint32_t count, std::int64_t expected_bytes) {
  Mbarrier& barrier = find_mbarrier(lane, address);
  barrier.arriving.join(lane.clock);
  lane.tick();
  barrier.bytes += expected_bytes;
  mbarrier_count_down(machine_of(lane), barrier, count, 0);
}

bool mbarrier_test(Lane& lane, std::uint32_t address, std::uint32_t parity) {
  Mbarrier& barrier = find_mbarrier(lane, address);
  if ((barrier.phase & 1) == (parity & 1)) return false;
  lane.see(barrier.completed);
  return true;
}

void mbarrier_wait(Lane& lane, std::uint32_t address, std::uint32_t parity, const char* doing) {
  while (!mbarrier_test(lane, address, parity)) {
    Mbarrier& barrier = find_mbarrier(lane, address);
    lane.awaited = barrier.offset;
    lane.parity = parity;
    barrier.waiting.push_back(&lane);
    machine_of(lane).wait(lane, Where::kMbarrier, doing);
  }
}

}  // namespace simt
