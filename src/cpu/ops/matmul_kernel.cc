// Register-tiled inner kernels of matmul.cc for each SIMD target. A tile keeps rows x vector pairs of fp32 sums in
// registers; each step of k expands one pair of weight vectors and multiplies it with a broadcast x of every row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/ops/matmul_kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/highway.h>

#include <algorithm>
#include <utility>

#include "cpu/ops/matmul.h"
#include "cpu/ops/matmul_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;  // a pair of vectors covers 2 * lanes of the 32 columns of a panel
using V = hn::Vec<D>;

constexpr int kLanes = HWY_TARGET == HWY_AVX3 ? 16 : HWY_TARGET == HWY_AVX2 ? 8 : 1;
constexpr int kPairsPerPanel = 16 / kLanes;
constexpr int kMaxRows = HWY_TARGET == HWY_AVX3 ? 12 : HWY_TARGET == HWY_AVX2 ? 6 : 4;
constexpr int kMaxPairs = HWY_TARGET == HWY_AVX3 ? 4 : 2;

// Vector pair j of step k of a panel: lo is columns [j * lanes, ..), hi is columns [16 + j * lanes, ..).
struct Bf16Weight {
  // A 32-bit word holds steps k (even) and k + 1 of one column.
  template <int kOdd>
  static HWY_INLINE void load(const void* panel, std::int64_t k, int j, V& lo, V& hi) {
    const D d;
    const hn::RebindToUnsigned<D> du;
    const std::uint32_t* words = static_cast<const std::uint32_t*>(panel) + k / 2 * kPanelWidth + j * kLanes;
    const auto low = hn::LoadU(du, words);
    const auto high = hn::LoadU(du, words + 16);
    if constexpr (kOdd != 0) {
      const auto mask = hn::Set(du, 0xffff0000u);
      lo = hn::BitCast(d, hn::And(low, mask));
      hi = hn::BitCast(d, hn::And(high, mask));
    } else {
      lo = hn::BitCast(d, hn::ShiftLeft<16>(low));
      hi = hn::BitCast(d, hn::ShiftLeft<16>(high));
    }
  }
};
struct F16Weight {
  template <int kOdd>
  static HWY_INLINE void load(const void* panel, std::int64_t k, int j, V& lo, V& hi) {
    const D d;
    const hn::Rebind<hwy::float16_t, D> dh;
    const auto* halves = static_cast<const hwy::float16_t*>(panel) + (k + kOdd) * kPanelWidth + j * kLanes;
    lo = hn::PromoteTo(d, hn::LoadU(dh, halves));
    hi = hn::PromoteTo(d, hn::LoadU(dh, halves + 16));
  }
};
struct F32Weight {
  template <int kOdd>
  static HWY_INLINE void load(const void* panel, std::int64_t k, int j, V& lo, V& hi) {
    const D d;
    const float* floats = static_cast<const float*>(panel) + (k + kOdd) * kPanelWidth + j * kLanes;
    lo = hn::LoadU(d, floats);
    hi = hn::LoadU(d, floats + 16);
  }
};

// Times kE4m3Factor: a byte shifted to the top of a half has its exponent one bit too high up, so the magnitude goes
// back by one.
struct F8Weight {
  template <int kOdd>
  static HWY_INLINE void load(const void* panel, std::int64_t k, int j, V& lo, V& hi) {
    const std::uint8_t* bytes = static_cast<const std::uint8_t*>(panel) + (k + kOdd) * kPanelWidth + j * kLanes;
    lo = expand(bytes);
    hi = expand(bytes + 16);
  }
  static HWY_INLINE V expand(const std::uint8_t* bytes) {
    const D d;
    const hn::Rebind<std::uint8_t, D> d8;
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> dh;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, bytes));
    const auto sign = hn::ShiftLeft<8>(hn::And(wide, hn::Set(d16, 0x80)));
    const auto size = hn::ShiftLeft<7>(hn::And(wide, hn::Set(d16, 0x7f)));
    return hn::PromoteTo(d, hn::BitCast(dh, hn::Or(sign, size)));
  }
};

// Columns [column, column + lanes) of y, of which only those below t.columns exist.
HWY_INLINE V load_columns(const MatmulTile& t, const float* y, std::int64_t column) {
  const D d;
  const std::int64_t left = t.columns - column;
  if (left >= kLanes) return hn::LoadU(d, y + column);
  HWY_ALIGN float part[16] = {};
  for (std::int64_t i = 0; i < left; ++i) part[i] = y[column + i];
  return hn::Load(d, part);
}
HWY_INLINE void store_columns(const MatmulTile& t, V sum, float* y, std::int64_t column) {
  const D d;
  const std::int64_t left = t.columns - column;
  if (t.scales != nullptr) sum = hn::Mul(sum, load_columns(t, t.scales, column));
  if (t.bias != nullptr) sum = hn::Add(sum, load_columns(t, t.bias, column));
  if (left >= kLanes) {
    hn::StoreU(sum, d, y + column);
    return;
  }
  HWY_ALIGN float part[16];
  hn::Store(sum, d, part);
  for (std::int64_t i = 0; i < left; ++i) y[column + i] = part[i];
}

