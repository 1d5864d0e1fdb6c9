// Asynchronous copies: cp.async of single lanes here, and TMA's bulk copies and boxes of tensor maps. They
// land when the scheduler or a wait says so, not where they are issued.
#include "testing/simt/copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace simt {
namespace {

void land(Lane& lane, const LaneCopy& copy) {
  Cta& cta = *lane.warp->cta;
  shared_access_by(cta, cta.copies_of(lane), copy.number, *copy.seen, copy.to, copy.bytes, kWrite);
  cta.machine->check_global(copy.from, copy.read_bytes, false);
  std::memcpy(cta.shared.data() + copy.to, copy.from, copy.read_bytes);
  std::memset(cta.shared.data() + copy.to + copy.read_bytes, 0, copy.bytes - copy.read_bytes);
}

// Those for which `due` holds, in random order. They are the oldest ones.
template <typename Due>
void land_copies(Lane& lane, const Due& due) {
  std::vector<LaneCopy> now;
  while (!lane.copies.empty() && due(lane.copies.front())) {
    now.push_back(std::move(lane.copies.front()));
    lane.copies.pop_front();
  }
  Machine& machine = machine_of(lane);
  for (std::size_t i = now.size(); i > 1; --i) std::swap(now[i - 1], now[machine.random() % i]);
  for (const LaneCopy& copy : now) land(lane, copy);
}

std::uint32_t swizzled(std::uint32_t address, std::uint32_t span) {
  return address ^ ((address >> 3) & (span == 128 ? 0x70u : span == 64 ? 0x30u : span == 32 ? 0x10u : 0u));
}

}  // namespace

std::uint32_t swizzle_address(std::uint32_t address, std::uint32_t span) { return swizzled(address, span); }

void copy_async(Lane& lane, std::uint32_t address, const void* from, std::uint32_t bytes, std::uint32_t read_bytes) {
  Machine& machine = machine_of(lane);
  const std::uint32_t to = shared_offset(lane, address, bytes);
  if (to % bytes != 0 || reinterpret_cast<std::uintptr_t>(from) % bytes != 0) {
    machine.fail(
        fmt::format("cp.async of {} bytes from {} to shared+{:#x}, expected multiples of that", bytes, from, to));
  }
  machine.check_global(from, read_bytes, false);
  lane.copies.push_back({to, from, bytes, read_bytes, ++lane.copies_issued, lane.copy_group, snapshot(lane)});
  const Landing landing = machine.launch().landing;
  if (landing == Landing::kAtOnce || (landing == Landing::kRandom && machine.chance(4))) {
    land_copies(lane, [](const LaneCopy&) { return true; });
  }
}

void copies_wait(Lane& lane, std::uint32_t pending) {
  // What they copy may be what others still write: they go first, and so do those who would overwrite it too early.
  // Where copies have landed, whoever asks for a word again and again by copies still lets others write it.
  const std::uint32_t groups = lane.copy_group < pending ? 0 : lane.copy_group - pending;
  if (!lane.copy_ends.empty() && lane.copy_ends.front().first < groups) {
    machine_of(lane).poll(lane, "cp.async.wait_group");
  }
  // Copies that landed by themselves are waited for too: their numbers stand in copy_ends.
  std::uint32_t last = 0;
  while (!lane.copy_ends.empty() && lane.copy_ends.front().first < groups) {
    last = lane.copy_ends.front().second;
    lane.copy_ends.pop_front();
  }
  land_copies(lane, [&](const LaneCopy& copy) { return copy.group < groups; });
  if (last == 0) return;
  auto& seen = lane.clock[lane.warp->cta->copies_of(lane)];
  seen = std::max(seen, last);
  lane.snapshot.reset();
}

void copies_commit(Lane& lane) {
  lane.copy_ends.emplace_back(lane.copy_group, lane.copies_issued);
  ++lane.copy_group;
}

void copies_arrive(Lane& lane, std::uint32_t address) {
  Mbarrier& barrier = find_mbarrier(lane, address);
  const std::uint32_t last = lane.copies_issued;
  Lane* const who = &lane;
  Mbarrier* const to = &barrier;
  machine_of(lane).fly({lane.warp->cta, to, "an arrival behind cp.async copies", [who, to, last] {
                          land_copies(*who, [&](const LaneCopy& copy) { return copy.number <= last; });
                          auto& told = to->arriving[who->warp->cta->copies_of(*who)];
                          told = std::max(told, last);
                          mbarrier_count_down(machine_of(*who), *to, 1, 0);
                        }});
}

