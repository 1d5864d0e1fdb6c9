// A cuBLASLt that multiplies on the host, column-major as the real one, for tests of what is asked of it. Part of the
// library that testing/fake_driver.h describes.
#include <cstring>
#include <vector>

#include "base/fp8.h"
#include "base/half.h"
#include "cuda/cublaslt_api.h"
#include "cuda/testing/dot.h"
#include "cuda/testing/fake_driver.h"

namespace fovea::cuda::fake {
namespace {

struct Layout {
  int type;
  std::uint64_t rows, columns;
  std::int64_t stride;
};
struct Desc {
  std::int32_t transpose[2] = {0, 0};  // A, B
  std::int32_t epilogue = 1;           // none
  const void* bias = nullptr;
  std::int32_t scale_modes[2] = {0, 0};
  const float* scales[2] = {nullptr, nullptr};
};
// The least alignment of A, B, C, D that was promised, which the product then must have.
struct Preference {
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};

template <typename T>
int make(const char* name, void** to, T* object) {
  const int code = count_call(name);
  if (code != 0) {
    delete object;
    return code;
  }
  ++state().alive.cublas_handles;
  *to = object;
  return 0;
}

template <typename T>
int remove(void* object) {
  --state().alive.cublas_handles;
  delete static_cast<T*>(object);
  return 0;
}

float load(const void* matrix, int type, std::uint64_t index) {
  if (type == kLtF32) return static_cast<const float*>(matrix)[index];
  if (type == kLtE4M3) return e4m3_to_float(static_cast<const std::uint8_t*>(matrix)[index]);
  const std::uint16_t bits = static_cast<const std::uint16_t*>(matrix)[index];
  return type == kLtF16 ? f16_to_float(bits) : bf16_to_float(bits);
}

void store(void* matrix, int type, std::uint64_t index, float value) {
  if (type == kLtF32) {
    static_cast<float*>(matrix)[index] = value;
  } else {
    static_cast<std::uint16_t*>(matrix)[index] = type == kLtF16 ? float_to_f16(value) : float_to_bf16(value);
  }
}

// op(matrix)[row, column]
float element(const void* matrix, const Layout& layout, bool transposed, std::uint64_t row, std::uint64_t column) {
  if (transposed) std::swap(row, column);
  return load(matrix, layout.type, row + column * static_cast<std::uint64_t>(layout.stride));
}

bool is_aligned(const void* memory, std::uint64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(memory) % bytes == 0;
}

}  // namespace
}  // namespace fovea::cuda::fake

using namespace fovea::cuda;        // NOLINT: the functions below are C, and stand outside
using namespace fovea::cuda::fake;  // NOLINT
namespace fake = fovea::cuda::fake;

