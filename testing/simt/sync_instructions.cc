// Instructions that wait, fence and copy; what they do stands in sync.cc and copies.cc. See ptx_statement.h.
#include <fmt/format.h>

#include "testing/simt/copies.h"
#include "testing/simt/ptx_statement.h"

namespace simt {
namespace {

void mbarrier(Lane& lane, const Instruction& i, Frame& f) {
  const std::string_view what = i.part(1);
  // arrive names what it gives back first, as waits do.
  const bool gives = what == "arrive" || what == "test_wait" || what == "try_wait";
  const std::size_t at = gives ? 1 : 0;
  const auto barrier = static_cast<std::uint32_t>(f.address(i.arguments[at]));
  const auto number = [&](std::size_t n) { return f.get32(i.ref(n)); };
  if (what == "arrive" && is_remote(barrier)) {
    remote_arrive(lane, barrier, 1);
  } else if (what == "init") {
    mbarrier_init(lane, barrier, number(1));
  } else if (what == "arrive") {
    const bool expects = i.part(2) == "expect_tx";
    const std::uint32_t second = i.arguments.size() > 2 ? number(2) : 1;
    mbarrier_arrive(lane, barrier, expects ? 1 : second, expects ? second : 0);
  } else if (what == "expect_tx") {
    find_mbarrier(lane, barrier).bytes += number(1);
  } else if (what == "test_wait") {
    f.set(i.ref(0), mbarrier_test(lane, barrier, number(2)) ? 1 : 0);
    machine_of(lane).poll(lane, i.text.c_str());
  } else if (what == "try_wait") {
    mbarrier_wait(lane, barrier, number(2), i.text.c_str());
    f.set(i.ref(0), 1);
  }  // inval: nothing
}

void fence(Lane& lane, const Instruction& i, Frame&) {
  // The initialization of an mbarrier is what this one is for, and all that the thread did is more.
  if (!i.has(".proxy.async") && !i.has("mbarrier_init")) return;
  lane.clock.fence();
  lane.tick();
}

void cluster_barrier(Lane& lane, const Instruction& i, Frame&) {
  if (i.part(2) == "arrive") return cluster_arrive(lane);
  cluster_wait(lane, i.text.c_str());
}

// An address in another CTA; a store there of one or more registers, with a barrier behind it.
void map_address(Lane&, const Instruction& i, Frame& f) {
  f.set(i.ref(0), cluster_address(f.get32(i.ref(1)), f.get32(i.ref(2))));
}
void store_there(Lane& lane, const Instruction& i, Frame& f) {
  std::uint32_t words[4] = {};
  const std::vector<Ref>& refs = i.arguments[1].refs;
  for (std::size_t n = 0; n < refs.size() && n < 4; ++n) words[n] = f.get32(refs[n]);
  remote_store(lane, static_cast<std::uint32_t>(f.address(i.arguments[0])), words,
               static_cast<std::uint32_t>(refs.size()) * 4, static_cast<std::uint32_t>(f.address(i.arguments[2])));
}

void named_barrier(Lane& lane, const Instruction& i, Frame& f) {
  const Cta& cta = *lane.warp->cta;
  const std::uint32_t threads = i.arguments.size() > 1 ? f.get32(i.ref(1)) : (cta.threads + 31) / 32 * 32;
  barrier_arrive(lane, f.get32(i.ref(0)), threads, !i.has("arrive"), i.text.c_str());
}

// cp.async and cp.async.bulk in all their forms.
void copy(Lane& lane, const Instruction& i, Frame& f) {
  const auto shared = [&](std::size_t n) { return static_cast<std::uint32_t>(f.address(i.arguments[n])); };
  const auto global = [&](std::size_t n) { return reinterpret_cast<void*>(f.address(i.arguments[n])); };
  const auto coordinates = [&](std::size_t n, std::int32_t(&to)[5]) {
    const std::vector<Ref>& refs = i.arguments[n].refs;
    for (std::size_t d = 1; d < refs.size() && d <= 5; ++d) to[d - 1] = static_cast<std::int32_t>(f.get32(refs[d]));
    return static_cast<std::uint32_t>(refs.size() - 1);
  };
  std::int32_t at[5] = {};
  if (i.has("cp.async.bulk.tensor") && i.has(".global.shared")) {
    const std::uint32_t rank = coordinates(0, at);
    store_box(lane, global(0), at, rank, shared(1));
  } else if (i.has("cp.async.bulk.tensor")) {
    const std::uint32_t rank = coordinates(1, at);
    tma_load_box(lane, shared(0), global(1), at, rank, shared(2));
  } else if (i.has("cp.async.bulk.commit_group")) {
    ++lane.store_group;
  } else if (i.has("cp.async.bulk.wait_group")) {
    stores_wait(lane, f.get32(i.ref(0)));
  } else if (i.has("cp.async.bulk.global")) {
    store_bulk(lane, global(0), shared(1), f.get32(i.ref(2)));
  } else if (i.has("cp.async.bulk")) {
    copy_bulk(lane, shared(0), global(1), f.get32(i.ref(2)), shared(3));
  } else if (i.has("mbarrier.arrive")) {
    if (!i.has(".noinc")) machine_of(lane).fail("the emulator knows cp.async.mbarrier.arrive with .noinc only");
    copies_arrive(lane, shared(0));
  } else if (i.has("commit_group")) {
    copies_commit(lane);
  } else if (i.has("wait_group")) {
    copies_wait(lane, f.get32(i.ref(0)));
  } else if (i.has("wait_all")) {
    copies_commit(lane);
    copies_wait(lane, 0);
  } else {
    const std::uint32_t bytes = f.get32(i.ref(2));
    copy_async(lane, shared(0), global(1), bytes, i.arguments.size() > 3 ? f.get32(i.ref(3)) : bytes);
  }
}

}  // namespace

bool find_sync(Instruction& i) {
  const std::string_view name = i.part(0), next = i.part(1);
  if (name == "mbarrier") {
    i.run = mbarrier;
  } else if (name == "fence" || name == "membar") {
    i.run = fence;
  } else if (name == "barrier" && next == "cluster") {
    i.run = cluster_barrier;
  } else if (name == "mapa") {
    i.run = map_address;
  } else if (name == "st" && next == "async") {
    i.run = store_there;
  } else if (name == "bar" && next == "warp") {
    return false;
  } else if (name == "bar" || name == "barrier") {
    i.run = named_barrier;
  } else if (name == "cp" && !i.has(".prefetch") && !i.has("multicast") && !i.has(".reduce")) {
    i.run = copy;
  } else if (name == "griddepcontrol" || name == "setmaxnreg" || i.opcode.starts_with("cp.async.bulk.prefetch")) {
    i.run = [](Lane&, const Instruction&, Frame&) {};
  } else {
    return false;
  }
  return true;
}

}  // namespace simt
