// Small kernels that use one thing of a device each, rightly or as `mode` says wrongly. probes_test.cc runs them in the
// emulator and looks at what it says. Device code, by the names of kernels/ptx where there are some.
#define FOVEA_ARCH 900
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace probes {

using namespace fovea;

struct Arguments {
  const uint16_t* a;
  const uint16_t* b;
  float* out;
  uint16_t* halves;
  uint32_t mode;
  uint32_t swizzle;  // of the span in bytes, as in descriptors: 1 128, 2 64, 3 32, 0 none
};

// What a descriptor is made of, for any layout.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride, uint32_t swizzle) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(swizzle) << 62;
}

// Byte offset of element (row, k) of a matrix of `rows` rows and 64 columns, 16 bits an element, as wgmma reads it
// K-major: panels of the span, rows of a panel behind one another; without a swizzle 8 x 8 pieces, k after k.
__device__ __forceinline__ uint32_t place(uint32_t row, uint32_t k, uint32_t rows, uint32_t swizzle) {
  if (swizzle == 0) return k / 8 * rows * 16 + row * 16 + k % 8 * 2;
  const uint32_t span = 256u >> swizzle;
  const uint32_t at = k * 2 / span * rows * span + row * span + k * 2 % span;
  return at ^ ((at >> 3) & (span - 16));
}

template <int kTransposedA, int kTransposedB>
__device__ __forceinline__ void product(float (&d)[8], uint64_t a, uint64_t b, uint32_t fresh) {
  asm volatile(
      "{\n .reg .pred p;\n setp.eq.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, %11, "
      "%12;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "l"(a), "l"(b), "r"(fresh), "n"(kTransposedA), "n"(kTransposedB));
}

__device__ __forceinline__ void put_sums(const Arguments& args, const float (&d)[8]) {
  const uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int i = 0; i < 8; ++i) args.out[(row + i / 2 % 2 * 8) * 16 + i / 4 * 8 + column + i % 2] = d[i];
}

// out [64, 16] = A [64, 64] B [16, 64]^T by one warpgroup, both K-major. mode 1: no proxy fence; 2: sums are read
// before they are waited for; 3: no wgmma.fence; 4: A is overwritten before the wait.
__device__ __forceinline__ void multiply(const Arguments& args, uint8_t* shared) {
  uint8_t* const b_tile = shared + 64 * 128;
  for (uint32_t i = threadIdx.x; i < 64 * 64; i += 128) {
    *reinterpret_cast<uint16_t*>(shared + place(i / 64, i % 64, 64, args.swizzle)) = args.a[i];
  }
  for (uint32_t i = threadIdx.x; i < 16 * 64; i += 128) {
    *reinterpret_cast<uint16_t*>(b_tile + place(i / 64, i % 64, 16, args.swizzle)) = args.b[i];
  }
  if (args.mode != 1) ptx::fence_before_async_copies();
  __syncthreads();
  float d[8];
  if (args.mode != 3) ptx::wgmma_fence();
  const uint32_t span = args.swizzle == 0 ? 16 : 256u >> args.swizzle;
  for (uint32_t k = 0; k < 64; k += 16) {
    const auto at = [&](const uint8_t* tile, uint32_t rows) {
      const uint32_t panel = k * 2 / span * rows * span + k * 2 % span;
      return descriptor(ptx::smem_address(tile) + panel, rows * 16, 8 * span, args.swizzle);
    };
    product<0, 0>(d, at(shared, 64), at(b_tile, 16), k == 0);
  }
  ptx::wgmma_commit();
  if (args.mode == 2) put_sums(args, d);
  if (args.mode == 4) {
    __syncthreads();
    *reinterpret_cast<uint16_t*>(shared + 2 * threadIdx.x) = 0;
  }
  ptx::wgmma_wait_all();
  if (args.mode != 2) put_sums(args, d);
}