extern "C" {

std::size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusString(int code) { return code == kLtOutOfMemory ? "out of memory" : "failed"; }

int cublasLtCreate(void** handle) { return fake::make(__func__, handle, new int(0)); }
int cublasLtDestroy(void* handle) { return fake::remove<int>(handle); }
int cublasLtMatmulDescCreate(void** desc, int compute_type, int scale_type) {
  if (compute_type != kLtComputeF32 || scale_type != kLtF32) return kLtInvalidValue;
  return fake::make(__func__, desc, new Desc());
}
int cublasLtMatmulDescDestroy(void* desc) { return fake::remove<Desc>(desc); }
int cublasLtMatmulDescSetAttribute(void* desc, int attribute, const void* value, std::size_t bytes) {
  Desc& how = *static_cast<Desc*>(desc);
  switch (attribute) {
    case kLtTransposeA:
    case kLtTransposeB: std::memcpy(&how.transpose[attribute - kLtTransposeA], value, bytes); break;
    case kLtEpilogue: std::memcpy(&how.epilogue, value, bytes); break;
    case kLtBiasPointer: std::memcpy(&how.bias, value, bytes); break;
    case kLtScaleModeA:
    case kLtScaleModeB: std::memcpy(&how.scale_modes[attribute - kLtScaleModeA], value, bytes); break;
    case kLtScalePointerA:
    case kLtScalePointerB: std::memcpy(&how.scales[attribute - kLtScalePointerA], value, bytes); break;
    default: return kLtInvalidValue;
  }
  return fake::count_call(__func__);
}
int cublasLtMatrixLayoutCreate(void** layout, int type, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t stride) {
  return fake::make(__func__, layout, new Layout{type, rows, columns, stride});
}
int cublasLtMatrixLayoutDestroy(void* layout) { return fake::remove<Layout>(layout); }
int cublasLtMatmulPreferenceCreate(void** preference) { return fake::make(__func__, preference, new Preference()); }
int cublasLtMatmulPreferenceDestroy(void* preference) { return fake::remove<Preference>(preference); }
int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, std::size_t bytes) {
  if (attribute >= kLtAlignmentA && attribute <= kLtAlignmentD) {
    std::memcpy(&static_cast<Preference*>(preference)->alignment[attribute - kLtAlignmentA], value, bytes);
  }
  return fake::count_call(__func__);
}
// The algorithm is the alignments that it needs.
int cublasLtMatmulAlgoGetHeuristic(void*, void* desc, void* a_layout, void*, void*, void*, void* preference, int,
                                   LtHeuristic* results, int* count) {
  *count = 1;
  // As the library: rows of 16, and no bias beside scales of rows.
  const Layout& a = *static_cast<Layout*>(a_layout);
  const bool biased = static_cast<Desc*>(desc)->epilogue == kLtEpilogueBias;
  if (a.type == kLtE4M3 && (biased || a.rows % 16 != 0 || a.columns % 16 != 0)) return kLtNotSupported;
  for (int i = 0; i < 4; ++i) results->algorithm.words[i] = static_cast<Preference*>(preference)->alignment[i];
  results->algorithm.words[4] = static_cast<std::uint64_t>(fake::state().calls[__func__]);
  return fake::count_call(__func__);
}
int cublasLtMatmul(void*, void* desc, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
                   const void* beta, const void* c, void*, void* d, void* d_layout, const LtAlgorithm* algorithm, void*,
                   std::size_t, void* stream) {
  if (const int code = fake::count_call(__func__); code != 0) return code;
  fake::state().algorithm = algorithm->words[4];
  const void* const matrices[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (!fake::is_aligned(matrices[i], algorithm->words[i])) return kLtInvalidValue;
  }
  if (*static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f) return kLtInvalidValue;
  const Layout la = *static_cast<Layout*>(a_layout);
  const Layout lb = *static_cast<Layout*>(b_layout);
  const Layout ld = *static_cast<Layout*>(d_layout);
  const Desc& how = *static_cast<Desc*>(desc);
  const bool ta = how.transpose[0] == kLtTransposed;
  const bool tb = how.transpose[1] == kLtTransposed;
  const bool biased = how.epilogue == kLtEpilogueBias;
  if (biased && how.bias == nullptr) return kLtInvalidValue;
  const std::uint64_t depth = ta ? la.rows : la.columns;
  if ((ta ? la.columns : la.rows) != ld.rows || (tb ? lb.rows : lb.columns) != ld.columns ||
      (tb ? lb.columns : lb.rows) != depth) {
    return kLtInvalidValue;
  }
  const void* const bias = biased ? how.bias : nullptr;
  const bool scaled = how.scale_modes[0] == kLtScaleOuterVector;
  for (int i = 0; i < 2; ++i) {
    if (scaled != (how.scale_modes[i] == kLtScaleOuterVector) || scaled != (how.scales[i] != nullptr)) {
      return kLtInvalidValue;
    }
  }
  if (scaled && la.type != kLtE4M3) return kLtInvalidValue;
  if (fake::state().any_kernel && fake::state().kernels.empty()) return 0;  // nothing computes
  const float *const scales_a = how.scales[0], *const scales_b = how.scales[1];
  fake::enqueue_work(stream, [=] {
    std::vector<float> row_of_a(depth), columns_of_b(depth * ld.columns);
    for (std::uint64_t column = 0; column < ld.columns; ++column) {
      for (std::uint64_t k = 0; k < depth; ++k) columns_of_b[column * depth + k] = fake::element(b, lb, tb, k, column);
    }
    for (std::uint64_t row = 0; row < ld.rows; ++row) {
      for (std::uint64_t k = 0; k < depth; ++k) row_of_a[k] = fake::element(a, la, ta, row, k);
      const float more = bias != nullptr ? fake::load(bias, ld.type, row) : 0.0f;
      for (std::uint64_t column = 0; column < ld.columns; ++column) {
        float sum = more + fake::dot(row_of_a.data(), &columns_of_b[column * depth], depth);
        if (scaled) sum *= scales_a[row] * scales_b[column];
        fake::store(d, ld.type, row + column * static_cast<std::uint64_t>(ld.stride), sum);
      }
    }
  });
  return 0;
}

}  // extern "C"
