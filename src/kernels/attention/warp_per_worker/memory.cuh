// What the workers of a CTA keep in shared memory, each for itself: a ring of slices, records of items on their way,
// and what wide heads do not hold in registers. From tune/attention_choice.cc: FOVEA_SLOTS of a ring;
// FOVEA_WHOLE_SLICES 1: pages do not divide slices.
#pragma once

#include "kernels/attention/warp_per_worker/tile.cuh"

namespace fovea::attention::warp_per_worker {

inline constexpr int kWarps = kConsumerWarps;
inline constexpr int kTeams = kWarps / kTeamWarps;
inline constexpr int kSlots = FOVEA_SLOTS;  // slots on their way, a worker
inline constexpr int kSlotTokens = kSlotSlices * kTokens;
inline constexpr bool kWholeSlices = kTma || FOVEA_WHOLE_SLICES != 0;
// Of teams; then slices of a slot are taken one after the other.
inline constexpr bool kRegistersAreFew = kIntegers && kHeadDim > 96;
// Items that a warp's slots can belong to, one before and one behind them.
inline constexpr int kRecordsAhead = kSlots + 2 <= 8 ? 8 : 16;

struct TeamMemory {
  alignas(1024) uint8_t ring[kSlots][kSlotSlices][2][kTile];  // [..][K, V][panel][token][kPanelBytes], swizzled
};

// Parts of pairs go from warp to warp of a CTA through shared memory, which has no room for those of teams.
inline constexpr bool kSharedParts = kTeamWarps == 1;

// A part of a divided pair on its way from one warp to another of the CTA, or what the second warp of a team has of
// rows that both work on, as it lies in registers (shared_parts.cuh).
struct SharedPart {
  float2 values[kRowBlocks][2 * kBlocks][32];
  float lse[kRows];
};

struct SharedMemory {
  TeamMemory teams[kTeams];
  alignas(16) ItemRecord records[kTeams][kRecordsAhead];
  alignas(16) uint4 queries[kBlocks > kQueryBlocks ? kWarps : 1][kBlocks > kQueryBlocks ? kBlocks - kQueryBlocks : 1]
                           [kBlocks > kQueryBlocks ? 32 : 1];
  float hook_rows[Variant::kHasQuery ? kWarps : 1][Variant::kHasQuery ? kHeadDim : 1];
  alignas(16) SharedPart parts[kTeams];
  uint64_t part_ready[kWarps];  // barriers: the warp's part is there
  uint32_t
      first_parts[kWarps];  // what the warp's queue begins with: a part's first partial row, or see shared_parts.cuh
  // abi::KvScale of each token of a slot, of K and of V.
  alignas(8) uint32_t scales[kTokenScales ? kTeams : 1][kTokenScales ? kSlots : 1][kSlotTokens][2];
  uint64_t full[kTma ? kTeams : 1][kSlots];
};

static_assert(kSlots >= 1 && kSlots + 2 <= kRecordsAhead);
static_assert(!kTma || kBoxTokens == kTokens, "a box brings a slice");
static_assert(sizeof(SharedMemory) <= FOVEA_WARPS_SMEM_BYTES, "tune/attention_choice.cc counts less than there is");

}  // namespace fovea::attention::warp_per_worker
