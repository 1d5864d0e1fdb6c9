// Fibers: stacks of their own that one thread switches between. The lanes of the emulator (machine.h).
#pragma once

#include <cstddef>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt {

class Fiber {
 public:
  // The fiber begins in `entry`, which must never return, when it is switched to first.
  void start(char* stack, std::size_t bytes, void (*entry)());
  static void switch_to(Fiber& from, Fiber& to);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

// Stacks of equal size in one piece of memory, a page that nobody may touch below each.
struct StackRange {
  const char* begin = nullptr;
  std::size_t bytes = 0;
  bool contains(const void* p) const { return static_cast<std::size_t>(static_cast<const char*>(p) - begin) < bytes; }
};
class Stacks {
 public:
  static constexpr std::size_t kBytes = std::size_t{128} << 10;
  explicit Stacks(std::size_t count);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  std::size_t count() const { return count_; }
  char* stack(std::size_t i) const { return memory_ + i * kBytes + kGuard; }
  static constexpr std::size_t usable_bytes() { return kBytes - kGuard; }
  StackRange range() const { return {memory_, count_ * kBytes}; }

 private:
  static constexpr std::size_t kGuard = 4096;
  std::size_t count_;
  char* memory_;
};

}  // namespace simt
