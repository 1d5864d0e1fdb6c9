// Products of a warpgroup (wgmma). Each warp computes its own 16 rows of the 64, when a wait asks for them or at a
// random time before. Until then the sums' registers hold NaN, and operands in shared memory are read only then:
// whoever overwrites them too early, or reads sums too early, shows.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "testing/simt/copies.h"
#include "testing/simt/products.h"
#include "testing/simt/ptx_statement.h"

namespace simt {

// The sums of one set of registers while products on them are on their way, 32 lanes.
struct Sums {
  std::vector<void*> registers;  // [32][n]; the first of all names the set
  std::vector<float> values;     // [32][n]
  std::uint32_t products = 0;    // on their way
};

struct Product {
  ElementType type;
  std::uint32_t columns;
  bool fresh;  // sums start at 0
  bool a_transposed, b_transposed;
  bool a_in_registers;
  float scale_a, scale_b;
  std::uint64_t a_descriptor, b_descriptor;
  std::vector<float> a;  // [inner][16], where it came in registers
  Sums* sums;
  std::uint32_t group;
  std::shared_ptr<const Clock> seen;  // by the warp, at the issue
  bool done;
};

struct WarpProducts {
  std::vector<std::unique_ptr<Sums>> sums;
  std::deque<Product> products;
  std::uint32_t group = 0;
  std::uint64_t issued = 0;
  bool fenced = false;
};

namespace {

constexpr std::uint32_t kNanBits = 0x7fffdeadu;

WarpProducts& products_of(Warp& warp) {
  if (warp.products == nullptr) {
    warp.products = {new WarpProducts, [](WarpProducts* p) { delete p; }};
  }
  return *warp.products;
}

// A matrix in shared memory, as a descriptor says. Rows are those of A or columns of B; k counts along the sum.
class SharedMatrix {
 public:
  SharedMatrix(Machine& machine, std::uint64_t descriptor, ElementType type, bool transposed)
      : start_((descriptor & 0x3fff) << 4),
        leading_((descriptor >> 16 & 0x3fff) << 4),
        stride_((descriptor >> 32 & 0x3fff) << 4),
        element_(element_bytes(type)),
        transposed_(transposed) {
    constexpr std::uint32_t kSpans[4] = {16, 128, 64, 32};
    span_ = kSpans[descriptor >> 62];
    if ((descriptor >> 49 & 7) != 0) machine.fail("a matrix descriptor with a base offset, which the emulator has not");
    if (transposed && element_ != 2) machine.fail("a matrix of 8 bits an element is K-major");
  }

  bool transposed() const { return transposed_; }
  // Shared address of an element.
  std::uint32_t address(std::uint32_t row, std::uint32_t k) const {
    std::uint32_t at = start_;
    if (!transposed_) {
      const std::uint32_t byte = k * element_;
      at += row / 8 * stride_;
      if (span_ == 16) {
        at += row % 8 * 16 + byte / 16 * leading_ + byte % 16;
      } else {
        at += row % 8 * span_ + byte;
      }
    } else if (span_ == 16) {
      at += row % 8 * 2 + row / 8 * stride_ + k % 8 * 16 + k / 8 * leading_;
    } else {
      const std::uint32_t across = span_ / 2;  // elements of a run
      at += row % across * 2 + row / across * leading_ + k % 8 * span_ + k / 8 * stride_;
    }
    return swizzle_address(at, span_);
  }

