// The operators of elementwise.h for each SIMD target, and how their rows are shared among threads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/ops/elementwise.cc"
#include <hwy/foreach_target.h>
// After foreach_target, as Highway asks.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "cpu/ops/elementwise.h"
#include "cpu/ops/load_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
// Tails go through the same formulas with one lane, so that an element's result does not depend on where it stands.
using D1 = hn::CappedTag<float, 1>;

template <typename Weight>
void norm_one(const RmsNorm& n, const Weight& weight, std::int64_t row, std::int64_t head) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* x = n.x.at(row, head);
  float* out = n.out.at(row, head);
  V sum0 = hn::Zero(d);
  V sum1 = hn::Zero(d);
  float tail = 0.0f;
  std::int64_t i = 0;
  if (n.residual.data != nullptr) {
    float* residual = n.residual.at(row, head);
    for (; i + lanes <= n.dim; i += lanes) {
      const V v = hn::Add(hn::LoadU(d, residual + i), hn::LoadU(d, x + i));
      hn::StoreU(v, d, residual + i);
      sum0 = hn::MulAdd(v, v, sum0);
    }
    for (; i < n.dim; ++i) {
      residual[i] += x[i];
      tail += residual[i] * residual[i];
    }
    x = residual;
  } else {
    for (; i + 2 * lanes <= n.dim; i += 2 * lanes) {
      const V a = hn::LoadU(d, x + i);
      const V b = hn::LoadU(d, x + i + lanes);
      sum0 = hn::MulAdd(a, a, sum0);
      sum1 = hn::MulAdd(b, b, sum1);
    }
    for (; i < n.dim; ++i) tail += x[i] * x[i];
  }
  const float squares = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1))) + tail;
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(n.dim) + n.eps);
  const V vscale = hn::Set(d, scale);
  const V voffset = hn::Set(d, n.weight_offset);
  for (i = 0; i + lanes <= n.dim; i += lanes) {
    const V w = hn::Add(weight.load(d, i), voffset);
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), vscale), w), d, out + i);
  }
  for (; i < n.dim; ++i) out[i] = x[i] * scale * (weight.at(i) + n.weight_offset);
}

template <typename Weight>
void norm_as(const RmsNorm& n, std::int64_t begin, std::int64_t end) {
  const Weight weight(n.weight);
  for (std::int64_t i = begin; i < end; ++i) norm_one(n, weight, i / n.heads, i % n.heads);
}
void norm_range(const RmsNorm& n, std::int64_t begin, std::int64_t end) {
  if (n.weight_dtype == DType::kBF16) return norm_as<StoredBf16>(n, begin, end);
  if (n.weight_dtype == DType::kF16) return norm_as<StoredF16>(n, begin, end);
  norm_as<StoredF32>(n, begin, end);
}

struct Silu {
  template <class DD, class VV>
  HWY_INLINE VV operator()(DD d, VV x) const {
    return hn::Div(x, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, hn::Neg(x))));
  }
};
// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), Hendrycks and Gimpel 2016.
struct GeluTanh {
  template <class DD, class VV>
  HWY_INLINE VV operator()(DD d, VV x) const {
    const VV cube = hn::Mul(hn::Mul(x, x), x);
    const VV inner = hn::Mul(hn::Set(d, 0.7978845608028654f), hn::MulAdd(hn::Set(d, 0.044715f), cube, x));
    return hn::Mul(hn::Mul(hn::Set(d, 0.5f), x), hn::Add(hn::Set(d, 1.0f), hn::Tanh(d, inner)));
  }
};

template <class Gate>
void gate_row(const Gate& gate, const float* gate_up, std::int64_t width, float* out) {
  const D d;
  const D1 d1;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= width; i += lanes) {
    hn::StoreU(hn::Mul(gate(d, hn::LoadU(d, gate_up + i)), hn::LoadU(d, gate_up + width + i)), d, out + i);
  }
  for (; i < width; ++i) {
    hn::StoreU(hn::Mul(gate(d1, hn::LoadU(d1, gate_up + i)), hn::LoadU(d1, gate_up + width + i)), d1, out + i);
  }
}
void gate_range(GateKind kind, const float* gate_up, std::int64_t width, float* out) {
  if (kind == GateKind::kSilu) return gate_row(Silu{}, gate_up, width, out);
  if (kind == GateKind::kGeluTanh) return gate_row(GeluTanh{}, gate_up, width, out);
  for (std::int64_t i = 0; i < width; ++i) {  // no family here uses erf in earnest, so it stays scalar
    const float x = gate_up[i];
    out[i] = 0.5f * x * (1.0f + std::erf(x * 0.70710678f)) * gate_up[width + i];
  }
}

template <typename Stored>
void embed_as(const Stored& table, std::int64_t first, std::int64_t dim, float scale, float* out) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V vscale = hn::Set(d, scale);
  std::int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) hn::StoreU(hn::Mul(table.load(d, first + i), vscale), d, out + i);
  for (; i < dim; ++i) out[i] = table.at(first + i) * scale;
}
void embed_row(const void* table, DType dtype, std::int64_t first, std::int64_t dim, float scale, float* out) {
  if (dtype == DType::kBF16) return embed_as(StoredBf16(table), first, dim, scale, out);
  if (dtype == DType::kF16) return embed_as(StoredF16(table), first, dim, scale, out);
  embed_as(StoredF32(table), first, dim, scale, out);
}

