// Switching stacks; see fiber.h. The registers that a call preserves are all that a switch keeps.
#include "testing/simt/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#if defined(__x86_64__)
extern "C" void simt_switch_stacks(void** save, void* load);
asm(R"(
.text
.p2align 4
.globl simt_switch_stacks
.type simt_switch_stacks, @function
simt_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch_stacks, .-simt_switch_stacks
)");
#endif

namespace simt {

#if defined(__x86_64__)

void Fiber::start(char* stack, std::size_t bytes, void (*entry)()) {
  // As a call would leave it: a return address on top, 16 bytes aligned below it; six registers that the switch takes.
  auto** top = reinterpret_cast<void**>(reinterpret_cast<std::uintptr_t>(stack + bytes) & ~std::uintptr_t{15});
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack_pointer_ = top;
}

void Fiber::switch_to(Fiber& from, Fiber& to) { simt_switch_stacks(&from.stack_pointer_, to.stack_pointer_); }

#else

void Fiber::start(char* stack, std::size_t bytes, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}

void Fiber::switch_to(Fiber& from, Fiber& to) { swapcontext(&from.context_, &to.context_); }

#endif

Stacks::Stacks(std::size_t count) : count_(count) {
  void* const memory =
      mmap(nullptr, count * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  for (std::size_t i = 0; i < count; ++i) mprotect(memory_ + i * kBytes, kGuard, PROT_NONE);
}

Stacks::~Stacks() { munmap(memory_, count_ * kBytes); }

}  // namespace simt
