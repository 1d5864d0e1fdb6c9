// Memory as lanes touch it: what the compiler's thread instrumentation calls for every plain load and store of a
// kernel, and what instructions call. Shared memory is checked for races, global memory for being there.
#include <fmt/format.h>

#include <cstring>

#include "testing/simt/machine.h"

namespace simt {

std::uint32_t shared_offset(Lane& lane, std::uint64_t address, std::uint32_t bytes) {
  const SharedMemory& shared = lane.warp->cta->shared;
  const std::uint64_t offset = (address & 0xffffffffu) - SharedMemory::kBase;
  if (offset + bytes > shared.bytes()) {
    machine_of(lane).fail(fmt::format("{} bytes at shared address {:#x}, the CTA has [{:#x}, {:#x})", bytes, address,
                                      SharedMemory::kBase, SharedMemory::kBase + shared.bytes()));
  }
  return static_cast<std::uint32_t>(offset);
}

namespace {

std::string describe(const Cta& cta, const SharedMemory::Conflict& c, Agent agent, std::uint8_t flags) {
  const auto act = [](std::uint8_t f) {
    return fmt::format("{}{}", (f & kWrite) != 0 ? "write" : "read", (f & kAsync) != 0 ? " (asynchronous)" : "");
  };
  return fmt::format("{} at shared+{:#x} of CTA {}: {} by {} {} {} by {}", c.proxy ? "no proxy fence" : "a race",
                     c.offset, cta.number, act(flags), cta.name_of(agent), c.proxy ? "behind" : "beside",
                     act(c.earlier.flags), cta.name_of(c.earlier.agent));
}

}  // namespace

void shared_access_by(Cta& cta, Agent agent, std::uint32_t number, const Clock& seen, std::uint32_t offset,
                      std::uint32_t bytes, std::uint8_t flags) {
  const SharedMemory::Conflict c = cta.shared.access(agent, number, seen, offset, bytes, flags);
  if (!c.found) return;
  cta.machine->fail(describe(cta, c, agent, flags));
}

void shared_access(Lane& lane, std::uint32_t offset, std::uint32_t bytes, std::uint8_t flags) {
  shared_access_by(*lane.warp->cta, lane.self(), lane.clock[lane.self()], lane.clock, offset, bytes, flags);
}

// A plain store that races with others and writes what is there: it is looked at again when the lane goes on.
struct RacingStore {
  std::uint32_t offset, bytes;
  std::uint8_t before[16];
  std::string what;
};

void settle_store(Lane& lane) {
  if (lane.racing == nullptr) return;
  const std::unique_ptr<RacingStore, void (*)(RacingStore*)> store = std::move(lane.racing);
  Cta& cta = *lane.warp->cta;
  if (std::memcmp(cta.shared.data() + store->offset, store->before, store->bytes) != 0) cta.machine->fail(store->what);
  cta.shared.write_same(lane.self(), lane.clock[lane.self()], lane.clock, store->offset, store->bytes);
}

namespace {

void plain_store(Lane& lane, std::uint32_t offset, std::uint32_t bytes) {
  Cta& cta = *lane.warp->cta;
  const std::uint32_t number = lane.clock[lane.self()];
  const SharedMemory::Conflict c = cta.shared.access(lane.self(), number, lane.clock, offset, bytes, kWrite, true);
  if (!c.found) return;
  const std::string what = describe(cta, c, lane.self(), kWrite);
  if (bytes > 16) cta.machine->fail(what);
  auto* const store = new RacingStore{offset, bytes, {}, what};
  std::memcpy(store->before, cta.shared.data() + offset, bytes);
  lane.racing = {store, [](RacingStore* s) { delete s; }};
}

}  // namespace

std::shared_ptr<const Clock> snapshot(Lane& lane) {
  if (lane.snapshot == nullptr) lane.snapshot = std::make_shared<const Clock>(lane.clock);
  return lane.snapshot;
}

void access(Lane& lane, const void* p, std::uint32_t bytes, std::uint8_t flags) {
  Cta& cta = *lane.warp->cta;
  Machine& machine = *cta.machine;
  settle_store(lane);
  if (++machine.accesses > machine.accesses_until) machine.fail("the lane goes on and on, and waits for nobody");
  if (cta.shared.contains(p)) {
    const auto offset = static_cast<std::uint32_t>(static_cast<const std::uint8_t*>(p) - cta.shared.data());
    if (offset + bytes > cta.shared.bytes()) machine.fail("an access across the end of shared memory");
    if ((flags & kAtomic) != 0) {
      if ((flags & kWrite) != 0) {
        machine.progress();
      } else {
        machine.poll(lane, "a look at a volatile word of shared memory");
      }
    }
    return flags == kWrite ? plain_store(lane, offset, bytes) : shared_access(lane, offset, bytes, flags);
  }
  machine.check_global(p, bytes, (flags & kWrite) != 0);
}

namespace {

// Most are of lanes' own variables.
void plain(const void* p, std::uint32_t bytes, std::uint8_t flags) {
  if (lanes_stacks().contains(p)) return;
  if (Lane* const lane = current_lane(); lane != nullptr) access(*lane, p, bytes, flags);
}

}  // namespace
}  // namespace simt

// What g++ calls in code compiled with -fsanitize=thread. Kernels are, and nothing links the sanitizer's own library.
// NOLINTBEGIN
#define SIMT_ACCESS(NAME, BYTES, FLAGS) \
  extern "C" void __tsan_##NAME(void* p) { simt::plain(p, BYTES, FLAGS); }
#define SIMT_ACCESSES(PREFIX, KIND)                                   \
  SIMT_ACCESS(PREFIX##read1, 1, KIND)                                 \
  SIMT_ACCESS(PREFIX##read2, 2, KIND)                                 \
  SIMT_ACCESS(PREFIX##read4, 4, KIND)                                 \
  SIMT_ACCESS(PREFIX##read8, 8, KIND)                                 \
  SIMT_ACCESS(PREFIX##read16, 16, KIND)                               \
  SIMT_ACCESS(PREFIX##write1, 1, static_cast<std::uint8_t>(KIND | 1)) \
  SIMT_ACCESS(PREFIX##write2, 2, static_cast<std::uint8_t>(KIND | 1)) \
  SIMT_ACCESS(PREFIX##write4, 4, static_cast<std::uint8_t>(KIND | 1)) \
  SIMT_ACCESS(PREFIX##write8, 8, static_cast<std::uint8_t>(KIND | 1)) \
  SIMT_ACCESS(PREFIX##write16, 16, static_cast<std::uint8_t>(KIND | 1))
SIMT_ACCESSES(, 0)
SIMT_ACCESSES(volatile_, simt::kAtomic)
SIMT_ACCESSES(unaligned_, 0)
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void* p, unsigned long bytes) { simt::plain(p, static_cast<std::uint32_t>(bytes), 0); }
void __tsan_write_range(void* p, unsigned long bytes) { simt::plain(p, static_cast<std::uint32_t>(bytes), 1); }
}
// NOLINTEND
