// The slow oracle and the error bar.
#include "testing/attention_oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <sstream>

namespace fovea::testing {
namespace {

// x in a type of fewer bits; kF32 stands for as it is.
template <typename Real>
Real rounded(Real x, DType dtype) {
  if (dtype == DType::kBF16) return static_cast<Real>(float_of_bf16(bf16_of(static_cast<float>(x))));
  if (dtype == DType::kF16) return static_cast<Real>(float_of_f16(f16_of(static_cast<float>(x))));
  return x;
}

template <typename Real>
Real logit_of(const OracleVariant& variant, Real logit, int q_pos, int kv_pos, int head) {
  if (variant.softcap > 0.0)
    logit = static_cast<Real>(variant.softcap) * std::tanh(logit / static_cast<Real>(variant.softcap));
  if (!variant.alibi_slopes.empty())
    logit += static_cast<Real>(variant.alibi_slopes[head]) * static_cast<Real>(kv_pos - q_pos);
  if (variant.custom) logit = static_cast<Real>(variant.custom(logit, q_pos, kv_pos, head));
  return logit;
}

// Queries as they are multiplied: rounded, after a rotation where keys are rotated; that is then taken back.
std::vector<float> rounded_queries(const AttentionCase& c, DType operands) {
  std::vector<float> q = c.q;
  const auto dim = static_cast<std::size_t>(c.spec.head_dim);
  const auto rotate = [&](float* row) {
    const std::vector<double> x(row, row + dim);
    for (std::size_t d = 0; d < dim; ++d) {
      double sum = 0.0;
      for (std::size_t i = 0; i < dim; ++i) sum += std::popcount(i & d) % 2 == 0 ? x[i] : -x[i];
      row[d] = static_cast<float>(sum / std::sqrt(static_cast<double>(dim)));
    }
  };
  const bool rotated = c.pool.rotated != 0 && operands != DType::kF32;
  for (std::size_t row = 0; row < q.size(); row += dim) {
    if (rotated) rotate(q.data() + row);
    for (std::size_t d = 0; d < dim; ++d) q[row + d] = rounded(q[row + d], operands);
    if (rotated) rotate(q.data() + row);
  }
  return q;
}

template <typename Real>
OracleResult attend(const AttentionCase& c, const OracleVariant& variant, DType operands) {
  const std::vector<float> q = rounded_queries(c, operands);
  const auto operand = [&](Real x) { return static_cast<Real>(rounded(x, operands)); };
  constexpr Real kMinusInf = -std::numeric_limits<Real>::infinity();
  const int heads = c.num_qo_heads();
  const int dim = c.spec.head_dim;
  OracleResult result;
  result.out.assign(static_cast<std::size_t>(c.num_rows) * heads * dim, 0.0);
  result.lse.assign(static_cast<std::size_t>(c.num_rows) * heads,
                    variant.sigmoid ? 0.0 : static_cast<double>(kMinusInf));
  int first_row = 0;
  for (int r = 0; r < c.num_requests(); ++r) {
    const int len = c.spec.kv_lens[r];
    for (int kv_head = 0; kv_head < c.spec.kv_heads; ++kv_head) {
      std::vector<Real> k(static_cast<std::size_t>(len) * dim), v(k.size());
      for (int t = 0; t < len; ++t) {
        for (int d = 0; d < dim; ++d) {
          k[static_cast<std::size_t>(t) * dim + d] = static_cast<Real>(c.element(true, r, t, kv_head, d));
          v[static_cast<std::size_t>(t) * dim + d] = static_cast<Real>(c.element(false, r, t, kv_head, d));
        }
      }
      std::vector<Real> weights(len), sums(dim);
      for (int i = 0; i < c.spec.q_lens[r]; ++i) {
        const int q_pos = len - c.spec.q_lens[r] + i;
        for (int g = 0; g < c.spec.group; ++g) {
          const int head = kv_head * c.spec.group + g;
          const std::size_t row = static_cast<std::size_t>(first_row + i) * heads + head;
          Real max = variant.sinks.empty() ? kMinusInf : static_cast<Real>(variant.sinks[head]);
          for (int t = 0; t < len; ++t) {
            weights[t] = kMinusInf;
            if (!c.sees(r, i, t, kv_head)) continue;
            Real dot = 0;
            for (int d = 0; d < dim; ++d) {
              dot += static_cast<Real>(q[row * dim + d]) * k[static_cast<std::size_t>(t) * dim + d];
            }
            weights[t] = logit_of<Real>(variant, dot * static_cast<Real>(variant.sm_scale), q_pos, t, head);
            max = std::max(max, weights[t]);
          }
          std::fill(sums.begin(), sums.end(), Real{0});
          Real total = variant.sinks.empty() ? Real{0} : std::exp(static_cast<Real>(variant.sinks[head]) - max);
          bool any = false;
          for (int t = 0; t < len; ++t) {
            if (!c.sees(r, i, t, kv_head)) continue;
            any = true;
            const Real weight = variant.sigmoid
                                    ? 1 / (1 + std::exp(-(weights[t] + static_cast<Real>(variant.sigmoid_bias))))
                                    : std::exp(weights[t] - max);
            total += weight;
            const Real factor = operand(weight);
            for (int d = 0; d < dim; ++d) sums[d] += factor * v[static_cast<std::size_t>(t) * dim + d];
          }
          if (variant.sigmoid) total = 1;
          if (any) {
            for (int d = 0; d < dim; ++d) result.out[row * dim + d] = static_cast<double>(sums[d] / total);
          }
          if (!variant.sigmoid && total != 0) {  // NaN too
            result.lse[row] = static_cast<double>(max / static_cast<Real>(std::log(2.0)) + std::log2(total));
          }
        }
      }
    }
    first_row += c.spec.q_lens[r];
  }
  return result;
}

}  // namespace

OracleResult oracle_attention(const AttentionCase& c, const OracleVariant& variant) {
  return attend<double>(c, variant, DType::kF32);
}

OracleResult float_attention(const AttentionCase& c, const OracleVariant& variant, DType out_dtype,
                             bool rounded_products) {
  const DType products = out_dtype == DType::kF16 ? DType::kF16 : DType::kBF16;
  OracleResult result = attend<float>(c, variant, rounded_products ? products : DType::kF32);
  for (double& x : result.out) x = rounded(x, out_dtype);
  return result;
}

ErrorNorms error_norms(const std::vector<double>& truth, const std::vector<double>& actual) {
  ErrorNorms norms;
  double squares = 0.0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    // Equal infinities are no error; a NaN on either side alone is an infinite one.
    const bool both_nan = std::isnan(truth[i]) && std::isnan(actual[i]);
    double error = truth[i] == actual[i] || both_nan ? 0.0 : std::abs(truth[i] - actual[i]);
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    if (error > norms.max) {
      norms.max = error;
      norms.worst = i;
    }
    squares += error * error;
  }
  norms.rms = truth.empty() ? 0.0 : std::sqrt(squares / static_cast<double>(truth.size()));
  return norms;
}

