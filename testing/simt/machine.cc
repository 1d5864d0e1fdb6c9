// The scheduler of a launch; see machine.h.
#include "testing/simt/machine.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace simt {
namespace {

thread_local Machine* t_machine = nullptr;
thread_local Lane* t_lane = nullptr;
thread_local StackRange t_stacks;

extern "C" char __executable_start;
extern "C" char _end;

// Rounds in which those who poll saw nothing new, and lanes that one launch may resume.
constexpr std::uint64_t kMostIdleRounds = 3000;
// Loads and stores of a lane before it waits for something.
constexpr std::uint64_t kMostAccesses = std::uint64_t{100} << 20;
constexpr std::uint64_t kMostSwitches = std::uint64_t{4} << 30;

// Functions that called one another up to here, the innermost first; by frame pointers.
std::vector<const void*> frames_from(const void* const* frame, const Stacks& stacks) {
  std::vector<const void*> found;
  while (frame != nullptr && stacks.range().contains(frame) && found.size() < 24) {
    found.push_back(frame[1]);
    const auto* const next = static_cast<const void* const*>(frame[0]);
    if (next <= frame) break;
    frame = next;
  }
  return found;
}

// From the scheduler back to its loop, when something that lands by itself was wrong. Lanes never throw.
struct Stop {};

// Of this thread's launches, one after the other.
Stacks& stacks_for(std::size_t count) {
  thread_local std::unique_ptr<Stacks> stacks;
  if (stacks == nullptr || stacks->count() < count) stacks = std::make_unique<Stacks>(count);
  return *stacks;
}

std::string describe_frames(const std::vector<const void*>& frames) {
  std::string text;
  for (const void* address : frames) {
    Dl_info info{};
    if (dladdr(address, &info) == 0 || info.dli_sname == nullptr) continue;
    int status = 0;
    char* const plain = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
    std::string name = plain != nullptr ? plain : info.dli_sname;
    std::free(plain);
    // The name alone, without its arguments and the namespace of the instantiation.
    if (const std::size_t lambda = name.find("{lambda"); lambda != std::string::npos) name.resize(lambda + 7);
    if (const std::size_t at = name.find('('); at != std::string::npos && at > 0) name.resize(at);
    if (const std::size_t at = name.find('<'); at != std::string::npos) name.resize(at);
    if (const std::size_t at = name.find_last_of(' '); at != std::string::npos) name = name.substr(at + 1);
    if (name.starts_with("simt::") || name.starts_with("simt_") || name.starts_with("_Z")) continue;
    if (const std::size_t at = name.find("::"); name.starts_with("fovea_") && at != std::string::npos) {
      name = name.substr(at + 2);
    }
    if (text.size() > 400) break;
    text += (text.empty() ? "" : " < ") + name;
  }
  return text;
}

}  // namespace

Lane* current_lane() { return t_lane; }
const StackRange& lanes_stacks() { return t_stacks; }

std::string Cta::name_of(Agent agent) const {
  const auto lane = [&](std::uint32_t thread) { return fmt::format("warp {} lane {}", thread / 32, thread % 32); };
  if (agent < threads) return lane(agent);
  if (agent < 2 * threads) return "a cp.async of " + lane(agent - threads);
  for (const auto& [offset, barrier] : mbarriers) {
    if (barrier->agent == agent) return fmt::format("a copy that arrives on the mbarrier at shared+{:#x}", offset);
  }
  return "a copy";
}

Machine::Machine(const Launch& launch)
    : launch_(launch),
      random_(launch.seed * 0x9e3779b97f4a7c15ull + 1),
      stacks_(stacks_for(std::size_t{launch.grid} * launch.block)) {
  for (const Buffer& b : launch_.buffers) {
    const auto begin = reinterpret_cast<std::uintptr_t>(b.data);
    if (b.bytes > 0) ranges_.push_back({begin, begin + b.bytes, &b});
  }
  clusters_.resize(launch.grid / launch.cluster);
  for (std::uint32_t n = 0; n < launch.grid; ++n) {
    auto cta = std::make_unique<Cta>();
    cta->machine = this;
    cta->number = n;
    cta->threads = cta->live = launch.block;
    cta->shared.reset(launch.shared_bytes);
    cta->lanes = std::vector<Lane>(launch.block);
    cta->warps.resize((launch.block + 31) / 32);
    for (std::uint32_t w = 0; w < cta->warps.size(); ++w) {
      Warp& warp = cta->warps[w];
      warp.cta = cta.get();
      warp.number = w;
      warps_.push_back(&warp);
    }
    const Clock nothing(cta->agents(), launch.checks_proxies);
    for (NamedBarrier& barrier : cta->barriers) barrier.clock = nothing;
    cta->cluster_arriving = cta->cluster_completed = nothing;
    for (std::uint32_t t = 0; t < launch.block; ++t) {
      Lane& lane = cta->lanes[t];
      Warp& warp = cta->warps[t / 32];
      lane.warp = &warp;
      lane.thread = t;
      lane.lane = t % 32;
      lane.clock = nothing;
      lane.clock[lane.self()] = 1;
      warp.lane[lane.lane] = &lane;
      warp.ready |= 1u << lane.lane;
      lane.fiber.start(stacks_.stack(live_), Stacks::usable_bytes(), &Machine::lane_main);
      ++live_;
    }
    ctas_.push_back(std::move(cta));
  }
}

