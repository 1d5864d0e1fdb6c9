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
constexpr int kMaxRows = HWY_TARGET == HWY_AVX3 ? 14 : HWY_TARGET == HWY_AVX2 ? 6 : 4;
constexpr int kMaxPairs = HWY_TARGET == HWY_AVX3 ? 4 : 2;

// Vector pair j of a row of a panel: lo is columns [j * lanes, ..), hi is columns [16 + j * lanes, ..).
struct Bf16Weight {
  using Element = std::uint16_t;
  // Stored as (lo, hi) pairs of 16 bits, so that one load feeds two vectors with a shift and a mask.
  static HWY_INLINE void load(const Element* row, int j, V& lo, V& hi) {
    const D d;
    const hn::RebindToUnsigned<D> du;
    const auto both = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(row) + j * kLanes);
    lo = hn::BitCast(d, hn::ShiftLeft<16>(both));
    hi = hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
  }
};
struct F16Weight {
  using Element = std::uint16_t;
  static HWY_INLINE void load(const Element* row, int j, V& lo, V& hi) {
    const D d;
    const hn::Rebind<hwy::float16_t, D> dh;
    const auto* halves = reinterpret_cast<const hwy::float16_t*>(row);
    lo = hn::PromoteTo(d, hn::LoadU(dh, halves + j * kLanes));
    hi = hn::PromoteTo(d, hn::LoadU(dh, halves + 16 + j * kLanes));
  }
};
struct F32Weight {
  using Element = float;
  static HWY_INLINE void load(const Element* row, int j, V& lo, V& hi) {
    const D d;
    lo = hn::LoadU(d, row + j * kLanes);
    hi = hn::LoadU(d, row + 16 + j * kLanes);
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
  if (t.bias != nullptr) sum = hn::Add(sum, load_columns(t, t.bias, column));
  if (left >= kLanes) {
    hn::StoreU(sum, d, y + column);
    return;
  }
  HWY_ALIGN float part[16];
  hn::Store(sum, d, part);
  for (std::int64_t i = 0; i < left; ++i) y[column + i] = part[i];
}

// Pairs [first, first + kPairs) of the tile's num_panels * kPairsPerPanel.
template <typename Weight, int kRows, int kPairs>
HWY_NOINLINE void run_tile(const MatmulTile& t, std::int64_t first) {
  const D d;
  using Element = typename Weight::Element;
  const Element* weights[kPairs];
  std::int64_t columns[kPairs];
  int within[kPairs];
  for (int p = 0; p < kPairs; ++p) {
    const std::int64_t panel = (first + p) / kPairsPerPanel;
    within[p] = static_cast<int>((first + p) % kPairsPerPanel);
    weights[p] = static_cast<const Element*>(t.panels) + panel * t.panel_stride;
    columns[p] = panel * kPanelWidth + within[p] * kLanes;
  }
  V lo[kRows][kPairs];
  V hi[kRows][kPairs];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPairs; ++p) {
      lo[r][p] = t.accumulate ? load_columns(t, t.y + r * t.y_stride, columns[p]) : hn::Zero(d);
      hi[r][p] = t.accumulate ? load_columns(t, t.y + r * t.y_stride, columns[p] + 16) : hn::Zero(d);
    }
  }
  const float* x = t.x;
  for (std::int64_t k = 0; k < t.k_count; ++k) {
    V wlo[kPairs];
    V whi[kPairs];
    for (int p = 0; p < kPairs; ++p) Weight::load(weights[p] + k * kPanelWidth, within[p], wlo[p], whi[p]);
    for (int r = 0; r < kRows; ++r) {
      const V xk = hn::Set(d, x[r * t.x_row_stride]);
      for (int p = 0; p < kPairs; ++p) {
        lo[r][p] = hn::MulAdd(xk, wlo[p], lo[r][p]);
        hi[r][p] = hn::MulAdd(xk, whi[p], hi[r][p]);
      }
    }
    x += t.x_k_stride;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPairs; ++p) {
      store_columns(t, lo[r][p], t.y + r * t.y_stride, columns[p]);
      store_columns(t, hi[r][p], t.y + r * t.y_stride, columns[p] + 16);
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
