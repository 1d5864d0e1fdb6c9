// Scales of channels: keys and values stored with one scale a channel, as some quantizers leave them.
// Parameters: `k_scale` float tensor, `v_scale` float tensor.
struct ChannelScales : Plain {
  static float key(const Params& p, const float* row, int d, const RowPlace& at) {
    return row[d] * p.k_scale[at.head * at.head_dim + d];
  }
  static float value(const Params& p, const float* row, int d, const RowPlace& at) {
    return row[d] * p.v_scale[at.head * at.head_dim + d];
  }
};
