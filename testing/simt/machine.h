// The state of a launch: CTAs, warps, lanes, barriers, copies on their way, and the scheduler that picks who goes on.
// Used by the parts of the emulator alone; launch.h is for callers, device.h for kernels.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "testing/simt/fiber.h"
#include "testing/simt/launch.h"
#include "testing/simt/memory.h"

namespace simt {

struct Lane;
struct Warp;
struct Cta;
class Machine;

// Where a lane stands.
enum class Where : std::uint8_t {
  kRuns,      // can go on
  kPolls,     // can go on, but has just looked at a word that others write: after them
  kMeets,     // waits for lanes of its warp
  kBarrier,   // waits at a named barrier
  kMbarrier,  // waits for a phase
  kDone,
};

// A cp.async of a lane.
struct LaneCopy {
  std::uint32_t to;  // offset in shared memory
  const void* from;
  std::uint32_t bytes;
  std::uint32_t read_bytes;  // the rest is zeros
  std::uint32_t number;      // of the lane's copies, from 1
  std::uint32_t group;
  std::shared_ptr<const Clock> seen;  // at its issue
};

// A store of TMA that a lane issued.
struct LaneStore {
  std::uint32_t group;
  std::function<void()> land;
};

// Products of a warp's share of a warpgroup that are on their way; see matrix.cc.
struct WarpProducts;

// A store that may be one of what is there already; see access.cc.
struct RacingStore;

struct Lane {
  Fiber fiber;
  Warp* warp = nullptr;
  std::uint32_t thread = 0;  // of the CTA
  std::uint32_t lane = 0;
  Where where = Where::kRuns;
  const char* doing = "";           // the instruction that it waits in
  std::uint32_t cluster_phase = 0;  // of the cluster's barrier, when it arrived there
  std::uint32_t awaited = 0;        // barrier or shared offset
  std::uint32_t parity = 0;
  Clock clock;
  std::shared_ptr<const Clock> snapshot;  // of the clock, while it has not changed
  std::deque<LaneCopy> copies;            // not landed yet
  std::uint32_t copies_issued = 0;
  std::uint32_t copy_group = 0;
  std::deque<std::pair<std::uint32_t, std::uint32_t>> copy_ends;  // of groups: number, copies issued by their end
  std::deque<LaneStore> stores;
  std::uint32_t store_group = 0;
  std::unique_ptr<RacingStore, void (*)(RacingStore*)> racing{nullptr, nullptr};
  std::vector<const void*> frames;  // at a hang

  Agent self() const { return static_cast<Agent>(thread); }
  // What the lane did so far is behind whatever it tells others now.
  void tick() {
    ++clock[self()];
    snapshot.reset();
  }
  void see(const Clock& other) {
    clock.join(other);
    snapshot.reset();
  }
};

struct Meeting {
  const void* what = nullptr;  // instruction
  std::uint32_t mask = 0;      // lanes that meet
  std::uint32_t arrived = 0;
  void* slots[32] = {};
};

struct Warp {
  Cta* cta = nullptr;
  std::uint32_t number = 0;
  std::uint32_t lanes = 32;
  std::uint32_t ready = 0;    // lanes that can go on, a bit each
  std::uint32_t polling = 0;  // those that poll
  Lane* lane[32] = {};
  Meeting meetings[2];
  std::unique_ptr<WarpProducts, void (*)(WarpProducts*)> products{nullptr, nullptr};
};

struct NamedBarrier {
  std::uint32_t expected = 0;
  std::uint32_t arrived = 0;
  Clock clock;
  std::vector<Lane*> waiting;
};

struct Mbarrier {
  std::uint32_t offset = 0;
  Agent agent = 0;
  std::uint32_t count = 0;
  std::uint32_t pending = 0;
  std::int64_t bytes = 0;  // that are still to come
  std::uint32_t phase = 0;
  Agent initializer = 0;
  std::uint32_t initialized = 0;  // the initializer's act
  Clock arriving, completed;
  std::vector<Lane*> waiting;
};

// Something on its way that lands when the scheduler lets it.
struct Flight {
  Cta* cta = nullptr;
  Mbarrier* barrier = nullptr;  // that it completes on
  std::string what;
  std::function<void()> land;
};

struct Cluster {
  std::uint32_t arrived = 0, phase = 0;
};

struct Cta {
  Machine* machine = nullptr;
  std::uint32_t number = 0;
  std::uint32_t threads = 0;
  std::uint32_t live = 0;
  SharedMemory shared;
  std::vector<Warp> warps;
  std::vector<Lane> lanes;
  NamedBarrier barriers[16];
  std::map<std::uint32_t, std::unique_ptr<Mbarrier>> mbarriers;  // by offset
  Clock cluster_arriving, cluster_completed;                     // of this CTA's lanes at the cluster's barrier
  // Where the first warp of a warpgroup issued a product that others have not issued yet, and how many have: by
  // warpgroup and number of the product.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::pair<std::vector<const void*>, int>> product_places;

  static constexpr std::uint32_t kMaxMbarriers = 160;
  Agent copies_of(const Lane& lane) const { return static_cast<Agent>(threads + lane.thread); }
  std::size_t agents() const { return 2 * threads + kMaxMbarriers; }
  std::string name_of(Agent agent) const;
};

class Machine {
 public:
  explicit Machine(const Launch& launch);
  ~Machine();
  Outcome run();