Machine::~Machine() = default;

void Machine::lane_main() {
  Lane& lane = *t_lane;
  Machine& machine = *t_machine;
  machine.launch_.kernel(machine.launch_.params.data());
  machine.finish(lane);
}

void Machine::finish(Lane& lane) {
  Cta& cta = *lane.warp->cta;
  settle_store(lane);
  lane.where = Where::kDone;
  lane.warp->ready &= ~(1u << lane.lane);
  stores_wait(lane, 0);
  --live_;
  progress();
  if (--cta.live == 0) {
    for (const Flight& flight : flights_) {
      if (flight.cta == &cta) fail(fmt::format("CTA {} ended while {} was under way", cta.number, flight.what));
    }
  }
  Fiber::switch_to(lane.fiber, scheduler_);
}

void Machine::resume(Lane& lane) {
  ++switches_;
  accesses_until = accesses + kMostAccesses;
  t_lane = &lane;
  Fiber::switch_to(scheduler_, lane.fiber);
  t_lane = nullptr;
}

void Machine::wait(Lane& lane, Where where, const char* doing) {
  lane.where = where;
  lane.doing = doing;
  lane.warp->ready &= ~(1u << lane.lane);
  if (where == Where::kPolls) lane.warp->polling |= 1u << lane.lane;
  lane.frames.assign(1, __builtin_frame_address(0));
  Fiber::switch_to(lane.fiber, scheduler_);
}

void Machine::wake(Lane& lane) {
  lane.where = Where::kRuns;
  lane.warp->ready |= 1u << lane.lane;
  lane.warp->polling &= ~(1u << lane.lane);
}

void Machine::poll(Lane& lane, const char* doing) { wait(lane, Where::kPolls, doing); }

void Machine::report(const std::string& what) {
  if (error_.empty()) error_ = what;
}

std::vector<const void*> Machine::place() const {
  return frames_from(static_cast<const void* const*>(__builtin_frame_address(0)), stacks_);
}

void Machine::fail(const std::string& what) {
  Lane* const lane = t_lane;
  if (lane == nullptr) {
    report(what);
    throw Stop();
  }
  const auto frames = frames_from(static_cast<const void* const*>(__builtin_frame_address(0)), stacks_);
  report(fmt::format("CTA {} warp {} lane {}: {} [{}]", lane->warp->cta->number, lane->warp->number, lane->lane, what,
                     describe_frames(frames)));
  for (;;) Fiber::switch_to(lane->fiber, scheduler_);
}

// One round of a warp: each lane that is ready goes on until it waits.
void Machine::run_warp(Warp& warp) {
  const std::uint32_t ready = warp.ready;
  const auto first = static_cast<std::uint32_t>(random_()) % 32;
  std::uint32_t left = std::rotr(ready, static_cast<int>(first));
  while (left != 0 && error_.empty()) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
    left &= left - 1;
    const std::uint32_t lane = (i + first) % 32;
    if ((warp.ready >> lane & 1) != 0) resume(*warp.lane[lane]);
  }
}

Warp* Machine::pick() {
  const std::size_t count = warps_.size();
  const std::size_t first = random_() % count;
  for (std::size_t i = 0; i < count; ++i) {
    Warp* const warp = warps_[(first + i) % count];
    if (warp->ready != 0) return warp;
  }
  return nullptr;
}

bool Machine::land_one() {
  if (flights_.empty()) return false;
  const std::size_t i = random_() % flights_.size();
  Flight flight = std::move(flights_[i]);
  flights_[i] = std::move(flights_.back());
  flights_.pop_back();
  flight.land();
  progress();
  return true;
}

void Machine::fly(Flight flight) {
  if (launch_.landing == Landing::kAtOnce) return flight.land();
  flights_.push_back(std::move(flight));
}

// Nobody can go on but who polls. False: nobody can at all.
bool Machine::idle() {
  bool some = false;
  for (const Warp* warp : warps_) some |= warp->polling != 0;
  const auto wake_all = [&] {
    for (Warp* warp : warps_) {
      for (std::uint32_t left = warp->polling; left != 0; left &= left - 1) {
        wake(*warp->lane[std::countr_zero(left)]);
      }
    }
  };
  if (some && progress_ != woken_at_) {
    woken_at_ = progress_;
    idle_rounds_ = 0;
    wake_all();
    return true;
  }
  if ((!some || idle_rounds_ >= 2) && land_one()) return true;
  if (some && ++idle_rounds_ < kMostIdleRounds) {
    wake_all();
    return true;
  }
  return false;
}

Outcome Machine::run() {
  t_machine = this;
  t_stacks = stacks_.range();
  try {
    schedule();
  } catch (const Stop&) {
  }
  t_machine = nullptr;
  return {error_, switches_, accesses};
}