void add_row(float* x, const float* y, std::int64_t dim) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, x + i);
  for (; i < dim; ++i) x[i] += y[i];
}

void softcap_row(float* x, std::int64_t dim, float cap) {
  const D d;
  const D1 d1;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    const V v = hn::Tanh(d, hn::Div(hn::LoadU(d, x + i), hn::Set(d, cap)));
    hn::StoreU(hn::Mul(v, hn::Set(d, cap)), d, x + i);
  }
  for (; i < dim; ++i) {
    const auto v = hn::Tanh(d1, hn::Div(hn::LoadU(d1, x + i), hn::Set(d1, cap)));
    hn::StoreU(hn::Mul(v, hn::Set(d1, cap)), d1, x + i);
  }
}

void rotate_row(float* x, const float* cos_sin, std::int64_t half) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* cosines = cos_sin;
  const float* sines = cos_sin + half;
  std::int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    const V c = hn::LoadU(d, cosines + i);
    const V s = hn::LoadU(d, sines + i);
    const V low = hn::LoadU(d, x + i);
    const V high = hn::LoadU(d, x + half + i);
    hn::StoreU(hn::Sub(hn::Mul(low, c), hn::Mul(high, s)), d, x + i);
    hn::StoreU(hn::Add(hn::Mul(high, c), hn::Mul(low, s)), d, x + half + i);
  }
  for (; i < half; ++i) {
    const float low = x[i];
    const float high = x[half + i];
    x[i] = low * cosines[i] - high * sines[i];
    x[half + i] = high * cosines[i] + low * sines[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {
namespace {

HWY_EXPORT(norm_range);
HWY_EXPORT(gate_range);
HWY_EXPORT(embed_row);
HWY_EXPORT(add_row);
HWY_EXPORT(softcap_row);
HWY_EXPORT(rotate_row);

// f(row) over all rows. Waking threads costs microseconds, so small work stays on the caller's thread; `row_cost` is in
// elements of an addition.
template <typename F>
void for_rows(std::int64_t rows, std::int64_t row_cost, ThreadPool& pool, F&& f) {
  constexpr std::int64_t kWorthAThread = 1 << 14;
  const std::int64_t grain =
      std::max(kWorthAThread / std::max<std::int64_t>(row_cost, 1), rows / (pool.size() * std::int64_t{4}));
  pool.parallel_for(rows, std::max<std::int64_t>(grain, 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) f(row);
  });
}

}  // namespace

void rms_norm(const RmsNorm& norm, ThreadPool& pool) {
  for_rows(norm.rows, norm.heads * norm.dim * 2, pool, [&](std::int64_t row) {
    HWY_DYNAMIC_DISPATCH(norm_range)(norm, row * norm.heads, (row + 1) * norm.heads);
  });
}

void gated_activation(GateKind kind, const float* gate_up, std::int64_t gate_up_stride, std::int64_t rows,
                      std::int64_t width, float* out, std::int64_t out_stride, ThreadPool& pool) {
  for_rows(rows, width * 6, pool, [&](std::int64_t row) {
    HWY_DYNAMIC_DISPATCH(gate_range)(kind, gate_up + row * gate_up_stride, width, out + row * out_stride);
  });
}

void embed(const void* table, DType dtype, std::int64_t table_stride, const std::int32_t* ids, std::int64_t rows,
           std::int64_t dim, float scale, float* out, std::int64_t out_stride, ThreadPool& pool) {
  for_rows(rows, dim, pool, [&](std::int64_t row) {
    HWY_DYNAMIC_DISPATCH(embed_row)(table, dtype, ids[row] * table_stride, dim, scale, out + row * out_stride);
  });
}

void add(float* x, std::int64_t x_stride, const float* y, std::int64_t y_stride, std::int64_t rows, std::int64_t dim,
         ThreadPool& pool) {
  for_rows(rows, dim, pool, [&](std::int64_t row) {
    HWY_DYNAMIC_DISPATCH(add_row)(x + row * x_stride, y + row * y_stride, dim);
  });
}

void softcap(float* x, std::int64_t stride, std::int64_t rows, std::int64_t dim, float cap, ThreadPool& pool) {
  for_rows(rows, dim * 6, pool, [&](std::int64_t row) {
    HWY_DYNAMIC_DISPATCH(softcap_row)(x + row * stride, dim, cap);
  });
}

void rotate(const HeadRows& x, const float* cos_sin, std::int64_t rows, std::int64_t heads, std::int64_t half,
            ThreadPool& pool) {
  for_rows(rows, heads * half * 2, pool, [&](std::int64_t row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      HWY_DYNAMIC_DISPATCH(rotate_row)(x.at(row, head), cos_sin + row * 2 * half, half);
    }
  });
}

}  // namespace fovea::cpu
#endif