// The same of A [64, 64] and B [16, 64], both MN-major under the swizzle: runs of elements with the same k.
__device__ __forceinline__ void multiply_transposed(const Arguments& args, uint8_t* shared) {
  uint8_t* const b_tile = shared + 64 * 128;
  const uint32_t span = 256u >> args.swizzle;
  // Element (row, k): runs of span / 2 rows, one k after the other.
  const auto place_of = [&](uint32_t row, uint32_t k) {
    const uint32_t run = span / 2;
    const uint32_t at = row / run * 64 * span + k * span + row % run * 2;
    return at ^ ((at >> 3) & (span - 16));
  };
  for (uint32_t i = threadIdx.x; i < 64 * 64; i += 128) {
    *reinterpret_cast<uint16_t*>(shared + place_of(i / 64, i % 64)) = args.a[i];
  }
  for (uint32_t i = threadIdx.x; i < 16 * 64; i += 128) {
    *reinterpret_cast<uint16_t*>(b_tile + place_of(i / 64, i % 64)) = args.b[i];
  }
  ptx::fence_before_async_copies();
  __syncthreads();
  float d[8];
  ptx::wgmma_fence();
  for (uint32_t k = 0; k < 64; k += 16) {
    const auto at = [&](const uint8_t* tile) {
      return descriptor(ptx::smem_address(tile) + k * span, 64 * span, 8 * span, args.swizzle);
    };
    product<1, 1>(d, at(shared), at(b_tile), k == 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait_all();
  put_sums(args, d);
}

// A tile of 8 rows of 64 halves goes by the copy engine to shared memory, through registers (doubled by the lanes' own
// addition), and back by a store. 64 threads. mode 1: no fence before the store; 2: the tile is overwritten before the
// store has read it; 3: nobody waits for the copy; 4: the copy brings less than is waited for.
__device__ __forceinline__ void copy_tile(const Arguments& args, const abi::TensorMap* in, const abi::TensorMap* out,
                                          uint8_t* shared) {
  const uint32_t barrier = ptx::smem_address(shared + 2048);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const uint32_t tile = ptx::smem_address(shared);
  if (threadIdx.x == 0) {
    ptx::mbarrier_arrive_expect(barrier, 1024 + (args.mode == 4 ? 16 : 0));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(tile),
        "l"(in), "r"(0), "r"(0), "r"(barrier)
        : "memory");
  }
  if (args.mode != 3) ptx::mbarrier_wait(barrier, 0);
  // Thread t has 16 bytes: row t / 8, chunk t % 8, where the swizzle put them.
  uint16_t* const mine =
      reinterpret_cast<uint16_t*>(shared + threadIdx.x / 8 * 128 + ((threadIdx.x % 8 ^ threadIdx.x / 8) << 4));
  for (int i = 0; i < 8; ++i) mine[i] = static_cast<uint16_t>(mine[i] + args.b[threadIdx.x * 8 + i]);
  if (args.mode != 1) ptx::fence_before_async_copies();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(out), "r"(0),
                 "r"(0), "r"(tile)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    if (args.mode != 2) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
  __syncthreads();
  mine[0] = 0;
}

// Bulk copies of bytes, and matrices through stmatrix and ldmatrix. 32 threads. mode 1: a bulk copy past the end of
// what there is; 2: a load past the end of shared memory.
__device__ __forceinline__ void bulk_load(const Arguments& args, uint8_t* shared) {
  const uint32_t barrier = ptx::smem_address(shared + 2048);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
    const uint32_t bytes = args.mode == 1 ? 528 : 512;
    ptx::mbarrier_arrive_expect(barrier, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     ptx::smem_address(shared)),
                 "l"(args.a), "r"(bytes), "r"(barrier)
                 : "memory");
  }
  __syncthreads();
  ptx::mbarrier_wait(barrier, 0);
  // Lane l gives row l % 8 of matrix l / 8; transposed once each way.
  const uint32_t row = ptx::smem_address(shared) + threadIdx.x * 16 + (args.mode == 2 ? 1 << 20 : 0);
  uint32_t x[4];
  ptx::ldmatrix_x4_trans(x, row);
  __syncwarp();
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row + 512), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
  ptx::fence_before_async_copies();
  __syncwarp();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(args.halves),
                 "r"(ptx::smem_address(shared) + 512), "r"(512)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// Two warps hand words to one another by named barriers. mode 1: one of them does not come; 2: no barrier at all; 3:
// lanes of a warp shuffle apart.
__device__ __forceinline__ void hand_over(const Arguments& args, uint8_t* shared) {
  auto* const words = reinterpret_cast<uint32_t*>(shared);
  const uint32_t warp = threadIdx.x / 32;
  if (warp == 0) {
    words[threadIdx.x] = threadIdx.x;
    if (args.mode == 0 || args.mode == 3) asm volatile("bar.arrive 3, 64;" ::: "memory");
  } else {
    if (args.mode != 2) ptx::barrier_sync(3, 64);
    uint32_t x = words[63 - threadIdx.x];
    if (args.mode != 3 || threadIdx.x % 2 == 0) x = __shfl_xor_sync(~0u, x, 31);
    args.out[threadIdx.x - 32] = static_cast<float>(x);
  }
}

}  // namespace probes

extern "C" __global__ void __launch_bounds__(128)
    fovea_probe(const probes::Arguments args, const uint32_t which, const __grid_constant__ fovea::abi::TensorMap in,
                const __grid_constant__ fovea::abi::TensorMap out) {
  extern __shared__ __align__(1024) uint8_t memory[];
  if (which == 0) probes::multiply(args, memory);
  if (which == 1) probes::multiply_transposed(args, memory);
  if (which == 2) probes::copy_tile(args, &in, &out, memory);
  if (which == 3) probes::bulk_load(args, memory);
  if (which == 4) probes::hand_over(args, memory);
}
