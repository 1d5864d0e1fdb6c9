// Attention from its definition, slowly: reads the batch, the page table and the mask, never a plan. In double it is
// the truth; in float, rounded once to the output's type, it is the error that the storage types themselves cost.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "fovea/dtype.h"
#include "testing/attention_case.h"

namespace fovea::testing {

// The variant, restated independently of src/variant/. Natural units.
struct OracleVariant {
  double sm_scale = 1.0;
  double softcap = 0.0;             // 0: off
  std::vector<float> sinks;         // [num_qo_heads] or empty
  std::vector<float> alibi_slopes;  // [num_qo_heads] or empty
  bool sigmoid = false;             // weights are sigmoid(logit + sigmoid_bias), no normalization
  double sigmoid_bias = 0.0;
  std::function<double(double logit, int q_pos, int kv_pos, int head)> custom;  // after the above
};

struct OracleResult {
  std::vector<double> out;  // [rows, num_qo_heads, head_dim]
  std::vector<double> lse;  // [rows, num_qo_heads] base 2; 0 for sigmoid
};

OracleResult oracle_attention(const AttentionCase& c, const OracleVariant& variant);
// The same definition computed in fp32, each output rounded once to out_dtype (kF32, kBF16 or kF16). With
// rounded_products, queries and the weights that multiply values are rounded first, to f16 where that is the output's
// type and to bf16 else: what products of such pairs cost.
OracleResult float_attention(const AttentionCase& c, const OracleVariant& variant, DType out_dtype,
                             bool rounded_products = false);

// How far a result is from the truth.
struct ErrorNorms {
  double max = 0.0;
  double rms = 0.0;
  std::size_t worst = 0;  // index of the largest error
};
ErrorNorms error_norms(const std::vector<double>& truth, const std::vector<double>& actual);

// The project's bar: at most 2x the maximum and 1.25x the RMS error of `reference`, which is the fp32 computation
// rounded once. Differences of one fp32 unit in the last place of the largest output always pass, so that exact
// references (one visible token) have room for the order of additions. Empty when it holds, else a description.
std::string check_error_bar(const std::vector<double>& truth, const std::vector<double>& reference,
                            const std::vector<double>& actual);

// The bar over many cases at once. fp32 results need it: all outputs of a row share the error of its few large logits,
// so a case of a dozen rows is a dozen samples, and the largest of so few says little. Results rounded to bf16 are
// judged case by case.
class ErrorPool {
 public:
  void add(const std::vector<double>& truth, const std::vector<double>& reference, const std::vector<double>& actual);
  std::string check() const { return check_error_bar(truth_, reference_, actual_); }

 private:
  std::vector<double> truth_, reference_, actual_;
};

}  // namespace fovea::testing
