// What a kernel asks of the lane that it runs in; device.h gives it CUDA's names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace simt {

struct Index {
  std::uint32_t x, y, z;
};
Index thread_index();
Index block_index();
Index block_size();
Index grid_size();
std::uint32_t lane_index();

std::uint8_t* dynamic_shared();
std::uint32_t shared_address(const void* p);

std::uint64_t shuffle(std::uint32_t mask, std::uint64_t bits, std::uint32_t from);
std::uint32_t ballot(std::uint32_t mask, bool x);
enum class Reduction : std::uint8_t { kOr, kMax, kMin, kAdd };
std::uint32_t reduce(std::uint32_t mask, std::uint32_t x, Reduction how);
void sync_lanes(std::uint32_t mask);
void sync_cta();
void rest();
std::int64_t clock();
[[noreturn]] void trap();

// Global memory: checked, and others may go first.
void before_atomic(void* at, std::size_t bytes);
void store_bits(void* at, const void* from, std::size_t bytes);
void load_bits(void* to, const void* from, std::size_t bytes);
template <typename T>
void store_quietly(T* at, T x) {
  store_bits(at, &x, sizeof x);
}
template <typename T>
T load_global(const T* from) {
  T x;
  load_bits(&x, from, sizeof x);
  return x;
}

// Whether the launch runs with this fault (launch.h); sources get such questions where faults are planted (rewrite.h).
bool planted(int fault);

}  // namespace simt
