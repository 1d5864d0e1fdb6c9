// Memory of a planner: one block, carved by one function that runs twice, first to measure and then to fill, so that
// the two can never disagree. Used by the steps of a plan and by core/plan, which puts them together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace fovea {

// Hands out aligned slices of a block; without a block it only counts.
class Carver {
 public:
  static constexpr std::size_t kAlignment = 64;

  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  T* take(std::size_t count) {
    const std::size_t begin = used_;
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + begin);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

// A vector of PODs whose memory and capacity come from a Carver. Overflow is our own bug: capacities are bounds.
template <typename T>
struct FixedVector {
  T* data = nullptr;
  std::uint32_t size = 0;
  std::uint32_t capacity = 0;

  void carve(Carver& carver, std::size_t count) {
    data = carver.take<T>(count);
    capacity = static_cast<std::uint32_t>(count);
    size = 0;
  }
  T& push(const T& value) {
    FOVEA_CHECK(size < capacity);
    return data[size++] = value;
  }
  void clear() { size = 0; }
  T& operator[](std::size_t i) { return data[i]; }
  const T& operator[](std::size_t i) const { return data[i]; }
  T* begin() { return data; }
  T* end() { return data + size; }
  const T* begin() const { return data; }
  const T* end() const { return data + size; }
};

}  // namespace fovea
