// The warpgroup's matrix product (wgmma) with A in registers and B in shared memory: rows 64, 16 of the inner
// dimension, fp32 sums. sm_90a only. Used by the kernels for shared prefixes, prompts and products of a batch.
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

// The sums of a product as operands of its statement, d[0] .. d[N - 1], and their names in its text. FOVEA_VARIABLE is
// how an operand is written, which the emulator of kernels reads in its own way.
#ifndef FOVEA_VARIABLE
#define FOVEA_VARIABLE(constraint, x) constraint(x)
#endif
#define FOVEA_SUM(i) FOVEA_VARIABLE("+f", d[i])
#define FOVEA_SUMS_4 FOVEA_SUM(0), FOVEA_SUM(1), FOVEA_SUM(2), FOVEA_SUM(3)
#define FOVEA_SUMS_FROM(i)                                                                                \
  FOVEA_SUM(i), FOVEA_SUM(i + 1), FOVEA_SUM(i + 2), FOVEA_SUM(i + 3), FOVEA_SUM(i + 4), FOVEA_SUM(i + 5), \
      FOVEA_SUM(i + 6), FOVEA_SUM(i + 7)
#define FOVEA_SUMS_8 FOVEA_SUMS_FROM(0)
#define FOVEA_SUMS_16 FOVEA_SUMS_8, FOVEA_SUMS_FROM(8)
#define FOVEA_SUMS_32 FOVEA_SUMS_16, FOVEA_SUMS_FROM(16), FOVEA_SUMS_FROM(24)
#define FOVEA_SUMS_40 FOVEA_SUMS_32, FOVEA_SUMS_FROM(32)
#define FOVEA_SUMS_48 FOVEA_SUMS_40, FOVEA_SUMS_FROM(40)
#define FOVEA_SUMS_56 FOVEA_SUMS_48, FOVEA_SUMS_FROM(48)
#define FOVEA_SUMS_64 FOVEA_SUMS_56, FOVEA_SUMS_FROM(56)
#define FOVEA_SUMS_96 FOVEA_SUMS_64, FOVEA_SUMS_FROM(64), FOVEA_SUMS_FROM(72), FOVEA_SUMS_FROM(80), FOVEA_SUMS_FROM(88)
#define FOVEA_SUMS_128 \
  FOVEA_SUMS_96, FOVEA_SUMS_FROM(96), FOVEA_SUMS_FROM(104), FOVEA_SUMS_FROM(112), FOVEA_SUMS_FROM(120)
#define FOVEA_SUM_NAMES_4 "%0, %1, %2, %3"
#define FOVEA_SUM_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FOVEA_SUM_NAMES_16 FOVEA_SUM_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FOVEA_SUM_NAMES_32                   \
  FOVEA_SUM_NAMES_16                         \
  ", %16, %17, %18, %19, %20, %21, %22, %23" \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FOVEA_SUM_NAMES_40 FOVEA_SUM_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FOVEA_SUM_NAMES_48 FOVEA_SUM_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FOVEA_SUM_NAMES_56 FOVEA_SUM_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define FOVEA_SUM_NAMES_64 FOVEA_SUM_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define FOVEA_SUM_NAMES_96                   \
  FOVEA_SUM_NAMES_64                         \
  ", %64, %65, %66, %67, %68, %69, %70, %71" \
  ", %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87" \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define FOVEA_SUM_NAMES_128                          \
  FOVEA_SUM_NAMES_96                                 \
  ", %96, %97, %98, %99, %100, %101, %102, %103"     \
  ", %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119" \
  ", %120, %121, %122, %123, %124, %125, %126, %127"

// One shape's statement: SUMS a thread, N columns, A and B as the instruction names them, the operand that is 0 where d
// is not added to, and what the instruction says of B.
#define FOVEA_WGMMA_TEXT(TYPE, SUMS, N, A, B, FRESH, ORDER)                                  \
  "{\n .reg .pred p;\n setp.eq.b32 p, " FRESH                                                \
  ", 0;\n"                                                                                   \
  "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE " {" FOVEA_SUM_NAMES_##SUMS \
      "}, " A ", " B ", p, 1, 1, " ORDER ";\n}\n"

// d [64, N] = A B (+ d unless fresh). kInnerRows: rows of B in memory are the inner dimension (V); else its columns
// (K).
#define FOVEA_WGMMA(SUMS, N, A, B, FRESH, ORDER)                                                               \
  template <bool kBf16, bool kInnerRows>                                                                       \
  __device__ __forceinline__ void wgmma(float(&d)[SUMS], const uint32_t(&a)[4], uint64_t b, uint32_t fresh) {  \
    if constexpr (kBf16) {                                                                                     \
      asm volatile(FOVEA_WGMMA_TEXT("bf16", SUMS, N, "{" A "}", B, FRESH, ORDER)                               \
                   : FOVEA_SUMS_##SUMS                                                                         \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(fresh), "n"(kInnerRows ? 1 : 0)); \
    } else {                                                                                                   \
      asm volatile(FOVEA_WGMMA_TEXT("f16", SUMS, N, "{" A "}", B, FRESH, ORDER)                                \
                   : FOVEA_SUMS_##SUMS                                                                         \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(fresh), "n"(kInnerRows ? 1 : 0)); \
    }                                                                                                          \
  }
FOVEA_WGMMA(4, "8", "%4, %5, %6, %7", "%8", "%9", "%10")
FOVEA_WGMMA(8, "16", "%8, %9, %10, %11", "%12", "%13", "%14")
FOVEA_WGMMA(16, "32", "%16, %17, %18, %19", "%20", "%21", "%22")
FOVEA_WGMMA(32, "64", "%32, %33, %34, %35", "%36", "%37", "%38")
FOVEA_WGMMA(40, "80", "%40, %41, %42, %43", "%44", "%45", "%46")
FOVEA_WGMMA(48, "96", "%48, %49, %50, %51", "%52", "%53", "%54")
FOVEA_WGMMA(56, "112", "%56, %57, %58, %59", "%60", "%61", "%62")
FOVEA_WGMMA(64, "128", "%64, %65, %66, %67", "%68", "%69", "%70")
FOVEA_WGMMA(96, "192", "%96, %97, %98, %99", "%100", "%101", "%102")
FOVEA_WGMMA(128, "256", "%128, %129, %130, %131", "%132", "%133", "%134")
#undef FOVEA_WGMMA

}  // namespace fovea::ptx

#endif
