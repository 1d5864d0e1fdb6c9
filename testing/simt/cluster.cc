// Clusters: addresses in the other CTAs, stores and arrivals there, and the barrier of all their lanes. What a CTA's
// memory knows of who acts is its own lanes' affair, so bytes from elsewhere are not checked for races; that they come
// only when their barrier waits for them is.
#include <fmt/format.h>

#include <cstring>

#include "testing/simt/machine.h"

namespace simt {
namespace {

constexpr std::uint32_t kRankBit = 24;  // of addresses: the rank + 1; shared memory is smaller

Cta& cta_of(Lane& lane, std::uint64_t address) {
  Machine& machine = machine_of(lane);
  const std::uint32_t size = machine.launch().cluster;
  const auto rank = static_cast<std::uint32_t>((address & 0xffffffffu) >> kRankBit) - 1;
  if (rank >= size) machine.fail(fmt::format("CTA {} of a cluster of {}", rank, size));
  Cta& cta = machine.cta(lane.warp->cta->number / size * size + rank);
  if (cta.live == 0) machine.fail(fmt::format("something is sent to CTA {}, which has ended", cta.number));
  return cta;
}

std::uint32_t offset_of(const Cta& cta, std::uint32_t address, std::uint32_t bytes) {
  const std::uint32_t offset = (address & ((1u << kRankBit) - 1)) - SharedMemory::kBase;
  if (offset + bytes > cta.shared.bytes() || offset % bytes != 0) {
    cta.machine->fail(fmt::format("{} bytes at shared+{:#x} of CTA {}", bytes, offset, cta.number));
  }
  return offset;
}

Mbarrier& barrier_at(Cta& cta, std::uint32_t address) {
  const auto found = cta.mbarriers.find(offset_of(cta, address, 8));
  if (found == cta.mbarriers.end()) cta.machine->fail(fmt::format("no mbarrier there in CTA {}", cta.number));
  return *found->second;
}

}  // namespace

std::uint32_t cluster_address(std::uint32_t address, std::uint32_t rank) {
  return (address & ((1u << kRankBit) - 1)) | (rank + 1) << kRankBit;
}
bool is_remote(std::uint64_t address) { return (address & 0xffffffffu) >> kRankBit != 0; }

void cluster_arrive(Lane& lane) {
  Cta& cta = *lane.warp->cta;
  Machine& machine = *cta.machine;
  const std::uint32_t size = machine.launch().cluster;
  Cluster& cluster = machine.cluster(cta.number / size);
  cta.cluster_arriving.join(lane.clock);
  lane.tick();
  lane.cluster_phase = cluster.phase;
  if (++cluster.arrived < size * cta.threads) return;
  cluster.arrived = 0;
  ++cluster.phase;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    Cta& other = machine.cta(cta.number / size * size + rank);
    other.cluster_completed = other.cluster_arriving;
  }
  machine.progress();
}

void cluster_wait(Lane& lane, const char* doing) {
  Cta& cta = *lane.warp->cta;
  const Cluster& cluster = cta.machine->cluster(cta.number / cta.machine->launch().cluster);
  while (cluster.phase == lane.cluster_phase) cta.machine->poll(lane, doing);
  lane.see(cta.cluster_completed);
}

void remote_arrive(Lane& lane, std::uint32_t address, std::uint32_t count) {
  mbarrier_count_down(machine_of(lane), barrier_at(cta_of(lane, address), address), count, 0);
}

void remote_store(Lane& lane, std::uint32_t address, const void* from, std::uint32_t bytes,
                  std::uint32_t barrier_address) {
  Cta& cta = cta_of(lane, address);
  if (&cta != &cta_of(lane, barrier_address)) cta.machine->fail("a store and its barrier in different CTAs");
  const std::uint32_t offset = offset_of(cta, address, bytes);
  Mbarrier& barrier = barrier_at(cta, barrier_address);
  std::vector<std::uint8_t> data(bytes);
  std::memcpy(data.data(), from, bytes);
  cta.machine->fly({&cta, &barrier, fmt::format("a store to shared+{:#x}", offset), [&cta, &barrier, data, offset] {
                      const auto n = static_cast<std::int64_t>(data.size());
                      if (barrier.pending == barrier.count) {
                        cta.machine->fail(
                            fmt::format("a store to shared+{:#x} of CTA {}, whose barrier's phase expects none yet",
                                        offset, cta.number));
                      }
                      std::memcpy(cta.shared.data() + offset, data.data(), data.size());
                      mbarrier_count_down(*cta.machine, barrier, 0, n);
                    }});
}

}  // namespace simt
