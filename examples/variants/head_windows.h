// A window for each head, a mask that the plan cannot know.
// Parameters: `window` int tensor.
struct HeadWindows : Plain {
  template <class M>
  static typename M::B visible(const Params& p, const LogitPlace<typename M::F>& at) {
    return M::less(at.q_pos - at.kv_pos, M::set(static_cast<float>(p.window[at.q_head])));
  }
};
