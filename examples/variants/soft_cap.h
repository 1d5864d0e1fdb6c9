// Soft-cap, as in Gemma 2 (arXiv:2408.00118): logits stay within `softcap`.
struct SoftCapped : Plain {
  template <class M>
  static typename M::F logit(const Params& p, typename M::F s, const LogitPlace<typename M::F>&) {
    return M::set(p.softcap) * M::tanh(s / M::set(p.softcap));
  }
};