TensorMap encode(const TensorMapSpec& spec) {
  TensorMap map{};
  std::uint64_t* at = map.words;
  *at++ = reinterpret_cast<std::uint64_t>(spec.address);
  *at++ = kTensorMapMark | std::uint64_t{spec.element_bytes} << 16 | std::uint64_t{spec.rank} << 8 | spec.swizzle_bytes;
  for (int i = 0; i < 5; ++i) *at++ = spec.dims[i] << 16 | spec.box[i];
  for (int i = 1; i < 5; ++i) *at++ = spec.strides[i];
  return map;
}

namespace {

TensorMapSpec decode(Lane& lane, const void* map) {
  Machine& machine = machine_of(lane);
  TensorMap words;
  std::memcpy(&words, map, sizeof words);
  TensorMapSpec spec;
  const std::uint64_t* at = words.words;
  spec.address = reinterpret_cast<void*>(*at++);
  const std::uint64_t kind = *at++;
  if ((kind & ~0xffffffull) != kTensorMapMark) machine.fail("a copy by what is no tensor map");
  spec.element_bytes = kind >> 16 & 0xff;
  spec.rank = kind >> 8 & 0xff;
  spec.swizzle_bytes = kind & 0xff;
  for (int i = 0; i < 5; ++i, ++at) spec.dims[i] = *at >> 16, spec.box[i] = *at & 0xffff;
  for (int i = 1; i < 5; ++i) spec.strides[i] = *at++;
  return spec;
}

// A box between global and shared memory: f(global, offset in shared memory, bytes) for pieces of at most 16 bytes;
// global is null outside of the tensor.
template <typename F>
void each_piece(const TensorMapSpec& map, const std::int32_t* coordinates, std::uint32_t offset, const F& f) {
  const std::uint32_t row_bytes = map.box[0] * map.element_bytes;
  std::uint64_t rows = 1;
  for (std::uint32_t d = 1; d < map.rank; ++d) rows *= map.box[d];
  for (std::uint64_t row = 0; row < rows; ++row) {
    std::uint64_t left = row;
    bool inside = true;
    auto* global = static_cast<std::uint8_t*>(map.address);
    for (std::uint32_t d = 1; d < map.rank; ++d) {
      const std::int64_t at = coordinates[d] + static_cast<std::int64_t>(left % map.box[d]);
      left /= map.box[d];
      inside = inside && at >= 0 && at < static_cast<std::int64_t>(map.dims[d]);
      global += at * static_cast<std::int64_t>(map.strides[d]);
    }
    for (std::uint32_t byte = 0; byte < row_bytes; byte += 16) {
      const std::uint32_t to =
          swizzled(SharedMemory::kBase + offset + static_cast<std::uint32_t>(row) * row_bytes + byte,
                   map.swizzle_bytes) -
          SharedMemory::kBase;
      // Whole pieces are inside or outside: the innermost dim of the maps here is a multiple of 16 bytes.
      const std::int64_t first = coordinates[0] + static_cast<std::int64_t>(byte / map.element_bytes);
      const bool here = inside && first >= 0 && first < static_cast<std::int64_t>(map.dims[0]);
      f(here ? global + first * static_cast<std::int64_t>(map.element_bytes) : nullptr, to,
        std::min(16u, row_bytes - byte));
    }
  }
}

std::uint32_t box_bytes(const TensorMapSpec& map) {
  std::uint32_t bytes = map.element_bytes;
  for (std::uint32_t d = 0; d < map.rank; ++d) bytes *= map.box[d];
  return bytes;
}

void check_box(Lane& lane, const TensorMapSpec& map, std::uint32_t rank, std::uint32_t offset) {
  Machine& machine = machine_of(lane);
  if (map.rank != rank) machine.fail(fmt::format("a copy of rank {} by a tensor map of rank {}", rank, map.rank));
  if (offset % 128 != 0) machine.fail(fmt::format("a box at shared+{:#x}, expected a multiple of 128", offset));
}

void check_ready(Lane& lane, const Mbarrier& barrier) {
  if (lane.clock.proxies() && lane.clock.fenced(barrier.initializer) < barrier.initialized) {
    machine_of(lane).fail(
        fmt::format("a copy arrives on the mbarrier at shared+{:#x}, whose initialization no fence made visible to it",
                    barrier.offset));
  }
}

}  // namespace

