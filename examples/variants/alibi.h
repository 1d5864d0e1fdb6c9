// ALiBi (arXiv:2108.12409): a slope a head times the distance.
// Parameters: `slopes` float tensor.
struct LinearBias : Plain {
  template <class M>
  static typename M::F logit(const Params& p, typename M::F s, const LogitPlace<typename M::F>& at) {
    return s + M::set(p.slopes[at.q_head]) * (at.kv_pos - at.q_pos);
  }
};
