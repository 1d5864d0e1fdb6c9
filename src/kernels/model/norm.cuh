// fovea_rms_norm: RMS norm of rows, with the residual added before it where there is one. A CTA a row: the row stays in
// registers between the sum of squares and the product with the weight, which is read while the row is still on its way
// (of rows of several runs, when it is needed: registers). Launched by device/cuda; arguments and grid in
// abi/op_args.h.
//
// Compiled for FOVEA_DTYPE (of activations), FOVEA_VEC (elements an access) and FOVEA_RUNS (accesses a thread).
#pragma once

#include "abi/op_args.h"
#include "kernels/model/reduce.cuh"
#include "kernels/ptx/vec.cuh"

namespace fovea::kernels {

template <KvDType kType, uint32_t kVec, uint32_t kRuns>
__forceinline__ void rms_norm(const abi::NormArgs& args, float* sums) {
  const uint32_t row = blockIdx.x / args.heads;
  const uint32_t head = blockIdx.x - row * args.heads;
  float weight[kVec];
  if (kRuns == 1 && threadIdx.x * kVec < args.dim) {
    unpack(load<KvDType::kF32, kVec>(args.weight, threadIdx.x * kVec), weight);
  }
  wait_for_inputs();
  const long long from = row * args.x_row_stride + head * args.x_head_stride;
  const long long residual = row * args.residual_row_stride + head * args.residual_head_stride;
  // All that is read is on its way before anything is written.
  Packed<kType, kVec> read[kRuns], added[kRuns];
#pragma unroll
  for (uint32_t r = 0; r < kRuns; ++r) {
    const uint32_t i = (r * blockDim.x + threadIdx.x) * kVec;
    if (i >= args.dim) continue;
    read[r] = load<kType, kVec>(args.x, from + i);
    if (args.residual != nullptr) added[r] = load<kType, kVec>(args.residual, residual + i);
  }
  float x[kRuns][kVec];
  float squares = 0.0f;
#pragma unroll
  for (uint32_t r = 0; r < kRuns; ++r) {
    const uint32_t i = (r * blockDim.x + threadIdx.x) * kVec;
    if (i >= args.dim) continue;
    unpack(read[r], x[r]);
    if (args.residual != nullptr) {
      float sum[kVec];
      unpack(added[r], sum);
#pragma unroll
      for (uint32_t e = 0; e < kVec; ++e) x[r][e] += sum[e];
      store(args.residual, residual + i, pack<kType, kVec>(x[r]));
    }
#pragma unroll
    for (uint32_t e = 0; e < kVec; ++e) squares = fma_of(x[r][e], x[r][e], squares);
  }
  const float factor = rsqrtf(cta_sum(squares, sums) / static_cast<float>(args.dim) + args.eps);
  const long long to = row * args.out_row_stride + head * args.out_head_stride;
#pragma unroll
  for (uint32_t r = 0; r < kRuns; ++r) {
    const uint32_t i = (r * blockDim.x + threadIdx.x) * kVec;
    if (i >= args.dim) continue;
    if (kRuns > 1) unpack(load<KvDType::kF32, kVec>(args.weight, i), weight);
#pragma unroll
    for (uint32_t e = 0; e < kVec; ++e) x[r][e] *= factor * (weight[e] + args.weight_offset);
    store(args.out, to + i, pack<kType, kVec>(x[r]));
  }
}

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_RUNS)
extern "C" __global__ void __launch_bounds__(fovea::abi::kMostNormThreads)
    fovea_rms_norm(const __grid_constant__ fovea::abi::NormArgs args) {
  __shared__ float sums[32];
  fovea::kernels::rms_norm<static_cast<fovea::abi::KvDType>(FOVEA_DTYPE), FOVEA_VEC, FOVEA_RUNS>(args, sums);
}
#endif
