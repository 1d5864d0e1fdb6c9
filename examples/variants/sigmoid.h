// Sigmoid attention (arXiv:2409.04431): no softmax, so parts merge by addition and the log-sum-exp is 0.
struct SigmoidWeights : Plain {
  static constexpr bool kSoftmax = false;
  template <class M>
  static typename M::F weight(const Params& p, typename M::F s) {
    return M::rcp(M::set(1.0f) + M::exp2(M::set(-kLog2e) * (s + M::set(p.sigmoid_bias))));
  }
};
