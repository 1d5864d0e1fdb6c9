// The warp's matrix product m16n8k16, the loads that feed it, and conversions between 16-bit, fp8 and fp32. sm_80 on;
// fp8 conversions are one instruction from sm_89 on and a few before.
//
// Fragments of lane l, with r = l / 4 and c = l % 4: A [16 x 16] a0 = (r, 2c..), a1 = (r + 8, 2c..), a2 = (r, 2c
// + 8..), a3 = (r + 8, 2c + 8..); B [16 x 8] b0 = (2c.., r), b1 = (2c + 8.., r); C [16 x 8] c0, c1 = (r, 2c..), c2, c3
// = (r + 8, 2c..). "2c.." are two neighbours in one register, the lower index in the lower half.
#pragma once

#include "abi/plan.h"

namespace fovea::ptx {

template <bool kBf16>
__device__ __forceinline__ void mma_16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four (two) 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&d)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(d[0]), "=r"(d[1])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&d)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(d[0]), "=r"(d[1])
               : "r"(address)
               : "memory");
}

// The other way: stores four 8 x 8 matrices, addresses as above.
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&d)[4]) {
#if FOVEA_ARCH >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(d[0]), "r"(d[1]),
               "r"(d[2]), "r"(d[3])
               : "memory");
#endif
}

// By shared addresses, as ldmatrix takes them.
__device__ __forceinline__ uint32_t load_shared_4(uint32_t address) {
  uint32_t d;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(d) : "r"(address) : "memory");
  return d;
}
__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
  uint2 d;
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(d.x), "=r"(d.y) : "r"(address) : "memory");
  return d;
}
__device__ __forceinline__ void load_shared_16(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}

// An 8 x 8 matrix of 16-bit elements transposed: lane l gives and gets elements (l / 4, 2 (l % 4)..).
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

// Two floats to two 16-bit numbers, to nearest even; `low` in the lower half.
template <bool kBf16>
__device__ __forceinline__ uint32_t pack2(float low, float high) {
  uint32_t d;
  if constexpr (kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  }
  return d;
}
template <bool kBf16>
__device__ __forceinline__ float unpack_low(uint32_t x) {
  if constexpr (kBf16) return __uint_as_float(x << 16);
  float d;
  asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, l;\n}\n" : "=f"(d) : "r"(x));
  return d;
}
template <bool kBf16>
__device__ __forceinline__ float unpack_high(uint32_t x) {
  if constexpr (kBf16) return __uint_as_float(x & 0xffff0000u);
  float d;
  asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, h;\n}\n" : "=f"(d) : "r"(x));
  return d;
}

// Four e4m3 bytes to halves: bytes 0 and 1 to `low`, 2 and 3 to `high`. Exact.
__device__ __forceinline__ void halves_of_e4m3(uint32_t x, uint32_t& low, uint32_t& high) {
#if FOVEA_ARCH >= 900
  asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.rn.f16x2.e4m3x2 %0, l;\n cvt.rn.f16x2.e4m3x2 %1, h;\n}\n"
      : "=r"(low), "=r"(high)
      : "r"(x));
#else
  // A byte shifted to the top of a half has its exponent one bit too high up: shift the magnitude back by one, which
  // reads as the number times 2^-8 (subnormals included), and multiply. NaN (all ones) is put in by hand.
  const auto convert = [](uint32_t pair) {  // bytes in bits 8..15 and 24..31
    const uint32_t magnitude = pair & 0x7f007f00u;
    uint32_t d = (pair & 0x80008000u) | (magnitude >> 1);
    asm("{\n .reg .b32 s;\n mov.b32 s, 0x5c005c00;\n mul.rn.f16x2 %0, %0, s;\n}\n" : "+r"(d));
    if ((magnitude & 0xff00u) == 0x7f00u) d |= 0x7fffu;
    if ((magnitude & 0xff000000u) == 0x7f000000u) d |= 0x7fff0000u;
    return d;
  };
  low = convert(__byte_perm(x, 0, 0x1404));
  high = convert(__byte_perm(x, 0, 0x3424));
#endif
}

// Four e4m3 bytes, 0 and 2 to `even`, 1 and 3 to `odd`, as numbers of 16 bits that are 2^-8 (halves) or 2^-120 (bf16)
// as large: the exponent's bits stay as they are, so subnormals come out right and nothing is multiplied. NaN reads as
// 480.
template <bool kBf16>
__device__ __forceinline__ void shrunk_e4m3(uint32_t x, uint32_t& even, uint32_t& odd) {
  constexpr uint32_t kDown = kBf16 ? 4 : 1, kSize = kBf16 ? 0x07f007f0u : 0x3f803f80u, kSign = 0x80008000u;
  even = ((x << 8) & kSign) | ((x << (8 - kDown)) & kSize);
  odd = (x & kSign) | ((x >> kDown) & kSize);
}

// Both numbers times 2^100.
__device__ __forceinline__ uint32_t grown_bf16(uint32_t x) {
  asm("{\n .reg .b32 s;\n mov.b32 s, 0x71807180;\n mul.rn.bf16x2 %0, %0, s;\n}\n" : "+r"(x));
  return x;
}

// Unsigned integers where they stand: in the low bits of a half, under an exponent of 0, an integer u is the subnormal
// number u * 2^-24, and 4 bits further up u * 2^-20. Products take those exactly, so two cost one instruction.
//
// Bytes 2 * kPair and 2 * kPair + 1 of x; bytes 0 and 2; bytes 1 and 3.
template <int kPair>
__device__ __forceinline__ uint32_t codes_of_bytes(uint32_t x) {
  return __byte_perm(x, 0, kPair == 0 ? 0x4140 : 0x4342);
}
__device__ __forceinline__ uint32_t codes_of_even_bytes(uint32_t x) { return x & 0x00ff00ffu; }
__device__ __forceinline__ uint32_t codes_of_odd_bytes(uint32_t x) { return __byte_perm(x, 0, 0x4341); }

// Half-bytes `i` and i + 4 of x, i from 0 to 3; odd ones stand 16 times as high.
template <int i>
__device__ __forceinline__ uint32_t codes_of_half_bytes(uint32_t x) {
  return (i < 2 ? x : x >> 8) & (i % 2 != 0 ? 0x00f000f0u : 0x000f000fu);
}

// Two halves times another two.
__device__ __forceinline__ uint32_t multiply_halves(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// The same added, and a * b + c, rounded once.
__device__ __forceinline__ uint32_t add_halves(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t multiply_add_halves(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Two bf16 numbers: a * b + c, rounded once.
__device__ __forceinline__ uint32_t multiply_add_bf16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// 2^x; 0 for -infinity.
__device__ __forceinline__ float exp2_approx(float x) {
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}
// log2(x); -infinity for 0.
__device__ __forceinline__ float log2_approx(float x) {
  float d;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}
}  // namespace fovea::ptx