 private:
  std::uint32_t start_, leading_, stride_, span_, element_;
  bool transposed_;
};

// to[k][row] of `rows` rows of a matrix, `inner` elements each, read from shared memory by the asynchronous proxy in
// pieces of 16 bytes: neighbours along k, or along rows where the matrix is transposed.
void read(Lane& lane, const Clock& seen, ElementType type, const SharedMatrix& matrix, std::uint32_t first_row,
          std::uint32_t rows, std::uint32_t inner, float* to) {
  Cta& cta = *lane.warp->cta;
  const std::uint32_t in_piece = 16 / element_bytes(type);
  const auto piece = [&](std::uint32_t row, std::uint32_t k, float* x) {
    const std::uint32_t offset = shared_offset(lane, matrix.address(first_row + row, k), 16);
    shared_access_by(cta, lane.self(), lane.clock[lane.self()], seen, offset, 16, kAsync);
    for (std::uint32_t i = 0; i < 4; ++i) {
      std::uint32_t word;
      std::memcpy(&word, cta.shared.data() + offset + 4 * i, 4);
      unpack(type, word, x + i * in_piece / 4);
    }
  };
  float x[16];
  if (matrix.transposed()) {
    for (std::uint32_t k = 0; k < inner; ++k) {
      for (std::uint32_t row = 0; row < rows; row += in_piece) piece(row, k, to + k * rows + row);
    }
    return;
  }
  for (std::uint32_t row = 0; row < rows; ++row) {
    for (std::uint32_t k = 0; k < inner; k += in_piece) {
      piece(row, k, x);
      for (std::uint32_t i = 0; i < in_piece; ++i) to[(k + i) * rows + row] = x[i];
    }
  }
}

void compute(Warp& warp, Product& p) {
  if (p.done) return;
  p.done = true;
  Lane& lane = *warp.lane[0];
  Machine& machine = *warp.cta->machine;
  const std::uint32_t inner = 32 / element_bytes(p.type), columns = p.columns;
  std::vector<float> a = p.a, b(std::size_t{columns} * inner), d(std::size_t{16} * columns);
  if (!p.a_in_registers) {
    a.resize(16 * inner);
    const SharedMatrix matrix(machine, p.a_descriptor, p.type, p.a_transposed);
    read(lane, *p.seen, p.type, matrix, warp.number % 4 * 16, 16, inner, a.data());
  }
  const SharedMatrix matrix(machine, p.b_descriptor, p.type, p.b_transposed);
  read(lane, *p.seen, p.type, matrix, 0, columns, inner, b.data());
  for (std::uint32_t row = 0; row < 16; ++row) {
    float* const sums = &d[row * columns];
    for (std::uint32_t k = 0; k < inner; ++k) {
      const float x = a[k * 16 + row];
      const float* const with = &b[k * columns];
      for (std::uint32_t n = 0; n < columns; ++n) sums[n] += x * with[n];
    }
  }
  const float scale = p.scale_a * p.scale_b;
  for (std::uint32_t l = 0; l < 32; ++l) {
    float* const to = &p.sums->values[std::size_t{l} * columns / 2];
    for (std::uint32_t n = 0; n < columns / 2; ++n) {
      const float sum = d[(l / 4 + n / 2 % 2 * 8) * columns + n / 4 * 8 + l % 4 * 2 + n % 2];
      to[n] = (p.fresh ? 0.0f : to[n]) + scale * sum;
    }
  }
}

// Runs products of groups before `groups`; their registers get the sums where nothing else is on its way to them.
void complete(Warp& warp, std::uint32_t groups) {
  WarpProducts& all = products_of(warp);
  while (!all.products.empty() && all.products.front().group < groups) {
    Product p = std::move(all.products.front());
    all.products.pop_front();
    compute(warp, p);
    if (--p.sums->products > 0) continue;
    for (std::size_t i = 0; i < p.sums->registers.size(); ++i) {
      std::memcpy(p.sums->registers[i], &p.sums->values[i], 4);
    }
    std::erase_if(all.sums, [&](const auto& s) { return s.get() == p.sums; });
  }
}

struct Slot {
  Lane* lane;
  Frame* frame;
};

// Hardware takes a product from the four warps at one place of the code: warps that parted make sums of anything.
void check_place(Warp& warp, std::uint64_t number) {
  auto& places = warp.cta->product_places;
  std::vector<const void*> here = warp.cta->machine->place();
  const auto [at, first] = places.try_emplace({warp.number / 4, number});
  auto& [place, warps] = at->second;
  if (first) {
    place = std::move(here);
  } else if (place != here) {
    warp.cta->machine->fail("the warps of a warpgroup issue a product at different places of the code");
  }
  if (++warps == 4) places.erase(at);
}

// Arguments d, a, b, scale-d, then scales and what is transposed.
void issue(Warp& warp, const Instruction& i, Slot* const* slots) {
  Machine& machine = *warp.cta->machine;
  WarpProducts& all = products_of(warp);
  check_place(warp, all.issued++);
  const std::uint32_t n = i.count / 2;
  const auto type = static_cast<ElementType>(i.kind);
  const Frame& first = *slots[0]->frame;
  for (std::uint32_t l = 1; l < 32; ++l) {
    if (first.get(i.ref(2)) != slots[l]->frame->get(i.ref(2))) {
      machine.fail(fmt::format("{}: lanes have different descriptors", i.opcode));
    }
  }
  if (i.arguments[0].refs.size() != n)
    machine.fail(fmt::format("{} with {} sums", i.opcode, i.arguments[0].refs.size()));
  Product p{};
  p.type = type;
  p.columns = i.count;
  p.a_in_registers = i.arguments[1].refs.size() == 4;
  p.fresh = first.get(i.ref(3)) == 0;
  const auto extra = [&](std::size_t at) {
    return at < i.arguments.size() ? static_cast<std::int32_t>(first.get32(i.ref(at))) : 0;
  };
  p.scale_a = static_cast<float>(extra(4));
  p.scale_b = static_cast<float>(extra(5));
  p.a_transposed = !p.a_in_registers && extra(6) != 0;
  p.b_transposed = extra(p.a_in_registers ? 6 : 7) != 0;
  p.b_descriptor = first.get(i.ref(2));
  p.group = all.group;
  const std::uint32_t inner = 32 / element_bytes(type);
  if (p.a_in_registers) {
    p.a.resize(16 * inner);
    const std::uint32_t per_register = inner / 8;
    for (std::uint32_t l = 0; l < 32; ++l) {
      for (std::uint32_t r = 0; r < 4; ++r) {
        float x[4];
        unpack(type, slots[l]->frame->get32(i.ref(1, r)), x);
        const std::uint32_t k = l % 4 * per_register + r / 2 * inner / 2, row = l / 4 + r % 2 * 8;
        for (std::uint32_t e = 0; e < per_register; ++e) p.a[(k + e) * 16 + row] = x[e];
      }
    }
  } else {
    p.a_descriptor = first.get(i.ref(1));
  }
  // Sums that are on their way go on; others are taken out of their registers.
  void* const name = slots[0]->frame->operands[i.ref(0, 0).index].at;
  Sums* sums = nullptr;
  for (const auto& s : all.sums) {
    if (s->registers[0] == name) sums = s.get();
  }
  if (!all.fenced && (sums == nullptr || p.a_in_registers)) {
    machine.fail(fmt::format("{}: no wgmma.fence since its registers may have been written", i.opcode));
  }
  if (sums == nullptr) {
    all.sums.push_back(std::make_unique<Sums>());
    sums = all.sums.back().get();
    for (std::uint32_t l = 0; l < 32; ++l) {
      for (std::uint32_t k = 0; k < n; ++k) {
        void* const at = slots[l]->frame->operands[i.ref(0, k).index].at;
        float x;
        std::memcpy(&x, at, 4);
        std::memcpy(at, &kNanBits, 4);
        sums->registers.push_back(at);
        sums->values.push_back(x);
      }
    }
  } else if (sums->values.size() != std::size_t{32} * n) {
    machine.fail(fmt::format("{}: its sums are on their way in another shape", i.opcode));
  }
  ++sums->products;
  p.sums = sums;
  // What was ordered before the product for any lane of the warp is ordered for it: all of them issue it.
  auto seen = std::make_shared<Clock>(warp.lane[0]->clock);
  for (std::uint32_t l = 1; l < 32; ++l) seen->join(warp.lane[l]->clock);
  p.seen = std::move(seen);
  all.products.push_back(std::move(p));
  machine.progress();
}

void fence(Warp& warp, const Instruction&, Slot* const*) { products_of(warp).fenced = true; }

void commit(Warp& warp, const Instruction&, Slot* const*) {
  WarpProducts& all = products_of(warp);
  ++all.group;
  all.fenced = false;
  Machine& machine = *warp.cta->machine;
  const Landing landing = machine.launch().landing;
  if (landing == Landing::kLate || (landing == Landing::kRandom && !machine.chance(3))) return;
  for (Product& p : all.products) compute(warp, p);  // sums stay hidden until a wait
}

void wait(Warp& warp, const Instruction& i, Slot* const* slots) {
  const WarpProducts& all = products_of(warp);
  const std::uint32_t pending = slots[0]->frame->get32(i.ref(0));
  complete(warp, all.group < pending ? 0 : all.group - pending);
  // Products read by the name of lane 0; every lane knows now that they have.
  Lane& first = *warp.lane[0];
  for (Lane* lane : warp.lane) {
    auto& seen = lane->clock[first.self()];
    seen = std::max(seen, first.clock[first.self()]);
    lane->snapshot.reset();
  }
  first.tick();
}

template <void (*kRun)(Warp&, const Instruction&, Slot* const*)>
void together(Lane& lane, const Instruction& i, Frame& frame) {
  Slot slot{&lane, &frame};
  meet(
      i.text.c_str(), &i, 0xffffffffu, &slot,
      [](Warp& warp, std::uint32_t, void* const* slots, const void* context) {
        kRun(warp, *static_cast<const Instruction*>(context), reinterpret_cast<Slot* const*>(slots));
      },
      &i);
}

}  // namespace

bool find_wgmma(Instruction& i) {
  if (i.part(0) != "wgmma") return false;
  if (i.part(1) == "fence") {
    i.run = together<fence>;
  } else if (i.part(1) == "commit_group") {
    i.run = together<commit>;
  } else if (i.part(1) == "wait_group") {
    i.run = together<wait>;
  } else {
    const std::optional<ElementType> type = element_type(i.opcode);
    // wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
    const std::string_view shape = i.part(4);
    const std::size_t at = shape.find('n'), end = shape.find('k');
    if (!type || i.part(1) != "mma_async" || i.part(5) != "f32" || !shape.starts_with("m64n")) return false;
    std::from_chars(shape.data() + at + 1, shape.data() + end, i.count);
    if (i.count % 8 != 0 || i.count < 8 || i.count > 256) return false;
    if (shape.substr(end) != (*type == ElementType::kE4m3 ? "k32" : "k16")) return false;
    i.kind = static_cast<std::uint32_t>(*type);
    i.run = together<issue>;
  }
  return true;
}

}  // namespace simt