std::string check_error_bar(const std::vector<double>& truth, const std::vector<double>& reference,
                            const std::vector<double>& actual) {
  std::ostringstream s;
  if (truth.size() != actual.size() || truth.size() != reference.size()) {
    s << actual.size() << " results for " << truth.size() << " expected";
    return s.str();
  }
  double largest = 0.0;
  for (const double x : truth) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  const double unit = largest * std::ldexp(1.0, -23);
  const ErrorNorms cost = error_norms(truth, reference);
  const ErrorNorms error = error_norms(truth, actual);
  if (error.max > std::max(2.0 * cost.max, unit)) {
    s << "largest error " << error.max << " at " << error.worst << " (" << actual[error.worst] << " for "
      << truth[error.worst] << ", the reference has " << reference[error.worst] - truth[error.worst]
      << " there), allowed " << std::max(2.0 * cost.max, unit) << "; ";
  }
  if (error.rms > std::max(1.25 * cost.rms, unit)) {
    s << "RMS error " << error.rms << ", allowed " << std::max(1.25 * cost.rms, unit);
  }
  return s.str();
}

void ErrorPool::add(const std::vector<double>& truth, const std::vector<double>& reference,
                    const std::vector<double>& actual) {
  truth_.insert(truth_.end(), truth.begin(), truth.end());
  reference_.insert(reference_.end(), reference.begin(), reference.end());
  actual_.insert(actual_.end(), actual.begin(), actual.end());
}

}  // namespace fovea::testing