void tma_load_box(Lane& lane, std::uint32_t address, const void* map_at, const std::int32_t* coordinates,
                  std::uint32_t rank, std::uint32_t barrier_address) {
  Cta& cta = *lane.warp->cta;
  const TensorMapSpec map = decode(lane, map_at);
  const std::uint32_t bytes = box_bytes(map);
  const std::uint32_t offset = shared_offset(lane, address, bytes);
  check_box(lane, map, rank, offset);
  Mbarrier& barrier = find_mbarrier(lane, barrier_address);
  check_ready(lane, barrier);
  std::vector<std::int32_t> at(coordinates, coordinates + rank);
  cta.machine->fly({&cta, &barrier, fmt::format("a box to shared+{:#x}", offset),
                    [&cta, &barrier, map, at, offset, bytes, seen = snapshot(lane)] {
                      each_piece(map, at.data(), offset, [&](const void* from, std::uint32_t to, std::uint32_t n) {
                        shared_access_by(cta, barrier.agent, barrier.phase + 1, *seen, to, n, kWrite | kAsync);
                        if (from == nullptr) {
                          std::memset(cta.shared.data() + to, 0, n);
                        } else {
                          cta.machine->check_global(from, n, false);
                          std::memcpy(cta.shared.data() + to, from, n);
                        }
                      });
                      mbarrier_count_down(*cta.machine, barrier, 0, bytes);
                    }});
}

void copy_bulk(Lane& lane, std::uint32_t address, const void* from, std::uint32_t bytes,
               std::uint32_t barrier_address) {
  Cta& cta = *lane.warp->cta;
  const std::uint32_t offset = shared_offset(lane, address, bytes);
  if (bytes % 16 != 0 || offset % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    cta.machine->fail(
        fmt::format("a bulk copy of {} bytes from {} to shared+{:#x}: multiples of 16", bytes, from, offset));
  }
  Mbarrier& barrier = find_mbarrier(lane, barrier_address);
  check_ready(lane, barrier);
  cta.machine->check_global(from, bytes, false);
  cta.machine->fly({&cta, &barrier, fmt::format("a bulk copy to shared+{:#x}", offset),
                    [&cta, &barrier, from, offset, bytes, seen = snapshot(lane)] {
                      shared_access_by(cta, barrier.agent, barrier.phase + 1, *seen, offset, bytes, kWrite | kAsync);
                      std::memcpy(cta.shared.data() + offset, from, bytes);
                      mbarrier_count_down(*cta.machine, barrier, 0, bytes);
                    }});
}

namespace {

// land: reads shared memory, late, by what was ordered before the store was issued, and writes global memory.
void store(Lane& lane, std::function<void()> land) {
  Machine& machine = machine_of(lane);
  const Landing landing = machine.launch().landing;
  if (landing == Landing::kAtOnce || (landing == Landing::kRandom && machine.chance(2))) return land();
  lane.stores.push_back({lane.store_group, std::move(land)});
}

}  // namespace

void store_box(Lane& lane, const void* map_at, const std::int32_t* coordinates, std::uint32_t rank,
               std::uint32_t address) {
  Cta& cta = *lane.warp->cta;
  const TensorMapSpec map = decode(lane, map_at);
  const std::uint32_t offset = shared_offset(lane, address, box_bytes(map));
  check_box(lane, map, rank, offset);
  std::vector<std::int32_t> at(coordinates, coordinates + rank);
  store(lane, [&lane, &cta, map, at, offset, seen = snapshot(lane)] {
    each_piece(map, at.data(), offset, [&](void* to, std::uint32_t from, std::uint32_t n) {
      shared_access_by(cta, lane.self(), lane.clock[lane.self()], *seen, from, n, kAsync);
      if (to == nullptr) return;
      cta.machine->check_global(to, n, true);
      std::memcpy(to, cta.shared.data() + from, n);
    });
  });
}

void store_bulk(Lane& lane, void* to, std::uint32_t address, std::uint32_t bytes) {
  Cta& cta = *lane.warp->cta;
  const std::uint32_t offset = shared_offset(lane, address, bytes);
  if (bytes % 16 != 0 || offset % 16 != 0 || reinterpret_cast<std::uintptr_t>(to) % 16 != 0) {
    cta.machine->fail(
        fmt::format("a bulk store of {} bytes to {} from shared+{:#x}: multiples of 16", bytes, to, offset));
  }
  store(lane, [&lane, &cta, to, offset, bytes, seen = snapshot(lane)] {
    shared_access_by(cta, lane.self(), lane.clock[lane.self()], *seen, offset, bytes, kAsync);
    cta.machine->check_global(to, bytes, true);
    std::memcpy(to, cta.shared.data() + offset, bytes);
  });
}

void stores_wait(Lane& lane, std::uint32_t pending) {
  const std::uint32_t groups = lane.store_group < pending ? 0 : lane.store_group - pending;
  const bool ends = lane.where == Where::kDone;
  while (!lane.stores.empty() && (ends || lane.stores.front().group < groups)) {
    const std::function<void()> land = std::move(lane.stores.front().land);
    lane.stores.pop_front();
    land();
  }
}

}  // namespace simt