// Sums of kRows rows and kPairs vector pairs, in registers.
template <int kRows, int kPairs>
struct Sums {
  V lo[kRows][kPairs];
  V hi[kRows][kPairs];
};

template <typename Weight, int kOdd, int kRows, int kPairs>
HWY_INLINE void step(const MatmulTile& t, const void* const* panels, const int* within, std::int64_t k,
                     Sums<kRows, kPairs>& sums) {
  const D d;
  V wlo[kPairs];
  V whi[kPairs];
  const std::int64_t x_stride = kRows > kUnpackedRows ? kPackedStride : t.x_stride;
  for (int p = 0; p < kPairs; ++p) Weight::template load<kOdd>(panels[p], k, within[p], wlo[p], whi[p]);
  for (int r = 0; r < kRows; ++r) {
    const V xk = hn::Set(d, t.x[r * x_stride + k + kOdd]);
    for (int p = 0; p < kPairs; ++p) {
      sums.lo[r][p] = hn::MulAdd(xk, wlo[p], sums.lo[r][p]);
      sums.hi[r][p] = hn::MulAdd(xk, whi[p], sums.hi[r][p]);
    }
  }
}

// Pairs [first, first + kPairs) of the tile's num_panels * kPairsPerPanel.
template <typename Weight, int kRows, int kPairs>
HWY_NOINLINE void run_tile(const MatmulTile& t, std::int64_t first) {
  const D d;
  const void* panels[kPairs];
  std::int64_t columns[kPairs];
  int within[kPairs];
  for (int p = 0; p < kPairs; ++p) {
    const std::int64_t panel = (first + p) / kPairsPerPanel;
    within[p] = static_cast<int>((first + p) % kPairsPerPanel);
    panels[p] = static_cast<const std::uint8_t*>(t.panels) + panel * t.panel_bytes;
    columns[p] = panel * kPanelWidth + within[p] * kLanes;
  }
  Sums<kRows, kPairs> sums;
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPairs; ++p) {
      sums.lo[r][p] = t.accumulate ? load_columns(t, t.y + r * t.y_stride, columns[p]) : hn::Zero(d);
      sums.hi[r][p] = t.accumulate ? load_columns(t, t.y + r * t.y_stride, columns[p] + 16) : hn::Zero(d);
    }
  }
  std::int64_t k = 0;
  for (; k + 2 <= t.k_count; k += 2) {
    step<Weight, 0>(t, panels, within, k, sums);
    step<Weight, 1>(t, panels, within, k, sums);
  }
  if (k < t.k_count) step<Weight, 0>(t, panels, within, k, sums);
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPairs; ++p) {
      store_columns(t, sums.lo[r][p], t.y + r * t.y_stride, columns[p]);
      store_columns(t, sums.hi[r][p], t.y + r * t.y_stride, columns[p] + 16);
    }
  }
}

template <typename Weight, int kRows>
void run_rows(const MatmulTile& t) {
  // As many pairs at once as leaves every chain of sums in registers.
  constexpr int kPairs = std::max(1, std::min(kMaxPairs, kMaxRows / kRows));
  const std::int64_t pairs = t.num_panels * kPairsPerPanel;
  std::int64_t first = 0;
  for (; first + kPairs <= pairs; first += kPairs) run_tile<Weight, kRows, kPairs>(t, first);
  for (; first < pairs; ++first) run_tile<Weight, kRows, 1>(t, first);
}

template <typename Weight, int... kRow>
void pick_rows(int rows, const MatmulTile& t, std::integer_sequence<int, kRow...>) {
  static constexpr void (*kTable[])(const MatmulTile&) = {&run_rows<Weight, kRow + 1>...};
  kTable[rows - 1](t);
}

void tile(DType dtype, int rows, const MatmulTile& t) {
  using Rows = std::make_integer_sequence<int, kMaxRows>;
  if (dtype == DType::kBF16) return pick_rows<Bf16Weight>(rows, t, Rows{});
  if (dtype == DType::kF16) return pick_rows<F16Weight>(rows, t, Rows{});
  if (dtype == DType::kF8E4M3) return pick_rows<F8Weight>(rows, t, Rows{});
  pick_rows<F32Weight>(rows, t, Rows{});
}

MatmulKernels get_kernels() { return {&tile, kMaxRows, std::max(1, kMaxPairs / kPairsPerPanel)}; }

}  // namespace HWY_NAMESPACE
}  // namespace fovea::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(get_kernels);

MatmulKernels matmul_kernels() { return HWY_DYNAMIC_DISPATCH(get_kernels)(); }

}  // namespace fovea::cpu
#endif
