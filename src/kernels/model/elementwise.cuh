// fovea_embed, fovea_gate, fovea_add, fovea_softcap: rows that are read once and written once, in fp32 between. A run
// of elements a thread. Launched by device/cuda; arguments in abi/op_args.h.
//
// Compiled for FOVEA_DTYPE (of what is read and written) and FOVEA_VEC (elements an access).
#pragma once

#include "abi/op_args.h"
#include "kernels/ptx/vec.cuh"

namespace fovea::kernels {

// What thread `thread` of the launch does: a run of a row.
struct RowRun {
  uint32_t row;
  uint32_t element;
  bool is_there;
};
template <uint32_t kVec>
__forceinline__ RowRun row_run(uint32_t rows, uint32_t width) {
  const uint32_t runs = width / kVec;
  const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (thread >= static_cast<uint64_t>(rows) * runs) return {0, 0, false};
  const uint32_t row = static_cast<uint32_t>(thread / runs);
  return {row, static_cast<uint32_t>(thread - static_cast<uint64_t>(row) * runs) * kVec, true};
}

__forceinline__ float activate(float x, abi::GateKind kind) {
  switch (kind) {
    case abi::GateKind::kSilu: return x / (1.0f + exp2_of(x * -1.44269504f));
    case abi::GateKind::kGeluTanh: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    default: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  }
}

template <KvDType kType, uint32_t kVec>
__forceinline__ void embed(const abi::EmbedArgs& args) {
  wait_for_inputs();
  const RowRun at = row_run<kVec>(args.rows, args.width);
  if (!at.is_there) return;
  const uint32_t id = static_cast<uint32_t>(args.ids[at.row]);
  float x[kVec] = {};
  if (id < args.table_rows) unpack(load<kType, kVec>(args.table, id * args.table_stride + at.element), x);
#pragma unroll
  for (uint32_t e = 0; e < kVec; ++e) x[e] *= args.scale;
  store(args.out, at.row * args.out_stride + at.element, pack<kType, kVec>(x));
}

template <KvDType kType, uint32_t kVec>
__forceinline__ void gate(const abi::GateArgs& args) {
  wait_for_inputs();
  const RowRun at = row_run<kVec>(args.rows, args.width);
  if (!at.is_there) return;
  const long long from = at.row * args.gate_up_stride + at.element;
  float x[kVec], up[kVec];
  const auto packed = load<kType, kVec>(args.gate_up, from);
  unpack(load<kType, kVec>(args.gate_up, from + args.width), up);
  unpack(packed, x);
#pragma unroll
  for (uint32_t e = 0; e < kVec; ++e) x[e] = activate(x[e], args.kind) * up[e];
  store(args.out, at.row * args.out_stride + at.element, pack<kType, kVec>(x));
}

template <KvDType kType, uint32_t kVec>
__forceinline__ void add(const abi::PairArgs& args) {
  wait_for_inputs();
  const RowRun at = row_run<kVec>(args.rows, args.width);
  if (!at.is_there) return;
  const long long to = at.row * args.x_stride + at.element;
  float x[kVec], y[kVec];
  unpack(load<kType, kVec>(args.x, to), x);
  unpack(load<kType, kVec>(args.y, at.row * args.y_stride + at.element), y);
#pragma unroll
  for (uint32_t e = 0; e < kVec; ++e) x[e] += y[e];
  store(args.x, to, pack<kType, kVec>(x));
}

template <KvDType kType, uint32_t kVec>
__forceinline__ void softcap(const abi::PairArgs& args) {
  wait_for_inputs();
  const RowRun at = row_run<kVec>(args.rows, args.width);
  if (!at.is_there) return;
  const long long to = at.row * args.x_stride + at.element;
  float x[kVec];
  unpack(load<kType, kVec>(args.x, to), x);
#pragma unroll
  for (uint32_t e = 0; e < kVec; ++e) x[e] = args.cap * tanhf(x[e] / args.cap);
  store(args.x, to, pack<kType, kVec>(x));
}

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_ELEMENTWISE)
namespace {
constexpr fovea::abi::KvDType kDtype = static_cast<fovea::abi::KvDType>(FOVEA_DTYPE);
}
extern "C" {
__global__ void __launch_bounds__(fovea::abi::kOpThreads)
    fovea_embed(const __grid_constant__ fovea::abi::EmbedArgs args) {
  fovea::kernels::embed<kDtype, FOVEA_VEC>(args);
}
__global__ void __launch_bounds__(fovea::abi::kOpThreads)
    fovea_gate(const __grid_constant__ fovea::abi::GateArgs args) {
  fovea::kernels::gate<kDtype, FOVEA_VEC>(args);
}
__global__ void __launch_bounds__(fovea::abi::kOpThreads) fovea_add(const __grid_constant__ fovea::abi::PairArgs args) {
  fovea::kernels::add<kDtype, FOVEA_VEC>(args);
}
__global__ void __launch_bounds__(fovea::abi::kOpThreads)
    fovea_softcap(const __grid_constant__ fovea::abi::PairArgs args) {
  fovea::kernels::softcap<kDtype, FOVEA_VEC>(args);
}
}
#endif
