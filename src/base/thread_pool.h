// The fork-join pool that all compute of the process runs on: one thread a usable CPU, the caller being worker 0. Made
// for rounds of a few microseconds: workers spin for a moment after each round, then sleep, so an idle process costs
// nothing. A child of fork() has the pools of its parent and starts their threads again when it first uses them. Owned
// by a backend; used by its executors and operators.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

namespace fovea {

// FOVEA_NUM_THREADS where it is set to a positive number, otherwise usable_cpus().
int default_num_threads();

class ThreadPool {
 public:
  // Throws std::system_error where the system gives no more threads; so does run() in a child of fork().
  explicit ThreadPool(int num_threads = default_num_threads());
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int size() const { return size_; }

  // Calls f(worker) once for each worker in [0, size()), all at the same time, and returns when all have returned; what
  // they wrote is visible to the caller. f must not throw. Calls from several threads take turns. Called from inside a
  // job of the same pool it calls f(0), f(1), .. one after another on this thread, so such an f must not use barrier(),
  // and scratch indexed by its argument is not private. Allocates nothing.
  template <typename F>
  void run(F&& f) {
    using Function = std::remove_reference_t<F>;
    run_job([](void* context, int worker) { (*static_cast<Function*>(context))(worker); },
            const_cast<void*>(static_cast<const void*>(std::addressof(f))));
  }

  // Calls f(begin, end), or f(begin, end, worker), over disjoint pieces of [0, n) of `grain` elements (the last may be
  // shorter), handed out to workers as they become free. Which worker gets which piece varies from run to run.
  template <typename F>
  void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
    if (n <= 0) return;
    grain = std::max<std::int64_t>(grain, 1);
    if (n <= grain || size_ == 1) {
      for (std::int64_t begin = 0; begin < n; begin += grain) call_piece(f, begin, std::min(begin + grain, n), 0);
      return;
    }
    std::atomic<std::int64_t> next{0};
    run([&](int worker) {
      for (std::int64_t begin; (begin = next.fetch_add(grain, std::memory_order_relaxed)) < n;) {
        call_piece(f, begin, std::min(begin + grain, n), worker);
      }
    });
  }

  // Inside run(): waits until every worker has called it; what was written before is visible after. All workers must
  // call it the same number of times.
  void barrier(int worker);

 private:
  using Job = void (*)(void* context, int worker);

  template <typename F>
  static void call_piece(F& f, std::int64_t begin, std::int64_t end, int worker) {
    if constexpr (std::is_invocable_v<F&, std::int64_t, std::int64_t, int>) {
      f(begin, end, worker);
    } else {
      f(begin, end);
    }
  }

  void run_job(Job job, void* context);
  void start_threads();
  void stop_threads();
  void worker_main(int worker);
  // Spins, then sleeps, until value differs from old; returns what it became.
  std::uint32_t await_change(const std::atomic<std::uint32_t>& value, std::uint32_t old, int worker);
  // Moves the calling worker to a CPU of its own when it shares one with another worker.
  void spread(int worker);

  struct alignas(64) Place {
    std::atomic<int> cpu{-1};  // where the worker was seen last
    ThreadPool* pool = nullptr;
    pthread_t thread{};
  };
  static void* thread_main(void* place);

  // Every pool of the process, for forks.
  class Registry;
  friend Registry;
  // In a child of fork(): as a pool is whose threads were not started yet.
  void forget_threads();

  const int size_;
  bool may_spin_ = true;  // false when there are more workers than CPUs: a spinning thread would hold up a working one
  std::mutex turn_;       // held for a round
  Job job_ = nullptr;     // written before round_ changes
  void* context_ = nullptr;
  bool stopping_ = false;
  // Each on a line of its own: they are written by different threads at different times.
  alignas(64) std::atomic<std::uint32_t> round_{0};
  alignas(64) std::atomic<std::uint32_t> unfinished_{0};
  alignas(64) std::atomic<std::uint32_t> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> phase_{0};
  std::vector<Place> places_;  // one a worker
  int num_started_ = 0;        // threads; changed under turn_
  ThreadPool* previous_ = nullptr;
  ThreadPool* next_ = nullptr;  // in the registry, under its lock
};

}  // namespace fovea
