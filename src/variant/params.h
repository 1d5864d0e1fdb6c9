// What a variant reads besides the logit, and the names of the shipped variants. Filled by backends from a model's
// configuration, read by every attention executor. Compiles under g++ and NVRTC.
#pragma once

#include "abi/plan.h"

namespace fovea {

// What the products of queries and keys, and of weights and values, are computed from. Sums are fp32 in both.
enum class AttentionProducts : uint8_t {
  kF32 = 0,   // queries and weights as they are
  kBF16 = 1,  // over bf16 pools, queries and weights may be rounded to bf16 where the hardware multiplies those faster;
              // a row's bits may then depend on how many rows share its tile
};

// Parameters of all shipped variants. Head means query head, 0 .. num_qo_heads.
struct AttentionParams {
  float sm_scale = 1.0f;                // multiplies q.k before any transform
  float softcap = 0.0f;                 // Softcap: logits become softcap * tanh(logit / softcap); > 0
  const float* sinks = nullptr;         // Sinks: [num_qo_heads] logits that take weight and give no value
  const float* alibi_slopes = nullptr;  // Alibi: [num_qo_heads]
  float sigmoid_bias = 0.0f;            // Sigmoid: added to the logit
  AttentionProducts products = AttentionProducts::kF32;
};

enum class VariantId : uint8_t {
  kPlain = 0,
  kSoftcap = 1,
  kSinks = 2,
  kSoftcapSinks = 3,
  kAlibi = 4,
  kSigmoid = 5,
};
inline constexpr int kNumVariants = 6;

constexpr const char* variant_name(VariantId id) {
  switch (id) {
    case VariantId::kPlain: return "plain";
    case VariantId::kSoftcap: return "softcap";
    case VariantId::kSinks: return "sinks";
    case VariantId::kSoftcapSinks: return "softcap+sinks";
    case VariantId::kAlibi: return "alibi";
    case VariantId::kSigmoid: return "sigmoid";
  }
  return "?";
}

}  // namespace fovea
