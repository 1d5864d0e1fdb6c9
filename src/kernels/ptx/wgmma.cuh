// The warpgroup's matrix product (wgmma) with A in registers and B in shared memory: rows 64, 16 of the inner
// dimension, fp32 sums. sm_90a only. Used by kernels/attention/prefix_forest.
//
// Fragments are those of mma_16816: warp w of the group has rows 16 w .., A is its A fragment, and the sums are C
// fragments of 8 columns one after the other. B lies under the 128-byte swizzle, 1024-byte atoms of 8 rows; every
// descriptor starts at a multiple of 16 bytes in an atom that starts at a multiple of 1024.
#pragma once

#include "abi/plan.h"

#if FOVEA_ARCH >= 900

namespace fovea::ptx {

// panel: bytes from one run of 64 columns to the next, where rows of B are the inner dimension (V); else not read.
__device__ __forceinline__ uint64_t wgmma_matrix(uint32_t address, uint32_t panel = 16) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | static_cast<uint64_t>(panel >> 4) << 16 |
         static_cast<uint64_t>(1024 >> 4) << 32 | 1ull << 62;
}

// Before the first product, and after registers that products read or add to were written.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait_all() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// d [64, N] = A B (+ d unless fresh). kInnerRows: rows of B in memory are the inner dimension (V); else its columns
// (K).
template <bool kBf16, bool kInnerRows>
__device__ __forceinline__ void wgmma(float (&d)[4], const uint32_t (&a)[4], uint64_t b, uint32_t fresh) {
#define FOVEA_PRODUCT(TYPE)                                         \
  asm volatile(                                                     \
      "{\n .reg .pred p;\n setp.eq.b32 p, %9, 0;\n"                 \
      "wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE    \
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, %10;\n}\n" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])              \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(fresh), "n"(kInnerRows ? 1 : 0))
  if constexpr (kBf16) {
    FOVEA_PRODUCT("bf16");
  } else {
    FOVEA_PRODUCT("f16");
  }
#undef FOVEA_PRODUCT
}
template <bool kBf16, bool kInnerRows>
__device__ __forceinline__ void wgmma(float (&d)[8], const uint32_t (&a)[4], uint64_t b, uint32_t fresh) {
#define FOVEA_PRODUCT(TYPE)                                                                            \
  asm volatile(                                                                                        \
      "{\n .reg .pred p;\n setp.eq.b32 p, %13, 0;\n"                                                   \
      "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE                                      \
      " {"                                                                                             \
      "%0, %1, %2, %3, %4, %5, %6, %7"                                                                 \
      "}, {%8, %9, %10, %11}, %12, p, 1, 1, %14;\n}\n"                                                 \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(fresh), "n"(kInnerRows ? 1 : 0))
  if constexpr (kBf16) {
    FOVEA_PRODUCT("bf16");
  } else {
    FOVEA_PRODUCT("f16");
  }
#undef FOVEA_PRODUCT
}
template <bool kBf16, bool kInnerRows>
__device__ __forceinline__ void wgmma(float (&d)[16], const uint32_t (&a)[4], uint64_t b, uint32_t fresh) {
#define FOVEA_PRODUCT(TYPE)                                                                                         \
  asm volatile(                                                                                                     \
      "{\n .reg .pred p;\n setp.eq.b32 p, %21, 0;\n"                                                                \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE                                                   \
      " {"                                                                                                          \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"                                        \
      "}, {%16, %17, %18, %19}, %20, p, 1, 1, %22;\n}\n"                                                            \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                    \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(fresh), "n"(kInnerRows ? 1 : 0))
  if constexpr (kBf16) {
    FOVEA_PRODUCT("bf16");
  } else {
    FOVEA_PRODUCT("f16");
  }
#undef FOVEA_PRODUCT
}
template <bool kBf16, bool kInnerRows>
__device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b, uint32_t fresh) {
#define FOVEA_PRODUCT(TYPE)                                                                                         \
  asm volatile(                                                                                                     \
      "{\n .reg .pred p;\n setp.eq.b32 p, %37, 0;\n"                                                                \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                                                   \
      " {"                                                                                                          \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                      \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                              \
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"                                                            \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(fresh), "n"(kInnerRows ? 1 : 0))
  if constexpr (kBf16) {
    FOVEA_PRODUCT("bf16");
  } else {
    FOVEA_PRODUCT("f16");
  }
#undef FOVEA_PRODUCT
}
template <bool kBf16, bool kInnerRows>
__device__ __forceinline__ void wgmma(float (&d)[64], const uint32_t (&a)[4], uint64_t b, uint32_t fresh) {
#define FOVEA_PRODUCT(TYPE)                                                                                         \
  asm volatile(                                                                                                     \
      "{\n .reg .pred p;\n setp.eq.b32 p, %69, 0;\n"                                                                \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                                                  \
      " {"                                                                                                          \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                      \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                            \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                            \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"                              \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"                                                            \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),     \
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),     \
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),     \
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),     \
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(fresh), "n"(kInnerRows ? 1 : 0))
  if constexpr (kBf16) {
    FOVEA_PRODUCT("bf16");
  } else {
    FOVEA_PRODUCT("f16");
  }
#undef FOVEA_PRODUCT
}

}  // namespace fovea::ptx

#endif
