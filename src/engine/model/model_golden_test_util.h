// Goldens of tiny random models of every family (tests/goldens/models), and how far logits are from them. Used by the
// tests of the CPU's models and of a GPU's. FOVEA_TEST_GOLDENS names another folder.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/model_test_util.h"
#include "engine/model/safetensors.h"

namespace fovea {

namespace fs = std::filesystem;

inline fs::path goldens_folder() {
  const char* other = std::getenv("FOVEA_TEST_GOLDENS");
  return other != nullptr ? fs::path(other) : fs::path(FOVEA_SOURCE_DIR) / "tests/goldens/models";
}
inline const fs::path kGoldens = goldens_folder();

inline std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kGoldens)) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct Golden {
  std::vector<std::vector<std::int32_t>> sequences;
  std::vector<std::vector<std::int32_t>> decoded;  // greedy tokens
  std::vector<float> logits_fp32, logits_bf16;     // [tokens, vocab]
  std::vector<float> decode_logits;                // [sequence, step, vocab]
  std::int64_t vocab = 0, decode_steps = 0;
};

template <typename T>
std::vector<T> copy_of(const TensorStore& store, const std::string& name) {
  const TensorView view = store.find(name).value();
  const T* data = static_cast<const T*>(view.data);
  return {data, data + view.num_elements()};
}

inline Golden load_golden(const fs::path& folder) {
  auto opened = TensorStore::open(folder / "golden.safetensors");
  EXPECT_TRUE(opened.ok()) << opened.status().to_string();
  const TensorStore store = std::move(*opened);
  Golden golden;
  const auto tokens = copy_of<std::int32_t>(store, "tokens");
  auto at = tokens.begin();
  for (const std::int32_t length : copy_of<std::int32_t>(store, "lengths")) {
    golden.sequences.emplace_back(at, at + length);
    at += length;
  }
  golden.vocab = store.find("logits_fp32").value().shape[1];
  golden.logits_fp32 = copy_of<float>(store, "logits_fp32");
  golden.logits_bf16 = copy_of<float>(store, "logits_bf16");
  golden.decode_logits = copy_of<float>(store, "decode_logits_fp32");
  golden.decode_steps = store.find("decode_tokens").value().shape[1];
  const auto decoded = copy_of<std::int32_t>(store, "decode_tokens");
  for (std::size_t i = 0; i < golden.sequences.size(); ++i) {
    golden.decoded.emplace_back(decoded.begin() + static_cast<std::ptrdiff_t>(i) * golden.decode_steps,
                                decoded.begin() + static_cast<std::ptrdiff_t>(i + 1) * golden.decode_steps);
  }
  return golden;
}

struct Difference {
  double max = 0.0, rms = 0.0;
};

inline Difference difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  Difference d;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double gap = std::abs(double{a[i]} - b[i]);
    d.max = std::isnan(gap) ? INFINITY : std::max(d.max, gap);
    d.rms += gap * gap;
  }
  d.rms = std::sqrt(d.rms / static_cast<double>(a.size()));
  return d;
}

inline double deviation(std::span<const float> values) {
  double sum = 0.0;
  for (const float v : values) sum += double{v} * v;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// Logits of every token, in the golden order. chunk: tokens of one sequence that a forward takes; together: whether
// one forward holds chunks of all sequences.
inline std::vector<float> golden_prefill(ModelHarness& runner, const Golden& golden, int chunk, bool together) {
  std::vector<std::vector<float>> logits(golden.sequences.size());
  std::vector<int> requests(golden.sequences.size());
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i] = runner.add_request();
  std::vector<std::size_t> done(golden.sequences.size());
  for (bool more = true; more;) {
    more = false;
    std::vector<ModelHarness::Piece> pieces;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto& tokens = golden.sequences[i];
      const std::size_t count = std::min<std::size_t>(static_cast<std::size_t>(chunk), tokens.size() - done[i]);
      if (count == 0) continue;
      pieces.push_back({requests[i], std::span(tokens).subspan(done[i], count)});
      done[i] += count;
      more = true;
      if (!together) break;
    }
    if (pieces.empty()) break;
    const auto rows = runner.forward(pieces);
    EXPECT_TRUE(rows.ok()) << rows.status().to_string();
    if (!rows.ok()) return {};
    std::size_t row = 0;
    for (const auto& piece : pieces) {
      auto& to = logits[static_cast<std::size_t>(piece.request - requests[0])];
      const std::size_t count = piece.tokens.size() * static_cast<std::size_t>(golden.vocab);
      to.insert(to.end(), rows->begin() + static_cast<std::ptrdiff_t>(row),
                rows->begin() + static_cast<std::ptrdiff_t>(row + count));
      row += count;
    }
  }
  std::vector<float> all;
  for (const auto& part : logits) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace fovea
