// How rewritten kernels reach the emulator from what was assembly: the text of the statement and its operands, in
// order. Included by device.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

namespace simt {

// An operand of an assembly statement: a variable that it writes (and may read), or a value.
struct Operand {
  void* at = nullptr;
  std::uint64_t value = 0;
  std::uint32_t bytes = 8;
};

template <typename T>
std::uint64_t bits_of(T x) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<std::uint64_t>(x);
  } else {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof x);
    return bits;
  }
}

template <typename T>
Operand variable(const char*, T& x) {
  return {&x, 0, sizeof(T)};
}
template <typename T>
Operand value(const char*, T x) {
  return {nullptr, bits_of(x), sizeof(T)};
}

// An operand that a kernel's macro writes, which is rewritten before the preprocessor has seen it.
#define FOVEA_VARIABLE(constraint, x) ::simt::variable(constraint, x)

// Runs a statement: what `asm volatile(text : variables : values)` does on a device.
void ptx(const char* text, std::initializer_list<Operand> operands);

}  // namespace simt
