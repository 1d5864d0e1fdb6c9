// The shipped attention variants and the base that a new one derives from: one source for the CPU's SIMD kernels and
// for device code. Not included by itself: variant/variant.h gives it to scalar and device code as fovea::variant,
// cpu/attention/executor_inl.h to each SIMD target in a namespace of its own, because a function compiled for one
// instruction set cannot be inlined into another. An executor calls the hooks in this order:
//   query(row), key(row), value(row)    change one element, seeing the whole stored row
//   logit(s)                            s = sm_scale * q.k, natural units
//   visible(place)                      further masking, besides the plan's own mask
//   softmax, or weight(s) where kSoftmax is false; outputs are sums then and merge by addition
//   extra_logit(head)                   once a row, when all parts are merged: weight without a value (a sink)
//   output(o)                           once an element, after the merge
// Hooks on logits are templates over the number type `M::F`, a float on a device and a SIMD vector on the CPU; `M` has
// the functions that operators lack: set, exp2, tanh, rcp, max, less, always. Compiles under g++ and NVRTC.
#if !defined(FOVEA_VARIANT_NAMESPACE)
#error "include variant/variant.h"
#endif

namespace FOVEA_VARIANT_NAMESPACE {

inline constexpr float kLog2e = 1.4426950408889634f;

// Where a logit stands. Positions are exact in float up to 2^24.
template <class F>
struct LogitPlace {
  F q_pos;
  F kv_pos;
  int q_head;
  int kv_head;
};

// Where an element of a row stands.
struct RowPlace {
  int position;  // of the token in its request
  int head;      // query head for query and output, KV head for key and value
  int head_dim;
};

// What the hooks of a variant take: its own Params, derived from AttentionParams, where it declares them.
template <class Variant>
struct ParamsOf {
  using Type = AttentionParams;
};
template <class Variant>
requires requires { typename Variant::Params; }
struct ParamsOf<Variant> {
  using Type = typename Variant::Params;
};
template <class Variant>
const typename ParamsOf<Variant>::Type& params_of(const AttentionParams& params) {
  return static_cast<const typename ParamsOf<Variant>::Type&>(params);
}

// Whether a hook is the one that Plain has: tells generated code which hooks a user wrote.
template <class A, class B>
constexpr bool same_hook(A, B) {
  return false;
}
template <class A>
constexpr bool same_hook(A a, A b) {
  return a == b;
}

struct Plain {
  static constexpr bool kSoftmax = true;
  static constexpr bool kHasLogit = false;    // logit() is not the identity
  static constexpr bool kHasVisible = false;  // visible() may say no
  static constexpr bool kHasQuery = false;
  static constexpr bool kHasKey = false;
  static constexpr bool kHasValue = false;
  static constexpr bool kHasExtraLogit = false;
  static constexpr bool kHasOutput = false;

  template <class M>
  static typename M::F logit(const AttentionParams&, typename M::F s, const LogitPlace<typename M::F>&) {
    return s;
  }
  template <class M>
  static typename M::B visible(const AttentionParams&, const LogitPlace<typename M::F>&) {
    return M::always();
  }
  // Only without softmax: what multiplies the value.
  template <class M>
  static typename M::F weight(const AttentionParams&, typename M::F s) {
    return s;
  }
  static float query(const AttentionParams&, const float* row, int d, const RowPlace&) { return row[d]; }
  static float key(const AttentionParams&, const float* row, int d, const RowPlace&) { return row[d]; }
  static float value(const AttentionParams&, const float* row, int d, const RowPlace&) { return row[d]; }
  static float extra_logit(const AttentionParams&, int) { return 0.0f; }
  static float output(const AttentionParams&, float o, int, const RowPlace&) { return o; }
};

// Gemma 2 (arXiv:2408.00118, section 2): logits stay within +-softcap.
struct Softcap : Plain {
  static constexpr bool kHasLogit = true;
  template <class M>
  static typename M::F logit(const AttentionParams& p, typename M::F s, const LogitPlace<typename M::F>&) {
    return M::set(p.softcap) * M::tanh(s * M::rcp(M::set(p.softcap)));
  }
};

// Learned sink logits in the denominator (gpt-oss; StreamingLLM, arXiv:2309.17453, "softmax off by one" with a learned
// logit).
template <class Base>
struct WithSinks : Base {
  static constexpr bool kHasExtraLogit = true;
  static float extra_logit(const AttentionParams& p, int head) { return p.sinks[head]; }
};
using Sinks = WithSinks<Plain>;
using SoftcapSinks = WithSinks<Softcap>;

// ALiBi (arXiv:2108.12409): a slope a head times the distance, which is never positive under a causal mask.
struct Alibi : Plain {
  static constexpr bool kHasLogit = true;
  template <class M>
  static typename M::F logit(const AttentionParams& p, typename M::F s, const LogitPlace<typename M::F>& at) {
    return s + M::set(p.alibi_slopes[at.q_head]) * (at.kv_pos - at.q_pos);
  }
};

// Sigmoid attention (arXiv:2409.04431): no softmax, so parts merge by addition and there is no log-sum-exp.
struct Sigmoid : Plain {
  static constexpr bool kSoftmax = false;
  template <class M>
  static typename M::F weight(const AttentionParams& p, typename M::F s) {
    return M::rcp(M::set(1.0f) + M::exp2(M::set(-kLog2e) * (s + M::set(p.sigmoid_bias))));
  }
};

}  // namespace FOVEA_VARIANT_NAMESPACE
