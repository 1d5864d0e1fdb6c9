// A statement of PTX as it is parsed once and run by every lane. Used by ptx.cc and by the instructions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "testing/simt/machine.h"
#include "testing/simt/ptx.h"

namespace simt {

// What an instruction names: an operand of the statement, a register that it declares, a number, or `_`.
struct Ref {
  enum class Kind : std::uint8_t { kOperand, kLocal, kNumber, kNothing };
  Kind kind = Kind::kNothing;
  std::uint32_t index = 0;
  std::uint64_t number = 0;
};

// x, {x, y, ..}, [x + offset], or [x, {c0, ..}] with the coordinates behind the tensor map.
struct Argument {
  std::vector<Ref> refs;
  std::int64_t offset = 0;
};

// The registers of a lane while it runs a statement.
struct Frame {
  const Operand* operands;
  std::uint64_t locals[16] = {};

  std::uint64_t get(const Ref& ref) const {
    switch (ref.kind) {
      case Ref::Kind::kOperand: {
        const Operand& o = operands[ref.index];
        if (o.at == nullptr) return o.value;
        std::uint64_t bits = 0;
        std::memcpy(&bits, o.at, o.bytes);
        return bits;
      }
      case Ref::Kind::kLocal: return locals[ref.index];
      case Ref::Kind::kNumber: return ref.number;
      default: return 0;
    }
  }
  std::uint32_t get32(const Ref& ref) const { return static_cast<std::uint32_t>(get(ref)); }
  void set(const Ref& ref, std::uint64_t bits) {
    if (ref.kind == Ref::Kind::kOperand) std::memcpy(operands[ref.index].at, &bits, operands[ref.index].bytes);
    if (ref.kind == Ref::Kind::kLocal) locals[ref.index] = bits;
  }
  std::uint64_t address(const Argument& a) const { return get(a.refs[0]) + static_cast<std::uint64_t>(a.offset); }
};

struct Instruction;
using Run = void (*)(Lane& lane, const Instruction& instruction, Frame& frame);

struct Instruction {
  std::string text, opcode;
  std::vector<Argument> arguments;
  Run run = nullptr;
  int guard = -1;  // local of the predicate, or none
  bool guard_negated = false;
  // What the opcode says, as far as the instruction's functions need it.
  std::uint32_t count = 1;  // of a vector, of matrices, dims, columns ..
  std::uint32_t bytes = 4;
  bool flag = false;
  std::uint32_t kind = 0;

  const Ref& ref(std::size_t argument, std::size_t i = 0) const { return arguments[argument].refs[i]; }
  bool has(std::string_view part) const { return opcode.find(part) != std::string::npos; }
  std::string_view part(std::size_t n) const;  // of the opcode, between points; "" behind the last
};

// Finds the function of an instruction by its opcode; false: there is none. Each file has those of its subject.
bool find_plain(Instruction& instruction);   // instructions.cc: arithmetic, memory, atomics
bool find_sync(Instruction& instruction);    // sync_instructions.cc: barriers, fences, copies
bool find_matrix(Instruction& instruction);  // matrix.cc: mma, ldmatrix
bool find_wgmma(Instruction& instruction);   // wgmma.cc

}  // namespace simt
