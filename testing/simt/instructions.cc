// Instructions of a lane alone: arithmetic, conversions, loads and stores by address, atomics. See ptx_statement.h.
#include <bit>
#include <cmath>

#include "base/half.h"
#include "testing/simt/numbers.h"
#include "testing/simt/ptx_statement.h"

namespace simt {
namespace {

float as_float(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }
std::uint32_t as_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
// Subnormal numbers are 0, as .ftz says.
float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

std::uint32_t type_bytes(const Instruction& i) {
  for (const auto& [name, bytes] : {std::pair{".b8", 1u},
                                    {".u8", 1u},
                                    {".s8", 1u},
                                    {".b16", 2u},
                                    {".u16", 2u},
                                    {".b64", 8u},
                                    {".u64", 8u},
                                    {".s64", 8u},
                                    {".f64", 8u}}) {
    if (i.opcode.ends_with(name)) return bytes;
  }
  return 4;
}

// ld and st. kind 0: a plain one; 1: one that other CTAs' are not ordered with (relaxed, volatile, acquire, release).
void load(Lane& lane, const Instruction& i, Frame& frame) {
  const std::uint64_t address = frame.address(i.arguments[1]);
  const std::uint32_t bytes = i.count * i.bytes;
  std::uint8_t data[64];
  if (i.flag) {
    const std::uint32_t offset = shared_offset(lane, address, bytes);
    shared_access(lane, offset, bytes, i.kind != 0 ? kAtomic : 0);
    std::memcpy(data, lane.warp->cta->shared.data() + offset, bytes);
  } else {
    machine_of(lane).check_global(reinterpret_cast<const void*>(address), bytes, false);
    if (i.kind != 0) machine_of(lane).poll(lane, i.text.c_str());
    std::memcpy(data, reinterpret_cast<const void*>(address), bytes);
  }
  if (address % bytes != 0) machine_of(lane).fail("a load of an address that is no multiple of its size: " + i.text);
  for (std::uint32_t n = 0; n < i.count; ++n) {
    std::uint64_t x = 0;
    std::memcpy(&x, data + n * i.bytes, i.bytes);
    frame.set(i.ref(0, n), x);
  }
}

void store(Lane& lane, const Instruction& i, Frame& frame) {
  const std::uint64_t address = frame.address(i.arguments[0]);
  const std::uint32_t bytes = i.count * i.bytes;
  std::uint8_t data[64];
  for (std::uint32_t n = 0; n < i.count; ++n) {
    const std::uint64_t x = frame.get(i.ref(1, n));
    std::memcpy(data + n * i.bytes, &x, i.bytes);
  }
  if (address % bytes != 0) machine_of(lane).fail("a store to an address that is no multiple of its size: " + i.text);
  if (i.flag) {
    const std::uint32_t offset = shared_offset(lane, address, bytes);
    shared_access(lane, offset, bytes, static_cast<std::uint8_t>(kWrite | (i.kind != 0 ? kAtomic : 0)));
    std::memcpy(lane.warp->cta->shared.data() + offset, data, bytes);
  } else {
    machine_of(lane).check_global(reinterpret_cast<const void*>(address), bytes, true);
    auto* const to = reinterpret_cast<void*>(address);
    if (i.kind != 0 && std::memcmp(to, data, bytes) != 0) machine_of(lane).progress();
    std::memcpy(to, data, bytes);
  }
}

void atomic(Lane& lane, const Instruction& i, Frame& frame) {
  const bool returns = i.part(0) == "atom";
  const std::size_t first = returns ? 1 : 0;
  auto* const at = reinterpret_cast<void*>(frame.address(i.arguments[first]));
  machine_of(lane).check_global(at, i.bytes, true);
  machine_of(lane).poll(lane, i.text.c_str());
  std::uint64_t old = 0;
  std::memcpy(&old, at, i.bytes);
  const std::uint64_t x = frame.get(i.ref(first + 1));
  std::uint64_t next = 0;
  if (i.has(".add")) {
    next = i.opcode.ends_with(".f32") ? as_bits(as_float(old) + as_float(x)) : old + x;
  } else if (i.has(".max")) {
    next = std::max(old, x);
  } else if (i.has(".min")) {
    next = std::min(old, x);
  } else if (i.has(".or")) {
    next = old | x;
  } else if (i.has(".and")) {
    next = old & x;
  } else if (i.has(".inc")) {
    next = old >= x ? 0 : old + 1;
  } else if (i.has(".cas")) {
    next = old == x ? frame.get(i.ref(first + 2)) : old;
  } else {
    next = x;  // exch
  }
  std::memcpy(at, &next, i.bytes);
  machine_of(lane).progress();
  if (returns) frame.set(i.ref(0), old);
  // What the lane does behind it may come late.
  if (machine_of(lane).chance(2)) machine_of(lane).poll(lane, i.text.c_str());
}

// Applies f to both halves of a word.
template <typename F>
std::uint32_t each_half(std::uint32_t a, std::uint32_t b, const F& f) {
  const auto half = [&](int shift) {
    const float x = fovea::f16_to_float(static_cast<std::uint16_t>(a >> shift));
    const float y = fovea::f16_to_float(static_cast<std::uint16_t>(b >> shift));
    return static_cast<std::uint32_t>(fovea::float_to_f16(f(x, y))) << shift;
  };
  return half(0) | half(16);
}

// x * y + z of both bf16 of a word, rounded at the end.
std::uint32_t fused_bf16(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
  std::uint32_t result = 0;
  for (int half = 0; half < 32; half += 16) {
    const auto at = [&](std::uint32_t v) { return fovea::bf16_to_float(static_cast<std::uint16_t>(v >> half)); };
    result |= static_cast<std::uint32_t>(fovea::float_to_bf16(std::fma(at(x), at(y), at(z)))) << half;
  }
  return result;
}

// The same of halves.
std::uint32_t fused_halves(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
  std::uint32_t result = 0;
  for (int half = 0; half < 32; half += 16) {
    const auto at = [&](std::uint32_t v) {
      return static_cast<double>(fovea::f16_to_float(static_cast<std::uint16_t>(v >> half)));
    };
    result |= static_cast<std::uint32_t>(fovea::float_to_f16(static_cast<float>(std::fma(at(x), at(y), at(z)))))
              << half;
  }
  return result;
}

struct Named {
  std::string_view opcode;
  Run run;
};

constexpr auto kPlain = std::to_array<Named>({
    {"ex2.approx.ftz.f32",
     [](Lane&, const Instruction& i, Frame& f) {
       f.set(i.ref(0), as_bits(flushed(std::exp2(flushed(as_float(f.get(i.ref(1))))))));
     }},
    {"lg2.approx.ftz.f32", [](Lane&, const Instruction& i,
                              Frame& f) { f.set(i.ref(0), as_bits(std::log2(flushed(as_float(f.get(i.ref(1))))))); }},
    {"rcp.approx.ftz.f32",
     [](Lane&, const Instruction& i, Frame& f) {
       f.set(i.ref(0), as_bits(flushed(1.0f / flushed(as_float(f.get(i.ref(1)))))));
     }},
    {"tanh.approx.f32",
     [](Lane&, const Instruction& i, Frame& f) { f.set(i.ref(0), as_bits(std::tanh(as_float(f.get(i.ref(1)))))); }},
    {"cvt.rn.bf16x2.f32",
     [](Lane&, const Instruction& i, Frame& f) {
       f.set(i.ref(0), static_cast<std::uint32_t>(fovea::float_to_bf16(as_float(f.get(i.ref(1))))) << 16 |
                           fovea::float_to_bf16(as_float(f.get(i.ref(2)))));
     }},
    {"cvt.rn.f16x2.f32",
     [](Lane&, const Instruction& i, Frame& f) {
       f.set(i.ref(0), static_cast<std::uint32_t>(fovea::float_to_f16(as_float(f.get(i.ref(1))))) << 16 |
                           fovea::float_to_f16(as_float(f.get(i.ref(2)))));
     }},
    {"cvt.f32.f16",
     [](Lane&, const Instruction& i, Frame& f) {
       f.set(i.ref(0), as_bits(fovea::f16_to_float(static_cast<std::uint16_t>(f.get(i.ref(1))))));
     }},
    {"cvt.rn.f16x2.e4m3x2",
     [](Lane&, const Instruction& i, Frame& f) {
       const std::uint32_t x = f.get32(i.ref(1));
       f.set(i.ref(0), static_cast<std::uint32_t>(fovea::float_to_f16(e4m3_to_float(x >> 8 & 0xff))) << 16 |
                           fovea::float_to_f16(e4m3_to_float(x & 0xff)));
     }},
    {"cvt.rn.satfinite.e4m3x2.f32",
     [](Lane&, const Instruction& i, Frame& f) {
       f.set(i.ref(0), float_to_e4m3(as_float(f.get(i.ref(1)))) << 8 | float_to_e4m3(as_float(f.get(i.ref(2)))));
     }},
    {"mul.rn.bf16x2",
     [](Lane&, const Instruction& i, Frame& f) {
       f.set(i.ref(0), fused_bf16(f.get32(i.ref(1)), f.get32(i.ref(2)), 0x80008000u));
     }},
    {"fma.rn.bf16x2",
     [](Lane&, const Instruction& i, Frame& f) {
       f.set(i.ref(0), fused_bf16(f.get32(i.ref(1)), f.get32(i.ref(2)), f.get32(i.ref(3))));
     }},
    {"mul.rn.f16x2",
     [](Lane&, const Instruction& i, Frame& f) {
       f.set(i.ref(0), each_half(f.get32(i.ref(1)), f.get32(i.ref(2)), [](float x, float y) { return x * y; }));
     }},
    {"add.rn.f16x2",
     [](Lane&, const Instruction& i, Frame& f) {
       f.set(i.ref(0), each_half(f.get32(i.ref(1)), f.get32(i.ref(2)), [](float x, float y) { return x + y; }));
     }},
    {"fma.rn.f16x2",
     [](Lane&, const Instruction& i, Frame& f) {
       f.set(i.ref(0), fused_halves(f.get32(i.ref(1)), f.get32(i.ref(2)), f.get32(i.ref(3))));
     }},
    {"mov.b32",
     [](Lane&, const Instruction& i, Frame& f) {
       const Argument &to = i.arguments[0], &from = i.arguments[1];
       std::uint32_t x = f.get32(from.refs[0]);
       if (from.refs.size() == 2) x = (x & 0xffff) | f.get32(from.refs[1]) << 16;
       if (to.refs.size() == 1) return f.set(to.refs[0], x);
       f.set(to.refs[0], x & 0xffff);
       f.set(to.refs[1], x >> 16);
     }},
    {"mov.u32", [](Lane&, const Instruction& i, Frame& f) { f.set(i.ref(0), f.get32(i.ref(1))); }},
    {"mov.b64", [](Lane&, const Instruction& i, Frame& f) { f.set(i.ref(0), f.get(i.ref(1))); }},
});

void set_predicate(Lane&, const Instruction& i, Frame& f) {
  const auto a = static_cast<std::int32_t>(f.get32(i.ref(1))), b = static_cast<std::int32_t>(f.get32(i.ref(2)));
  const bool is_unsigned = i.opcode.ends_with(".u32");
  const auto less = [&](std::int32_t x, std::int32_t y) {
    return is_unsigned ? static_cast<std::uint32_t>(x) < static_cast<std::uint32_t>(y) : x < y;
  };
  const std::string_view how = i.part(1);
  f.set(i.ref(0), how == "eq"   ? a == b
                  : how == "ne" ? a != b
                  : how == "lt" ? less(a, b)
                  : how == "gt" ? less(b, a)
                  : how == "le" ? !less(b, a)
                                : !less(a, b));
}

}  // namespace

bool find_plain(Instruction& i) {
  for (const Named& known : kPlain) {
    if (i.opcode == known.opcode) {
      i.run = known.run;
      return true;
    }
  }
  const std::string_view name = i.part(0);
  if (name == "setp") {
    i.run = set_predicate;
  } else if (name == "selp") {
    i.run = [](Lane&, const Instruction& s, Frame& f) {
      f.set(s.ref(0), f.get(s.ref(3)) != 0 ? f.get(s.ref(1)) : f.get(s.ref(2)));
    };
  } else if (name == "ld" || (name == "st" && i.part(1) != "async")) {
    i.run = name == "ld" ? load : store;
    i.bytes = type_bytes(i);
    i.count = i.has(".v2.") ? 2 : i.has(".v4.") ? 4 : 1;
    i.flag = i.has(".shared");
    i.kind = i.has(".relaxed") || i.has(".acquire") || i.has(".release") || i.has(".volatile") ? 1 : 0;
  } else if (name == "atom" || name == "red") {
    i.run = atomic;
    i.bytes = type_bytes(i);
  } else if (name == "prefetch") {
    i.run = [](Lane&, const Instruction&, Frame&) {};
  } else {
    return false;
  }
  return true;
}

}  // namespace simt
