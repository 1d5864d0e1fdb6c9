// Products and matrix loads of a warp: mma.sync, ldmatrix, stmatrix, movmatrix. All 32 lanes meet, the last one
// computes. Fragments of lane l, r = l / 4, c = l % 4, in elements: A (r, 2c..), (r + 8, 2c..), (r, 2c + 8..), (r + 8,
// 2c + 8..); B (2c.., r), (2c + 8.., r); C (r, 2c..), (r + 8, 2c..). Of 8 bits: twice as many columns of A, rows of B.
#include <fmt/format.h>

#include <bit>

#include "testing/simt/numbers.h"
#include "testing/simt/products.h"
#include "testing/simt/ptx_statement.h"

namespace simt {
namespace {

struct Slot {
  Lane* lane;
  const Instruction* instruction;
  Frame* frame;
};

template <void (*kRun)(const Instruction&, Slot* const*)>
void together(Lane& lane, const Instruction& i, Frame& frame) {
  Slot slot{&lane, &i, &frame};
  meet(
      i.text.c_str(), &i, 0xffffffffu, &slot,
      [](Warp& warp, std::uint32_t, void* const* slots, const void* context) {
        warp.cta->machine->progress();
        kRun(*static_cast<const Instruction*>(context), reinterpret_cast<Slot* const*>(slots));
      },
      &i);
}

// Arguments d, a, b, c.
void multiply(const Instruction& i, Slot* const* slots) {
  const auto type = static_cast<ElementType>(i.kind);
  const std::uint32_t per_register = type == ElementType::kE4m3 ? 4 : 2;
  const std::uint32_t inner = 8 * per_register;
  float a[16][32], b[32][8], c[16][8];
  for (std::uint32_t l = 0; l < 32; ++l) {
    const Frame& f = *slots[l]->frame;
    const std::uint32_t row = l / 4, column = l % 4 * per_register;
    for (std::uint32_t n = 0; n < 4; ++n) {
      unpack(type, f.get32(i.ref(1, n)), &a[row + n % 2 * 8][column + n / 2 * inner / 2]);
    }
    for (std::uint32_t n = 0; n < 2; ++n) {
      float x[4];
      unpack(type, f.get32(i.ref(2, n)), x);
      for (std::uint32_t e = 0; e < per_register; ++e) b[column + n * inner / 2 + e][row] = x[e];
    }
    for (std::uint32_t n = 0; n < 4; ++n) {
      c[row + n / 2 * 8][l % 4 * 2 + n % 2] = std::bit_cast<float>(f.get32(i.ref(3, n)));
    }
  }
  for (int row = 0; row < 16; ++row) {
    float sums[8] = {};
    for (std::uint32_t k = 0; k < inner; ++k) {
      for (int column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
    }
    for (int column = 0; column < 8; ++column) c[row][column] += sums[column];
  }
  for (std::uint32_t l = 0; l < 32; ++l) {
    for (std::uint32_t n = 0; n < 4; ++n) {
      slots[l]->frame->set(i.ref(0, n), std::bit_cast<std::uint32_t>(c[l / 4 + n / 2 * 8][l % 4 * 2 + n % 2]));
    }
  }
}

// Rows of 8 x 8 matrices of 16-bit elements lie where lanes say: lane l has row l % 8 of matrix l / 8.
std::uint8_t* row_of(const Instruction& i, Slot* const* slots, std::uint32_t matrix, std::uint32_t row,
                     std::size_t argument, std::uint8_t flags) {
  const Slot& slot = *slots[matrix * 8 + row];
  const std::uint64_t address = slot.frame->address(i.arguments[argument]);
  if (address % 16 != 0) {
    machine_of(*slot.lane)
        .fail(fmt::format("{} of a row at shared address {:#x}, expected a multiple of 16", i.opcode, address));
  }
  const std::uint32_t offset = shared_offset(*slot.lane, address, 16);
  shared_access(*slot.lane, offset, 16, flags);
  return slot.lane->warp->cta->shared.data() + offset;
}

void load_matrices(const Instruction& i, Slot* const* slots) {
  for (std::uint32_t m = 0; m < i.count; ++m) {
    std::uint16_t x[8][8];
    for (std::uint32_t row = 0; row < 8; ++row) std::memcpy(x[row], row_of(i, slots, m, row, 1, 0), 16);
    for (std::uint32_t l = 0; l < 32; ++l) {
      const std::uint32_t r = l / 4, c = l % 4 * 2;
      const std::uint32_t low = i.flag ? x[c][r] : x[r][c], high = i.flag ? x[c + 1][r] : x[r][c + 1];
      slots[l]->frame->set(i.ref(0, m), low | high << 16);
    }
  }
}

void store_matrices(const Instruction& i, Slot* const* slots) {
  for (std::uint32_t m = 0; m < i.count; ++m) {
    std::uint16_t x[8][8];
    for (std::uint32_t l = 0; l < 32; ++l) {
      const std::uint32_t r = l / 4, c = l % 4 * 2, word = slots[l]->frame->get32(i.ref(1, m));
      (i.flag ? x[c][r] : x[r][c]) = static_cast<std::uint16_t>(word);
      (i.flag ? x[c + 1][r] : x[r][c + 1]) = static_cast<std::uint16_t>(word >> 16);
    }
    for (std::uint32_t row = 0; row < 8; ++row) std::memcpy(row_of(i, slots, m, row, 0, kWrite), x[row], 16);
  }
}

void transpose(const Instruction& i, Slot* const* slots) {
  std::uint16_t x[8][8];
  for (std::uint32_t l = 0; l < 32; ++l) {
    const std::uint32_t word = slots[l]->frame->get32(i.ref(1));
    x[l / 4][l % 4 * 2] = static_cast<std::uint16_t>(word);
    x[l / 4][l % 4 * 2 + 1] = static_cast<std::uint16_t>(word >> 16);
  }
  for (std::uint32_t l = 0; l < 32; ++l) {
    const std::uint32_t r = l / 4, c = l % 4 * 2;
    slots[l]->frame->set(i.ref(0), x[c][r] | static_cast<std::uint32_t>(x[c + 1][r]) << 16);
  }
}

}  // namespace

void unpack(ElementType type, std::uint32_t word, float* to) {
  switch (type) {
    case ElementType::kBf16:
      to[0] = std::bit_cast<float>(word << 16);
      to[1] = std::bit_cast<float>(word & 0xffff0000u);
      return;
    case ElementType::kF16: {
      static const float* const table = f16_table();
      to[0] = table[word & 0xffff];
      to[1] = table[word >> 16];
      return;
    }
    case ElementType::kE4m3:
      for (int n = 0; n < 4; ++n) to[n] = e4m3_to_float(word >> 8 * n & 0xff);
      return;
  }
}

std::optional<ElementType> element_type(std::string_view opcode) {
  if (opcode.find(".bf16.bf16") != std::string_view::npos) return ElementType::kBf16;
  if (opcode.find(".f16.f16") != std::string_view::npos) return ElementType::kF16;
  if (opcode.find(".e4m3.e4m3") != std::string_view::npos) return ElementType::kE4m3;
  return std::nullopt;
}

bool find_matrix(Instruction& i) {
  const std::string_view name = i.part(0);
  if (name == "mma" && i.opcode.ends_with(".f32") && i.has(".row.col.f32.")) {
    const std::optional<ElementType> type = element_type(i.opcode);
    if (!type || !i.has(*type == ElementType::kE4m3 ? ".m16n8k32." : ".m16n8k16.")) return false;
    i.kind = static_cast<std::uint32_t>(*type);
    i.run = together<multiply>;
  } else if ((name == "ldmatrix" || name == "stmatrix") && i.has(".m8n8.") && i.opcode.ends_with(".b16")) {
    i.count = i.has(".x4") ? 4 : i.has(".x2") ? 2 : 1;
    i.flag = i.has(".trans");
    i.run = name == "ldmatrix" ? together<load_matrices> : together<store_matrices>;
  } else if (i.opcode == "movmatrix.sync.aligned.m8n8.trans.b16") {
    i.run = together<transpose>;
  } else {
    return false;
  }
  return true;
}

}  // namespace simt
