// What each variant of the gallery (examples/variants) must compute: its parameters, and the same restated for the
// oracle. Used by the tests that run the gallery, on the CPU and on a GPU.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "testing/attention_case.h"
#include "testing/attention_oracle.h"

namespace fovea::jit {

inline constexpr int kGalleryKvHeads = 2;
inline constexpr int kGalleryHeads = 8;
inline constexpr int kGalleryHeadDim = 64;

// Logits are restated by a variant of the oracle, rows by changing the case beforehand, the output hook by undoing it.
struct GalleryCase {
  // Parameters.
  float softcap = 0.0f;
  float sigmoid_bias = 0.0f;
  std::vector<float> sinks;
  std::map<std::string, double> numbers;
  std::map<std::string, std::vector<float>> floats;
  std::map<std::string, std::vector<std::int32_t>> ints;
  // What they mean.
  using RowChange = std::function<double(const std::vector<double>& row, int d, int position, int head)>;
  testing::OracleVariant oracle;
  RowChange query, key, value;
  std::function<double(double o, int head)> undo_output;
  bool changes_rows() const { return query || key || value || undo_output; }
};

inline testing::CaseSpec gallery_shape(DType kv_dtype) {
  testing::CaseSpec shape;
  shape.q_lens = {1, 30, 1, 1, 3};
  shape.kv_lens = {180, 150, 5, 190, 64};
  shape.kv_heads = kGalleryKvHeads;
  shape.group = kGalleryHeads / kGalleryKvHeads;
  shape.head_dim = kGalleryHeadDim;
  shape.shared_tokens = 64;
  shape.kv_dtype = kv_dtype;
  return shape;
}

inline std::vector<float> ramp(int size, float first, float step) {
  std::vector<float> values;
  for (int i = 0; i < size; ++i) values.push_back(first + step * static_cast<float>(i));
  return values;
}

// By the name of the struct.
inline std::map<std::string, GalleryCase> gallery_cases() {
  const auto at = [](const auto& values, int i) {
    return double{static_cast<double>(values[static_cast<std::size_t>(i)])};
  };
  const std::vector<float> slopes = ramp(kGalleryHeads, 0.01f, 0.03f);
  std::map<std::string, GalleryCase> all;
  all["SoftCapped"].softcap = 2.0f;
  all["SoftCapped"].oracle.softcap = 2.0;
  all["LinearBias"].floats["slopes"] = all["LinearBias"].oracle.alibi_slopes = slopes;
  all["LearnedSinks"].sinks = all["LearnedSinks"].oracle.sinks = ramp(kGalleryHeads, -1.0f, 0.5f);
  all["SigmoidWeights"].sigmoid_bias = -3.0f;
  all["SigmoidWeights"].oracle.sigmoid = true;
  all["SigmoidWeights"].oracle.sigmoid_bias = -3.0;

  GalleryCase& rope = all["FusedRope"];
  std::vector<float> inv_freq;
  for (int i = 0; i < kGalleryHeadDim / 2; ++i) {
    inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / kGalleryHeadDim));
  }
  rope.floats["inv_freq"] = inv_freq;
  rope.query = rope.key = [at, inv_freq](const std::vector<double>& row, int d, int position, int) {
    const int half = kGalleryHeadDim / 2;
    const double angle = position * at(inv_freq, d % half);
    const double other = d < half ? -at(row, d + half) : at(row, d - half);
    return at(row, d) * std::cos(angle) + other * std::sin(angle);
  };

  GalleryCase& windows = all["HeadWindows"];
  windows.ints["window"] = {3, 10, 30, 60, 100, 150, 1, 1000};
  windows.oracle.custom = [window = windows.ints["window"]](double logit, int q_pos, int kv_pos, int head) {
    return q_pos - kv_pos < window[static_cast<std::size_t>(head)] ? logit : -std::numeric_limits<double>::infinity();
  };

  GalleryCase& channels = all["ChannelScales"];
  channels.floats["k_scale"] = ramp(kGalleryKvHeads * kGalleryHeadDim, 0.5f, 0.01f);
  channels.floats["v_scale"] = ramp(kGalleryKvHeads * kGalleryHeadDim, 1.5f, -0.005f);
  const auto scaled = [at](const std::vector<float>& scale) {
    return [at, scale](const std::vector<double>& row, int d, int, int head) {
      return at(row, d) * at(scale, head * kGalleryHeadDim + d);
    };
  };
  channels.key = scaled(channels.floats["k_scale"]);
  channels.value = scaled(channels.floats["v_scale"]);

  GalleryCase& gated = all["LogScaledGated"];
  gated.numbers = {{"trained_tokens", 64}, {"floor", 0.75}};
  gated.floats["gates"] = slopes;
  gated.query = [at](const std::vector<double>& row, int d, int position, int) {
    return at(row, d) * std::max(0.75, std::log(position + 1.0) / std::log(64.0));
  };
  gated.undo_output = [at, slopes](double o, int head) { return o / at(slopes, head); };
  return all;
}

// The same case with queries, keys and values already changed, its KV stored as kv_dtype (f32, bf16 or f16).
inline testing::AttentionCase changed_case(const testing::AttentionCase& c, const GalleryCase& gallery,
                                           DType kv_dtype) {
  testing::CaseSpec spec = c.spec;
  spec.kv_dtype = kv_dtype;
  testing::AttentionCase changed = testing::make_case(spec);
  std::vector<double> row(kGalleryHeadDim);
  const auto change = [&](const GalleryCase::RowChange& f, int d, int position, int head) {
    return static_cast<float>(f ? f(row, d, position, head) : row[static_cast<std::size_t>(d)]);
  };
  std::size_t q_row = 0;
  for (int r = 0; r < c.num_requests(); ++r) {
    const auto request = static_cast<std::size_t>(r);
    for (int i = 0; i < spec.q_lens[request]; ++i) {
      for (int h = 0; h < kGalleryHeads; ++h, ++q_row) {
        const int position = spec.kv_lens[request] - spec.q_lens[request] + i;
        for (int d = 0; d < kGalleryHeadDim; ++d) {
          row[static_cast<std::size_t>(d)] = c.q[q_row * kGalleryHeadDim + static_cast<std::size_t>(d)];
        }
        for (int d = 0; d < kGalleryHeadDim; ++d) {
          changed.q[q_row * kGalleryHeadDim + static_cast<std::size_t>(d)] = change(gallery.query, d, position, h);
        }
      }
    }
    for (int t = 0; t < spec.kv_lens[request]; ++t) {
      const std::int64_t page =
          c.page_table[request * static_cast<std::size_t>(c.page_table_stride) + t / spec.page_tokens];
      for (int h = 0; h < kGalleryKvHeads; ++h) {
        const std::int64_t first = page * changed.pool.page_stride + t % spec.page_tokens * changed.pool.token_stride +
                                   h * changed.pool.head_stride;
        for (const bool key : {true, false}) {
          std::byte* const to = (key ? changed.k : changed.v).data();
          for (int d = 0; d < kGalleryHeadDim; ++d) row[static_cast<std::size_t>(d)] = c.element(key, r, t, h, d);
          for (int d = 0; d < kGalleryHeadDim; ++d) {
            const float x = change(key ? gallery.key : gallery.value, d, t, h);
            if (kv_dtype == DType::kF32) {
              reinterpret_cast<float*>(to)[first + d] = x;
            } else {
              reinterpret_cast<std::uint16_t*>(to)[first + d] =
                  kv_dtype == DType::kBF16 ? testing::bf16_of(x) : testing::f16_of(x);
            }
          }
        }
      }
    }
  }
  return changed;
}

}  // namespace fovea::jit
