// What a process makes when it is first asked for and keeps to its end. A child of fork() makes its own: of the
// parent's it has a copy whose locks may be held by threads that the child does not have. Used for the caches of
// kernels.
#pragma once

#include <pthread.h>

#include <atomic>

namespace fovea {

// The T of this process, made by make(), which returns a new one; two threads that ask first at once may both make one.
// Never destroyed.
template <typename T>
T& per_process(T* (*make)() = [] { return new T; }) {
  static std::atomic<T*> current{nullptr};
  static std::atomic<T*> of_parent{nullptr};  // still reachable, for checkers of leaks
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { of_parent = current.exchange(nullptr); });
  T* kept = current.load(std::memory_order_acquire);
  if (kept != nullptr) return *kept;
  T* const made = make();
  if (current.compare_exchange_strong(kept, made, std::memory_order_acq_rel)) return *made;
  delete made;
  return *kept;
}

}  // namespace fovea
