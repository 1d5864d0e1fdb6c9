// What an instantiation of an attention kernel is made for, from the macros that jit/attention_spec writes, and the
// numbers that follow. Choices among them (stages, loader) are made by tune/attention_choice.
//   FOVEA_ARCH 900 | 800, FOVEA_HEAD_DIM, FOVEA_Q_DTYPE and FOVEA_KV_DTYPE (abi::KvDType), FOVEA_LOADER 0 TMA | 1
//   gather, FOVEA_BOX_TOKENS (TMA), FOVEA_CHECKED, FOVEA_VARIANT (a type), FOVEA_STAGES, FOVEA_STAGE_TOKENS, and for
//   quantized KV FOVEA_TOKEN_SCALES (fp8) and FOVEA_ROTATED (integers); FOVEA_INVARIANT where a row's bits may not
//   depend on its neighbours
#pragma once

#include "abi/attention_args.h"
#include "variant/variant.h"

namespace fovea::attention {

using Variant = FOVEA_VARIANT;
using VariantParams = fovea::variant::ParamsOf<Variant>::Type;

inline constexpr int kHeadDim = FOVEA_HEAD_DIM;
inline constexpr bool kQueryBf16 = FOVEA_Q_DTYPE == static_cast<int>(abi::KvDType::kBF16);
inline constexpr bool kFp8 = FOVEA_KV_DTYPE == static_cast<int>(abi::KvDType::kF8E4M3);
inline constexpr bool kInt8 = FOVEA_KV_DTYPE == static_cast<int>(abi::KvDType::kI8);
inline constexpr bool kInt4 = FOVEA_KV_DTYPE == static_cast<int>(abi::KvDType::kI4);
inline constexpr bool kIntegers = kInt8 || kInt4;
// A scale (integers: and a zero) for each token and head, which are loaded beside K and V.
#if defined(FOVEA_TOKEN_SCALES)
inline constexpr bool kTokenScales = kIntegers || (kFp8 && FOVEA_TOKEN_SCALES != 0);
#else
inline constexpr bool kTokenScales = kIntegers;
#endif
// K and V were multiplied by a Hadamard matrix: queries are too, and outputs back.
#if defined(FOVEA_ROTATED)
inline constexpr bool kRotated = FOVEA_ROTATED != 0;
#else
inline constexpr bool kRotated = false;
#endif
// A register holds four (int4: eight) neighbouring dims of a token: blocks of the products take dims in another order.
inline constexpr bool kNarrow = kFp8 || kInt8 || kInt4;
inline constexpr bool kMmaBf16 =
    FOVEA_KV_DTYPE == static_cast<int>(abi::KvDType::kBF16);  // else products are of halves
inline constexpr bool kTma = FOVEA_LOADER == 0;
inline constexpr bool kChecked = FOVEA_CHECKED != 0;
// Every row of queries is scaled by a power of two: bf16 ones into the range of the halves that they become; those
// that meet integers, because some of them are multiplied by 16.
inline constexpr bool kScaleRows = (kQueryBf16 && !kMmaBf16) || kIntegers;

inline constexpr int kElementBits = kInt4 ? 4 : kFp8 || kInt8 ? 8 : 16;
inline constexpr int kRowBytes = kHeadDim * kElementBits / 8;
inline constexpr int kBlocks = kHeadDim / 16;  // blocks of 16 dims: one k-step of Q K^T, two n-tiles of P V

// In shared memory a token's row is cut into panels of at most 128 bytes, so that TMA's swizzle applies.
inline constexpr int kPanelBytes = kRowBytes % 128 == 0  ? 128
                                   : kRowBytes % 64 == 0 ? 64
                                   : kRowBytes % 32 == 0 ? 32
                                                         : 16;

inline constexpr int kStages = FOVEA_STAGES;
inline constexpr int kStageTokens = FOVEA_STAGE_TOKENS;
inline constexpr int kTileBytes = kStageTokens * kRowBytes;  // of K, and of V
inline constexpr int kBoxTokens = kTma ? FOVEA_BOX_TOKENS : kStageTokens;
inline constexpr int kBoxes = kStageTokens / kBoxTokens;
inline constexpr int kBoxBytes = kBoxTokens * kRowBytes;
inline constexpr int kSliceTokens = 16;
inline constexpr int kSlices = kStageTokens / kSliceTokens;

// Wide heads need more registers than a thread of a large CTA can have: a smaller CTA, which needs no split of them.
inline constexpr int kConsumerWarps = kHeadDim > (FOVEA_ARCH >= 900 ? 128 : 80) ? 4 : 8;
inline constexpr bool kSplitRegisters = FOVEA_ARCH >= 900 && kConsumerWarps == 8;
inline constexpr int kLoaderWarps = kTma ? 1 : 3;
inline constexpr int kConsumerThreads = kConsumerWarps * 32;
inline constexpr int kThreads = kConsumerThreads + 128;  // and a warpgroup that loads; its last warp reads the plan
// Gathering computes addresses, and so do checks.
inline constexpr int kProducerRegisters = kTma && !kChecked ? 40 : 56;
inline constexpr int kConsumerRegisters = kProducerRegisters == 40 ? 232 : 224;

// Blocks of a query whose fragments stay in registers; wide heads keep the others in shared memory.
inline constexpr int kQueryBlocks = kHeadDim > 192 ? 5 : kBlocks;

inline constexpr int kMaxTileRows = kConsumerWarps * 16;
// Where a row's bits may not depend on its neighbours: then all warps work on every item, for its length is that of the
// longest of its rows, and stages go to warps by their place in the request, not in the item.
#ifdef FOVEA_INVARIANT
inline constexpr bool kInvariant = true;
#else
inline constexpr bool kInvariant = false;
#endif
// Items of up to 16 rows and this many tokens are worked on by one warp, eight items at a time.
inline constexpr uint32_t kOneWarpTokens = kInvariant ? 0 : 96;

inline constexpr int kReduceRows = 4;  // of every row block, in one pass of the sum over warps
inline constexpr int kReducePitch = kHeadDim + 8;
// Rows times parts that a worker merges as it sums its own up.
inline constexpr uint32_t kPartWeights = kHeadDim > 192 ? 256 : 576;
inline constexpr int kRecords = 16;       // items whose records stand ready
inline constexpr int kRecordTokens = 16;  // query tokens whose rows and positions a record holds

inline constexpr bool kRowHooks = Variant::kHasQuery || Variant::kHasKey || Variant::kHasValue;
inline constexpr bool kTransformsKv = Variant::kHasKey || Variant::kHasValue;

static_assert(kHeadDim % 16 == 0 && kHeadDim >= 32 && kHeadDim <= 256);
static_assert(kStageTokens % kBoxTokens == 0 && kBoxTokens >= 8 && kStageTokens >= 16 && kStageTokens <= 64);
static_assert(kConsumerWarps % kSlices == 0);
static_assert(!kInt4 || kHeadDim % 32 == 0, "16 bytes hold 32 numbers");
static_assert(!kRotated || (kIntegers && (kHeadDim & (kHeadDim - 1)) == 0), "integers are rotated");
static_assert(!(kTransformsKv && kNarrow), "keys and values are transformed in place, in 16-bit storage");
static_assert(kTma || kStages % kLoaderWarps == 0, "each gathering warp has stages of its own");
static_assert(!kTma || FOVEA_ARCH >= 900, "tensor maps need sm_90");

}  // namespace fovea::attention
