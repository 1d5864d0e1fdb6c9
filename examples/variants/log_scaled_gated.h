// Sharper queries far from the start, gated heads: queries beyond the trained length are scaled by a ratio of
// logarithms, and every head's output has a gate.
// Parameters: `trained_tokens` int, `floor` float, `gates` float tensor.
struct LogScaledGated : Plain {
  static float query(const Params& p, const float* row, int d, const RowPlace& at) {
    const float ratio = logf(static_cast<float>(at.position + 1)) / logf(static_cast<float>(p.trained_tokens));
    return row[d] * (ratio > p.floor ? ratio : p.floor);
  }
  static float output(const Params& p, float o, int, const RowPlace& at) { return o * p.gates[at.head]; }
};
