// Rounds, waiting and barriers of the pool; see base/thread_pool.h.
#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <new>
#include <system_error>
#include <utility>

#include "base/cgroup.h"
#include "base/check.h"
#include "base/env.h"
#include "base/log.h"

namespace fovea {
namespace {

// How long a worker looks for the next round before it sleeps. Rounds of one forward pass follow each other within a
// few microseconds; waking a sleeper costs 5-50 us.
constexpr std::chrono::microseconds kSpinTime{40};
constexpr int kSpinsPerClockRead = 32;

// The pool whose job this thread is running, and whether that job runs nested (see ThreadPool::run).
thread_local const ThreadPool* current_pool = nullptr;
thread_local bool current_is_nested = false;

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// NOTE: every change that someone may sleep on is sequentially consistent. notify_all() skips the system call when it
// sees no sleeper; with a weaker store it could look before the store is visible, and a worker that is just going to
// sleep would miss it for good.

int default_num_threads() {
  const Result<std::int64_t> wanted = env_int(EnvVar::kNumThreads, 0, 1024);
  if (!wanted.ok()) log_warning("{}; taking 0", wanted.status().message());
  return wanted.ok() && *wanted > 0 ? static_cast<int>(*wanted) : usable_cpus();
}

// A fork copies the forking thread alone, at any moment of the others. Nothing here allocates or runs at exit, since
// pools live until then.
class ThreadPool::Registry {
 public:
  static void add(ThreadPool* pool) {
    const std::lock_guard lock(mutex_);
    pool->next_ = first_;
    if (first_ != nullptr) first_->previous_ = pool;
    first_ = pool;
  }
  static void remove(ThreadPool* pool) {
    const std::lock_guard lock(mutex_);
    (pool->previous_ != nullptr ? pool->previous_->next_ : first_) = pool->next_;
    if (pool->next_ != nullptr) pool->next_->previous_ = pool->previous_;
  }

 private:
  static void lock() { mutex_.lock(); }
  static void unlock() { mutex_.unlock(); }
  static void unlock_in_child() {
    for (ThreadPool* pool = first_; pool != nullptr; pool = pool->next_) pool->forget_threads();
    unlock();
  }

