// The part of cuBLASLt's binary interface that this folder calls, the same in versions 12 and 13. Included by
// cublaslt*.cc and the tests' stand-in only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::cuda {

// cublasStatus_t
inline constexpr int kLtNotInitialized = 1;
inline constexpr int kLtOutOfMemory = 3;
inline constexpr int kLtInvalidValue = 7;
inline constexpr int kLtArchMismatch = 8;
inline constexpr int kLtNotSupported = 15;

inline constexpr int kLtComputeF32 = 68;  // CUBLAS_COMPUTE_32F
// cudaDataType_t
inline constexpr int kLtF32 = 0;
inline constexpr int kLtF16 = 2;
inline constexpr int kLtBF16 = 14;
inline constexpr int kLtE4M3 = 28;
// cublasOperation_t
inline constexpr std::int32_t kLtTransposed = 1;
// cublasLtMatmulDescAttributes_t
inline constexpr int kLtTransposeA = 3;
inline constexpr int kLtTransposeB = 4;
inline constexpr int kLtEpilogue = 7;        // i32
inline constexpr int kLtBiasPointer = 8;     // to as many elements as D has rows, of D's type
inline constexpr int kLtScalePointerA = 17;  // to f32, as many as the mode says; as the next
inline constexpr int kLtScalePointerB = 18;
inline constexpr int kLtScaleModeA = 31;  // i32, as the next
inline constexpr int kLtScaleModeB = 32;
// cublasLtMatmulMatrixScale_t
inline constexpr std::int32_t kLtScaleOuterVector = 3;  // one a row of op(A), one a column of op(B)
// cublasLtEpilogue_t
inline constexpr std::int32_t kLtEpilogueBias = 4;
// cublasLtMatmulPreferenceAttributes_t
inline constexpr int kLtMaxWorkspaceBytes = 1;  // u64
inline constexpr int kLtReductions = 3;         // u32: how parts of sums may meet; 0: no sum is divided
inline constexpr int kLtAlignmentA = 5;         // u32 bytes, as the next
inline constexpr int kLtAlignmentB = 6;
inline constexpr int kLtAlignmentC = 7;
inline constexpr int kLtAlignmentD = 8;

struct LtAlgorithm {
  std::uint64_t words[8];
};

struct LtHeuristic {
  LtAlgorithm algorithm;
  std::size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};
static_assert(sizeof(LtHeuristic) == 96 && offsetof(LtHeuristic, status) == 72);

// X(member, symbol, parameters): those that return a cublasStatus_t. Matrices are column-major.
#define FOVEA_CUBLASLT_FUNCTIONS(X)                                                                                   \
  X(create, cublasLtCreate, (void** handle))                                                                          \
  X(destroy, cublasLtDestroy, (void* handle))                                                                         \
  X(desc_create, cublasLtMatmulDescCreate, (void** desc, int compute_type, int scale_type))                           \
  X(desc_destroy, cublasLtMatmulDescDestroy, (void* desc))                                                            \
  X(desc_set, cublasLtMatmulDescSetAttribute, (void* desc, int attribute, const void* value, std::size_t bytes))      \
  X(layout_create, cublasLtMatrixLayoutCreate,                                                                        \
    (void** layout, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t stride))                        \
  X(layout_destroy, cublasLtMatrixLayoutDestroy, (void* layout))                                                      \
  X(preference_create, cublasLtMatmulPreferenceCreate, (void** preference))                                           \
  X(preference_destroy, cublasLtMatmulPreferenceDestroy, (void* preference))                                          \
  X(preference_set, cublasLtMatmulPreferenceSetAttribute,                                                             \
    (void* preference, int attribute, const void* value, std::size_t bytes))                                          \
  X(heuristic, cublasLtMatmulAlgoGetHeuristic,                                                                        \
    (void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference, int asked, LtHeuristic* results, \
     int* count))                                                                                                     \
  X(matmul, cublasLtMatmul,                                                                                           \
    (void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,       \
     const void* beta, const void* c, void* c_layout, void* d, void* d_layout, const LtAlgorithm* algorithm,          \
     void* workspace, std::size_t workspace_bytes, void* stream))

struct CublasLtFunctions {
#define FOVEA_CUBLASLT_MEMBER(member, symbol, parameters) int(*member) parameters = nullptr;
  FOVEA_CUBLASLT_FUNCTIONS(FOVEA_CUBLASLT_MEMBER)
#undef FOVEA_CUBLASLT_MEMBER
  std::size_t (*version)() = nullptr;
  const char* (*status_string)(int code) = nullptr;
};

}  // namespace fovea::cuda
