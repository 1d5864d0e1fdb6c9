// Asynchronous copies as instructions issue them; see copies.cc. By shared addresses.
#pragma once

#include "testing/simt/machine.h"

namespace simt {

// In the second word of a tensor map that encode() made.
inline constexpr std::uint64_t kTensorMapMark = 0x51a7700000000000ull;

// The address that bits of a shared address are exchanged to, by the span of the swizzle in bytes (0: none).
std::uint32_t swizzle_address(std::uint32_t address, std::uint32_t span);

void copies_commit(Lane& lane);
void tma_load_box(Lane& lane, std::uint32_t address, const void* map, const std::int32_t* coordinates,
                  std::uint32_t rank, std::uint32_t barrier);
void copy_bulk(Lane& lane, std::uint32_t address, const void* from, std::uint32_t bytes, std::uint32_t barrier);
void store_box(Lane& lane, const void* map, const std::int32_t* coordinates, std::uint32_t rank, std::uint32_t address);
void store_bulk(Lane& lane, void* to, std::uint32_t address, std::uint32_t bytes);

}  // namespace simt