  static constinit std::mutex mutex_;
  static constinit ThreadPool* first_;
  static const int kRegistered;
};

constinit std::mutex ThreadPool::Registry::mutex_;
constinit ThreadPool* ThreadPool::Registry::first_ = nullptr;
const int ThreadPool::Registry::kRegistered = ::pthread_atfork(lock, unlock, unlock_in_child);

ThreadPool::ThreadPool(int num_threads) : size_(std::max(1, num_threads)), places_(static_cast<std::size_t>(size_)) {
  may_spin_ = size_ <= usable_cpus();
  start_threads();
  Registry::add(this);
}

ThreadPool::~ThreadPool() {
  Registry::remove(this);
  stop_threads();
}

void ThreadPool::start_threads() {
  for (int worker = 1; worker < size_; ++worker) {
    Place& place = places_[static_cast<std::size_t>(worker)];
    place.pool = this;
    if (const int error = ::pthread_create(&place.thread, nullptr, thread_main, &place); error != 0) {
      stop_threads();
      throw std::system_error(error, std::generic_category(),
                              "a pool of " + std::to_string(size_) + " threads cannot be started");
    }
    pthread_setname_np(place.thread, "fovea-worker");
    num_started_ = worker;
  }
}

void ThreadPool::stop_threads() {
  stopping_ = true;
  round_.fetch_add(1);
  round_.notify_all();
  for (int worker = 1; worker <= num_started_; ++worker) {
    ::pthread_join(places_[static_cast<std::size_t>(worker)].thread, nullptr);
  }
  num_started_ = 0;
  stopping_ = false;
  round_ = 0;
}

void ThreadPool::forget_threads() {
  ::new (&turn_) std::mutex;  // a thread that is not here may hold it
  num_started_ = 0;
  round_ = unfinished_ = arrived_ = phase_ = 0;
}

void* ThreadPool::thread_main(void* given) {
  auto* const place = static_cast<Place*>(given);
  place->pool->worker_main(static_cast<int>(place - place->pool->places_.data()));
  return nullptr;
}

void ThreadPool::spread(int worker) {
  const int cpu = sched_getcpu();
  places_[static_cast<std::size_t>(worker)].cpu.store(cpu, std::memory_order_relaxed);
  cpu_set_t allowed;
  cpu_set_t taken;
  CPU_ZERO(&taken);
  bool shared = false;
  for (int other = 0; other < size_; ++other) {
    const int other_cpu = places_[static_cast<std::size_t>(other)].cpu.load(std::memory_order_relaxed);
    if (other == worker || other_cpu < 0 || other_cpu >= CPU_SETSIZE) continue;
    CPU_SET(other_cpu, &taken);
    shared = shared || other_cpu == cpu;
  }
  if (!shared || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int target = 0; target < CPU_SETSIZE; ++target) {
    if (!CPU_ISSET(target, &allowed) || CPU_ISSET(target, &taken)) continue;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(target, &only);
    if (sched_setaffinity(0, sizeof(only), &only) != 0) return;
    sched_setaffinity(0, sizeof(allowed), &allowed);
    places_[static_cast<std::size_t>(worker)].cpu.store(target, std::memory_order_relaxed);
    return;
  }
}

std::uint32_t ThreadPool::await_change(const std::atomic<std::uint32_t>& value, std::uint32_t old, int worker) {
  std::uint32_t now = value.load(std::memory_order_acquire);
  if (now == old && may_spin_) {
    const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
    bool first = true;
    do {
      for (int i = 0; i < kSpinsPerClockRead; ++i) {
        cpu_relax();
        now = value.load(std::memory_order_acquire);
        if (now != old) return now;
      }
      // NOTE: the scheduler leaves two threads that spin and sleep in turns on one CPU for seconds when the other CPUs
      // have anything to run; each round then costs two spin times (measured: 85 us instead of 0.1).
      if (std::exchange(first, false) && worker != 0) spread(worker);
    } while (std::chrono::steady_clock::now() < deadline);
  }
  while (now == old) {
    value.wait(old, std::memory_order_acquire);
    now = value.load(std::memory_order_acquire);
  }
  return now;
}

void ThreadPool::worker_main(int worker) {
  current_pool = this;
  std::uint32_t seen = 0;
  while (true) {
    seen = await_change(round_, seen, worker);
    if (stopping_) return;
    job_(context_, worker);
    if (unfinished_.fetch_sub(1) == 1) unfinished_.notify_one();
  }
}

void ThreadPool::run_job(Job job, void* context) {
  if (current_pool == this) {
    const bool was_nested = current_is_nested;
    current_is_nested = true;
    for (int worker = 0; worker < size_; ++worker) job(context, worker);
    current_is_nested = was_nested;
    return;
  }
  const std::lock_guard<std::mutex> lock(turn_);
  if (num_started_ < size_ - 1) start_threads();
  const ThreadPool* const outer_pool = std::exchange(current_pool, this);
  const bool outer_nested = std::exchange(current_is_nested, false);
  if (size_ > 1) {
    places_[0].cpu.store(sched_getcpu(), std::memory_order_relaxed);
    job_ = job;
    context_ = context;
    unfinished_.store(static_cast<std::uint32_t>(size_ - 1), std::memory_order_relaxed);
    round_.fetch_add(1);
    round_.notify_all();
  }
  job(context, 0);
  std::uint32_t left = unfinished_.load(std::memory_order_acquire);
  while (left != 0) left = await_change(unfinished_, left, 0);
  current_pool = outer_pool;
  current_is_nested = outer_nested;
}

void ThreadPool::barrier(int worker) {
  FOVEA_CHECK(current_pool == this && !current_is_nested);
  if (size_ == 1) return;
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(size_)) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1);
    phase_.notify_all();
  } else {
    await_change(phase_, phase, worker);
  }
}

}  // namespace fovea
