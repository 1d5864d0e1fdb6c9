// Fused RoPE: the cache holds keys as they were before rotation. With positions in the cache instead of positions in
// the text this is StreamingLLM (arXiv:2309.17453, section 3.2): a run's `position_base` says where it stands.
// Parameters: `inv_freq` float tensor.
struct FusedRope : Plain {
  // NeoX halves: element d turns with element d +- head_dim / 2.
  static float rotated(const Params& p, const float* row, int d, const RowPlace& at) {
    const int half = at.head_dim / 2;
    const int pair = d < half ? d : d - half;
    const float angle = static_cast<float>(at.position) * p.inv_freq[pair];
    const float other = d < half ? -row[d + half] : row[pair];
    return row[d] * cosf(angle) + other * sinf(angle);
  }
  static float query(const Params& p, const float* row, int d, const RowPlace& at) { return rotated(p, row, d, at); }
  static float key(const Params& p, const float* row, int d, const RowPlace& at) { return rotated(p, row, d, at); }
};
