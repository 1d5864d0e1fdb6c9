// What products of a warp (matrix.cc) and of a warpgroup (wgmma.cc) share: the types of their elements.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace simt {

enum class ElementType : std::uint32_t { kBf16, kF16, kE4m3 };
constexpr std::uint32_t element_bytes(ElementType type) { return type == ElementType::kE4m3 ? 1 : 2; }

// The elements of a word: two, or four of e4m3.
void unpack(ElementType type, std::uint32_t word, float* to);
// Of both operands, as an opcode says.
std::optional<ElementType> element_type(std::string_view opcode);

}  // namespace simt
