// Readers of a buffer, for the bench: how fast this GPU reads memory, whatever is computed from it, and a kernel that
// does nothing, for what a launch costs. Each reader combines all words by xor into one word that was zero, so that
// nothing is optimised away and the host can check that every byte was read once.
//
//   fovea_read_loads (FOVEA_READ_THREADS a CTA, FOVEA_READ_UNROLL): 16-byte loads; any grid. A tile is THREADS * UNROLL
//   *
//     16 bytes; with FOVEA_READ_SLABS CTAs read neighbouring tiles one after another, without it they take turns.
//   fovea_read_bulk (sm_90a; FOVEA_READ_THREADS, FOVEA_READ_STAGES, FOVEA_READ_TILE bytes, a multiple of THREADS * 16):
//     bulk copies to a ring in shared memory (dynamic: STAGES * TILE bytes), one warp more than THREADS fills it.
//   fovea_empty: any grid.
#pragma once

#include "abi/plan.h"

namespace fovea::kernels {

// Tiles [begin, end) by step, of a CTA.
struct TileRange {
  uint64_t begin;
  uint64_t end;
  uint64_t step;
};

constexpr TileRange tiles_in_turns(uint64_t tiles, uint32_t cta, uint32_t num_ctas) { return {cta, tiles, num_ctas}; }

constexpr TileRange tiles_in_slabs(uint64_t tiles, uint32_t cta, uint32_t num_ctas) {
  return {tiles * cta / num_ctas, tiles * (cta + 1) / num_ctas, 1};
}

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__)

extern "C" __global__ void fovea_empty() {}

#if defined(FOVEA_READ_THREADS)

namespace fovea::kernels {

inline constexpr uint32_t kReadThreads = FOVEA_READ_THREADS;

__forceinline__ uint32_t xor_of(uint4 words) { return words.x ^ words.y ^ words.z ^ words.w; }

__forceinline__ uint4 load_once(const uint4* from) {
  uint4 words;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return words;
}

__forceinline__ void combine(uint32_t words, uint32_t* out) {
  words = __reduce_xor_sync(0xffffffffu, words);
  if (threadIdx.x % 32 == 0) atomicXor(out, words);
}

}  // namespace fovea::kernels

#if defined(FOVEA_READ_UNROLL)
extern "C" __global__ void __launch_bounds__(FOVEA_READ_THREADS)
    fovea_read_loads(const uint4* data, unsigned long long tiles, unsigned int* out) {
  using namespace fovea::kernels;
#if defined(FOVEA_READ_SLABS)
  const TileRange range = tiles_in_slabs(tiles, blockIdx.x, gridDim.x);
#else
  const TileRange range = tiles_in_turns(tiles, blockIdx.x, gridDim.x);
#endif
  uint32_t seen = 0;
  for (uint64_t tile = range.begin; tile < range.end; tile += range.step) {
    const uint4* from = data + tile * (kReadThreads * FOVEA_READ_UNROLL) + threadIdx.x;
    uint4 words[FOVEA_READ_UNROLL];
#pragma unroll
    for (uint32_t i = 0; i < FOVEA_READ_UNROLL; ++i) words[i] = load_once(from + i * kReadThreads);
#pragma unroll
    for (uint32_t i = 0; i < FOVEA_READ_UNROLL; ++i) seen ^= xor_of(words[i]);
  }
  combine(seen, out);
}
#endif

#if defined(FOVEA_READ_STAGES) && __CUDA_ARCH__ >= 900

namespace fovea::kernels {

inline constexpr uint32_t kReadStages = FOVEA_READ_STAGES;
inline constexpr uint32_t kReadTile = FOVEA_READ_TILE;  // bytes
static_assert(kReadTile % (kReadThreads * 16) == 0, "a tile is whole 16-byte loads of every thread");

__forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Returns when the phase of that parity is over.
__forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}

__forceinline__ void copy_tile(void* to, const uint8_t* from, uint64_t* full) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)), "r"(kReadTile)
               : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(kReadTile), "r"(shared_address(full))
               : "memory");
}

}  // namespace fovea::kernels

extern "C" __global__ void __launch_bounds__(FOVEA_READ_THREADS + 32, 1)
    fovea_read_bulk(const unsigned char* data, unsigned long long tiles, unsigned int* out) {
  using namespace fovea::kernels;
  extern __shared__ __align__(128) uint4 ring[];  // [kReadStages][kReadTile / 16]
  __shared__ uint64_t full[kReadStages], empty[kReadStages];
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kReadStages; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, kReadThreads / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const TileRange range = tiles_in_turns(tiles, blockIdx.x, gridDim.x);
  constexpr uint32_t kTileWords = kReadTile / 16;
  uint32_t stage = 0, parity = 0;
  if (threadIdx.x >= kReadThreads) {  // the producer: one thread of the last warp
    if (threadIdx.x != kReadThreads) return;
    for (uint64_t tile = range.begin; tile < range.end; tile += range.step) {
      barrier_wait(empty + stage, parity ^ 1);
      copy_tile(ring + stage * kTileWords, data + tile * kReadTile, full + stage);
      if (++stage == kReadStages) stage = 0, parity ^= 1;
    }
    return;
  }
  uint32_t seen = 0;
  for (uint64_t tile = range.begin; tile < range.end; tile += range.step) {
    barrier_wait(full + stage, parity);
#pragma unroll
    for (uint32_t i = 0; i < kTileWords / kReadThreads; ++i) {
      seen ^= xor_of(ring[stage * kTileWords + i * kReadThreads + threadIdx.x]);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty + stage);
    if (++stage == kReadStages) stage = 0, parity ^= 1;
  }
  combine(seen, out);
}

#endif  // FOVEA_READ_STAGES
#endif  // FOVEA_READ_THREADS
#endif  // __CUDACC_RTC__