  const Launch& launch() const { return launch_; }
  std::uint64_t random() { return random_(); }
  bool chance(unsigned one_of) { return random_() % one_of == 0; }

  // From a lane. Gives the machine to others until the lane is ready again.
  void wait(Lane& lane, Where where, const char* doing);
  void wake(Lane& lane);
  // After a look at memory that others write: they go first.
  void poll(Lane& lane, const char* doing);
  void progress() { ++progress_; }
  // Where the lane that asks is in the kernel: return addresses, the innermost first.
  std::vector<const void*> place() const;
  // Ends the launch; never returns to a lane.
  [[noreturn]] void fail(const std::string& what);
  // The same from the scheduler, to which it returns.
  void report(const std::string& what);

  void fly(Flight flight);
  std::vector<Flight>& flights() { return flights_; }
  Cta& cta(std::uint32_t number) { return *ctas_[number]; }
  Cluster& cluster(std::uint32_t number) { return clusters_[number]; }
  // Global memory a kernel asks for; fails where it may not.
  void check_global(const void* p, std::size_t bytes, bool writes);

  std::uint64_t clock_looks = 0;
  std::uint64_t accesses = 0, accesses_until = 0;

 private:
  static void lane_main();
  void schedule();
  void resume(Lane& lane);
  void run_warp(Warp& warp);
  Warp* pick();
  bool idle();
  bool land_one();
  void finish(Lane& lane);
  std::string where_everyone_is();

  const Launch& launch_;
  std::mt19937_64 random_;
  const Stacks& stacks_;
  std::vector<std::unique_ptr<Cta>> ctas_;
  std::vector<Cluster> clusters_;
  std::vector<Warp*> warps_;
  std::vector<Flight> flights_;
  Fiber scheduler_;
  std::size_t live_ = 0;
  std::uint64_t progress_ = 0, woken_at_ = 0;
  std::uint64_t idle_rounds_ = 0;
  std::uint64_t switches_ = 0;
  std::string error_;
  struct Range {
    std::uintptr_t begin, end;
    const Buffer* buffer;
  };
  std::vector<Range> ranges_;
  std::size_t last_range_ = 0;
};

// The lane that runs on this thread, or null, and where the stacks of its launch's lanes are.
Lane* current_lane();
const StackRange& lanes_stacks();
inline Machine& machine_of(const Lane& lane) { return *lane.warp->cta->machine; }

// All lanes of `mask` come to the same instruction; the last one runs it for all of them. slots: one of each lane.
using MeetingFunction = void (*)(Warp& warp, std::uint32_t mask, void* const* slots, const void* context);
void meet(const char* doing, const void* what, std::uint32_t mask, void* slot, MeetingFunction run,
          const void* context);

// sync.cc
void barrier_arrive(Lane& lane, std::uint32_t id, std::uint32_t threads, bool waits, const char* doing);
void sync_warp(Warp& warp, std::uint32_t mask);
Mbarrier& find_mbarrier(Lane& lane, std::uint32_t address);
void mbarrier_init(Lane& lane, std::uint32_t address, std::uint32_t count);
void mbarrier_arrive(Lane& lane, std::uint32_t address, std::uint32_t count, std::int64_t expected_bytes);
void mbarrier_count_down(Machine& machine, Mbarrier& barrier, std::uint32_t arrivals, std::int64_t bytes);
bool mbarrier_test(Lane& lane, std::uint32_t address, std::uint32_t parity);
void mbarrier_wait(Lane& lane, std::uint32_t address, std::uint32_t parity, const char* doing);

// cluster.cc: addresses in other CTAs of the cluster, which plain accesses refuse; and its barrier.
std::uint32_t cluster_address(std::uint32_t address, std::uint32_t rank);
bool is_remote(std::uint64_t address);
void cluster_arrive(Lane& lane);
void cluster_wait(Lane& lane, const char* doing);
void remote_arrive(Lane& lane, std::uint32_t address, std::uint32_t count);
// Completes the bytes on a barrier of the same CTA.
void remote_store(Lane& lane, std::uint32_t address, const void* from, std::uint32_t bytes, std::uint32_t barrier);

// access.cc: what lanes do to memory, checked. Offsets are those of shared memory.
std::uint32_t shared_offset(Lane& lane, std::uint64_t address, std::uint32_t bytes);
void shared_access(Lane& lane, std::uint32_t offset, std::uint32_t bytes, std::uint8_t flags);
void shared_access_by(Cta& cta, Agent agent, std::uint32_t number, const Clock& seen, std::uint32_t offset,
                      std::uint32_t bytes, std::uint8_t flags);
void settle_store(Lane& lane);  // before the lane does anything that others learn of
void access(Lane& lane, const void* p, std::uint32_t bytes, std::uint8_t flags);
std::shared_ptr<const Clock> snapshot(Lane& lane);

// copies.cc
void copy_async(Lane& lane, std::uint32_t address, const void* from, std::uint32_t bytes, std::uint32_t read_bytes);
void copies_wait(Lane& lane, std::uint32_t pending);
void copies_arrive(Lane& lane, std::uint32_t address);
void stores_wait(Lane& lane, std::uint32_t pending);

}  // namespace simt
