// The steps of a kernel of one CTA, written so that they also run on the host: each step is a function of a thread (or
// of an index), and ends with a barrier. Between steps threads share memory only, nothing in registers. Used by
// kernels/plan/reschedule.cuh and select.cuh; tests/kernels runs the same steps on the host, threads in random order.
#pragma once

#include "abi/plan.h"

namespace fovea::kernels {

#if defined(__CUDACC_RTC__)
struct DeviceCta {
  __forceinline__ uint32_t threads() const { return blockDim.x; }
  template <typename Step>
  __forceinline__ void each_thread(const Step& step) const {
    step(static_cast<uint32_t>(threadIdx.x));
    __syncthreads();
  }
};
#endif

// step(i) for i in [0, count).
template <typename Cta, typename Step>
__forceinline__ void for_each(const Cta& cta, uint32_t count, const Step& step) {
  cta.each_thread([&](uint32_t thread) {
    for (uint32_t i = thread; i < count; i += cta.threads()) step(i);
  });
}

// What scans and reductions share: [threads] and [threads / 32] words.
struct CtaSums {
  uint64_t* thread;
  uint64_t* group;
};

// values[i] becomes the sum of the values before i; values[count] that of all.
template <typename Cta>
__forceinline__ void exclusive_scan(const Cta& cta, const CtaSums& sums, uint64_t* values, uint32_t count) {
  const uint32_t chunk = (count + cta.threads() - 1) / cta.threads();
  cta.each_thread([&](uint32_t thread) {
    uint64_t sum = 0;
    for (uint32_t i = thread * chunk; i < (thread + 1) * chunk && i < count; ++i) sum += values[i];
    sums.thread[thread] = sum;
  });
  for_each(cta, cta.threads() / 32, [&](uint32_t group) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 32; ++i) sum += sums.thread[group * 32 + i];
    sums.group[group] = sum;
  });
  cta.each_thread([&](uint32_t thread) {
    uint64_t before = 0;
    for (uint32_t group = 0; group < thread / 32; ++group) before += sums.group[group];
    for (uint32_t i = thread / 32 * 32; i < thread; ++i) before += sums.thread[i];
    for (uint32_t i = thread * chunk; i < (thread + 1) * chunk && i < count; ++i) {
      const uint64_t value = values[i];
      values[i] = before;
      before += value;
    }
    if (thread + 1 == cta.threads()) values[count] = before;
  });
}

// result becomes combine(.. combine(0, value(0)) .., value(count - 1)), in some order.
template <typename Cta, typename Value, typename Combine>
__forceinline__ void reduce(const Cta& cta, const CtaSums& sums, uint32_t count, const Value& value,
                            const Combine& combine, uint64_t& result) {
  cta.each_thread([&](uint32_t thread) {
    uint64_t of_thread = 0;
    for (uint32_t i = thread; i < count; i += cta.threads()) of_thread = combine(of_thread, value(i));
    sums.thread[thread] = of_thread;
  });
  for_each(cta, cta.threads() / 32, [&](uint32_t group) {
    uint64_t of_group = 0;
    for (uint32_t i = 0; i < 32; ++i) of_group = combine(of_group, sums.thread[group * 32 + i]);
    sums.group[group] = of_group;
  });
  for_each(cta, 1, [&](uint32_t) {
    uint64_t of_all = 0;
    for (uint32_t group = 0; group < cta.threads() / 32; ++group) of_all = combine(of_all, sums.group[group]);
    result = of_all;
  });
}

// The first i in [0, count) with `holds(i)`, which holds from some i on; count if there is none.
template <typename Holds>
__forceinline__ uint32_t first_where(uint32_t count, const Holds& holds) {
  uint32_t low = 0;
  uint32_t high = count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace fovea::kernels