void Machine::schedule() {
  while (live_ > 0 && error_.empty()) {
    if (launch_.landing == Landing::kRandom && chance(8)) land_one();
    Warp* const warp = pick();
    if (warp == nullptr) {
      if (!idle()) report("nobody can go on:\n" + where_everyone_is());
      continue;
    }
    for (std::uint64_t rounds = 1 + random_() % 24; rounds > 0 && warp->ready != 0 && error_.empty(); --rounds) {
      run_warp(*warp);
    }
    // Now and then those who poll are not the last.
    if (warp->polling != 0 && chance(16)) wake(*warp->lane[std::countr_zero(warp->polling)]);
    if (switches_ > kMostSwitches) report("the launch does not end:\n" + where_everyone_is());
  }
}

std::string Machine::where_everyone_is() {
  std::string text;
  for (const auto& cta : ctas_) {
    for (Warp& warp : cta->warps) {
      std::map<std::string, std::uint32_t> places;
      for (Lane* lane : warp.lane) {
        if (lane == nullptr || lane->where == Where::kDone) continue;
        std::string place = lane->doing;
        if (lane->where == Where::kMbarrier) {
          const Mbarrier& b = *cta->mbarriers.at(lane->awaited);
          place += fmt::format(" (shared+{:#x}: phase {}, {} arrivals and {} bytes to come, waited for parity {})",
                               b.offset, b.phase, b.pending, b.bytes, lane->parity);
        } else if (lane->where == Where::kBarrier) {
          const NamedBarrier& b = cta->barriers[lane->awaited];
          place += fmt::format(" (barrier {}: {} of {} threads)", lane->awaited, b.arrived, b.expected);
        }
        if (!lane->frames.empty()) {
          place += " [" + describe_frames(frames_from(static_cast<const void* const*>(lane->frames[0]), stacks_)) + "]";
        }
        places[place] |= 1u << lane->lane;
      }
      for (const auto& [place, lanes] : places) {
        text += fmt::format("  CTA {} warp {} lanes {:08x}: {}\n", cta->number, warp.number, lanes, place);
      }
    }
  }
  if (!flights_.empty()) text += fmt::format("  {} copies are under way\n", flights_.size());
  return text;
}

void Machine::check_global(const void* p, std::size_t bytes, bool writes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  const auto fits = [&](const Range& r) {
    return begin >= r.begin && begin + bytes <= r.end && (!writes || r.buffer->writable);
  };
  if (last_range_ < ranges_.size() && fits(ranges_[last_range_])) return;
  const Range* nearest = nullptr;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (fits(ranges_[i])) {
      last_range_ = i;
      return;
    }
    if (ranges_[i].begin <= begin && (nearest == nullptr || nearest->begin < ranges_[i].begin)) nearest = &ranges_[i];
  }
  // Constants of the kernel.
  if (!writes && begin >= reinterpret_cast<std::uintptr_t>(&__executable_start) &&
      begin + bytes <= reinterpret_cast<std::uintptr_t>(&_end)) {
    return;
  }
  fail(fmt::format("{} {} bytes where there is nothing for it: {}", writes ? "writes" : "reads", bytes,
                   nearest == nullptr ? fmt::format("{}", p)
                                      : fmt::format("byte {} of \"{}\", which has {}", begin - nearest->begin,
                                                    nearest->buffer->name, nearest->end - nearest->begin)));
}

void meet(const char* doing, const void* what, std::uint32_t mask, void* slot, MeetingFunction run,
          const void* context) {
  Lane& lane = *t_lane;
  Warp& warp = *lane.warp;
  Machine& machine = machine_of(lane);
  settle_store(lane);
  if ((mask >> lane.lane & 1) == 0)
    machine.fail(fmt::format("{}: the lane is not in its own mask {:08x}", doing, mask));
  Meeting* meeting = nullptr;
  for (Meeting& m : warp.meetings) {
    if (m.arrived != 0 && m.mask == mask) meeting = &m;
  }
  if (meeting == nullptr) {
    for (Meeting& m : warp.meetings) {
      if (m.arrived == 0) meeting = &m;
    }
    if (meeting == nullptr) machine.fail("lanes of a warp meet in three groups at once");
    meeting->what = what;
    meeting->mask = mask;
  }
  if (meeting->what != what) {
    machine.fail(fmt::format("{}: other lanes of the warp are at another instruction of the same lanes", doing));
  }
  meeting->slots[lane.lane] = slot;
  meeting->arrived |= 1u << lane.lane;
  if (meeting->arrived != mask) return machine.wait(lane, Where::kMeets, doing);
  run(warp, mask, meeting->slots, context);
  meeting->arrived = 0;
  for (std::uint32_t left = mask & ~(1u << lane.lane); left != 0; left &= left - 1) {
    machine.wake(*warp.lane[std::countr_zero(left)]);
  }
}

Outcome run(const Launch& launch) { return Machine(launch).run(); }

}  // namespace simt
