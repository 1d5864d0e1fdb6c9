// Learned codes against sums over the same numbers, in the order in which they were made up: keys stand in pages of
// their own order and format, in pools of heads that stream and of those that do not.
#include "engine/runner/key_profiler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/file.h"
#include "base/half.h"
#include "base/random.h"
#include "engine/model/kv_grouping.h"

namespace fovea {
namespace {

constexpr std::int32_t kLayers = 2, kHeads = 3, kGroup = 2, kDim = 40, kPage = 16, kPages = 12;

class TwoLayers final : public Model {
 public:
  explicit TwoLayers(std::int32_t head_dim = kDim) {
    config_.num_layers = kLayers;
    config_.num_qo_heads = kHeads * kGroup;
    config_.num_kv_heads = kHeads;
    config_.head_dim = head_dim;
    config_.layer_window = {0, 0};
    HeadProfile profile;
    profile.streaming = {{1, 2}};  // so that the layers' pools differ
    layout_ = make_kv_grouping(config_, {0, kHeads}, &profile);
  }
  const ModelConfig& config() const override { return config_; }
  const std::vector<KvGroupSpec>& kv_groups() const override { return layout_.groups; }
  const std::vector<AttentionGroupSpec>& attention_groups() const override { return layout_.attention; }
  AttentionOptions attention_options(std::size_t) const override { return {}; }
  Status forward(const ForwardBatch&, const TensorView&) override { return ok_status(); }
  std::size_t weight_bytes() const override { return 0; }
  const KvGrouping& layout() const { return layout_; }

 private:
  ModelConfig config_;
  KvGrouping layout_;
};

// A pool of some heads of a layer: [page, head, token, dim] in 16 bits or fp32, NaN where nothing was written.
struct Pool {
  Pool(HeadRange range, DType type) : heads(range), dtype(type) {
    const std::size_t count = static_cast<std::size_t>(kPages) * heads_here() * kPage * kDim;
    memory.assign(count * (type == DType::kF32 ? 4 : 2), std::byte{0xff});
  }
  std::size_t heads_here() const { return static_cast<std::size_t>(heads.head_end - heads.head_begin); }
  abi::KvPoolView view() {
    abi::KvPoolView pool{};
    pool.k = memory.data();
    pool.v = nullptr;
    pool.dtype = static_cast<abi::KvDType>(dtype);
    pool.token_stride = kDim;
    pool.head_stride = std::int64_t{kPage} * kDim;
    pool.page_stride = static_cast<std::int64_t>(heads_here()) * kPage * kDim;
    pool.num_pages = kPages;
    pool.page_tokens = kPage;
    return abi::shift_heads(pool, heads.head_begin);
  }
  void write(std::int32_t slot, std::int32_t head, std::int32_t channel, float value) {
    const std::size_t page = static_cast<std::size_t>(slot / kPage) * heads_here();
    const std::size_t at =
        ((page + static_cast<std::size_t>(head - heads.head_begin)) * kPage + static_cast<std::size_t>(slot % kPage)) *
            kDim +
        static_cast<std::size_t>(channel);
    const auto half = dtype == DType::kBF16 ? float_to_bf16(value) : float_to_f16(value);
    if (dtype == DType::kF32) {
      std::memcpy(memory.data() + at * 4, &value, 4);
    } else {
      std::memcpy(memory.data() + at * 2, &half, 2);
    }
  }

  HeadRange heads;
  DType dtype;
  std::vector<std::byte> memory;
};

struct Sums {
  double key = 0.0, key_square = 0.0, query_square = 0.0;
};

class KeyProfilerTest : public ::testing::TestWithParam<DType> {};

TEST_P(KeyProfilerTest, CodesAreThoseOfAllThatWasRead) {
  const DType dtype = GetParam();
  const TwoLayers model;
  auto device = create_device("cpu", {});
  ASSERT_TRUE(device.ok()) << device.status().message();
  auto profiler = KeyProfiler::create(**device, model);
  ASSERT_TRUE(profiler.ok()) << profiler.status().message();
  EXPECT_EQ((*profiler)->codes().status().code(), StatusCode::kUnavailable);

  PhiloxRng rng(7);
  // Each channel of a head has a place and a width; multiples of 1/8 are exact in every format.
  const auto number = [&](std::int32_t head, std::int32_t channel) {
    const std::int32_t width = 4 + (channel * 7 + head * 3) % 37;
    const auto drawn = static_cast<std::int32_t>(rng.next_below(static_cast<std::uint32_t>(2 * width + 1)));
    return static_cast<float>(drawn - width + channel % 5) / 8.0f;
  };
  std::vector<Sums> sums(static_cast<std::size_t>(kLayers * kHeads * kDim));
  const auto sums_of = [&](std::int32_t layer, std::int32_t head, std::int32_t channel) -> Sums& {
    return sums[static_cast<std::size_t>((layer * kHeads + head) * kDim + channel)];
  };
  std::int64_t tokens = 0;
  // Pages out of order, a page begun in one forward and ended in the next, and two requests.
  const std::vector<std::vector<std::int32_t>> forwards = {{5, 2}, {2, 9, 0}, {11}};
  for (const std::vector<std::int32_t>& pages : forwards) {
    std::vector<std::int32_t> slots;
    for (const std::int32_t page : pages) {
      for (std::int32_t t = page == 2 && pages[0] == 2 ? 9 : 0; t < (page == 2 && pages[0] != 2 ? 9 : kPage); ++t)
        slots.push_back(page * kPage + t);
    }
    const std::vector<std::int32_t> ids(slots.size());
    tokens += static_cast<std::int64_t>(slots.size());
    std::vector<std::vector<Pool>> pools(kLayers);
    std::vector<std::vector<abi::KvPoolView>> views(kLayers);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const auto l = static_cast<std::size_t>(layer);
      for (const HeadRange& range : model.layout().attention[model.layout().attention_of[l]].ranges) {
        Pool& pool = pools[l].emplace_back(range, dtype);
        for (std::int32_t head = range.head_begin; head < range.head_end; ++head) {
          for (const std::int32_t slot : slots) {
            for (std::int32_t c = 0; c < kDim; ++c) {
              const float value = number(head, c);
              pool.write(slot, head, c, value);
              sums_of(layer, head, c).key += static_cast<double>(value);
              sums_of(layer, head, c).key_square += static_cast<double>(value) * static_cast<double>(value);
            }
          }
        }
      }
      for (Pool& pool : pools[l]) views[l].push_back(pool.view());
    }
    ForwardBatch batch;
    batch.tokens = ids;
    batch.slots.assign(model.kv_groups().size(), slots);
    batch.layer_kv = views;
    (*profiler)->begin(batch);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      // Queries stand in rows with K and V behind them.
      constexpr std::int32_t kRow = (kHeads * kGroup + 2 * kHeads) * kDim;
      std::vector<float> qkv(slots.size() * kRow, std::numeric_limits<float>::quiet_NaN());
      for (std::size_t row = 0; row < slots.size(); ++row) {
        for (std::int32_t head = 0; head < kHeads * kGroup; ++head) {
          for (std::int32_t c = 0; c < kDim; ++c) {
            const float value = number(head / kGroup + 1, kDim - 1 - c);
            qkv[row * kRow + static_cast<std::size_t>(head * kDim + c)] = value;
            sums_of(layer, head / kGroup, c).query_square += static_cast<double>(value) * static_cast<double>(value);
          }
        }
      }
      TensorView q = cpu_tensor(qkv.data(), DType::kF32, slots.size(), kHeads * kGroup, kDim);
      q.strides[0] = kRow;
      const Result<bool> attended = (*profiler)->attend(layer, q, {});
      ASSERT_TRUE(attended.ok()) << attended.status().message();
      EXPECT_FALSE(*attended);  // the group's plan serves
    }
  }

  const Result<KeyCodes> codes = (*profiler)->codes();
  ASSERT_TRUE(codes.ok()) << codes.status().message();
  ASSERT_EQ(codes->codes.size(), static_cast<std::size_t>(kLayers * kHeads));
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    for (std::int32_t head = 0; head < kHeads; ++head) {
      const auto mean = [&](std::int32_t c) { return sums_of(layer, head, c).key / static_cast<double>(tokens); };
      const auto deviation = [&](std::int32_t c) {
        return std::sqrt(sums_of(layer, head, c).key_square / static_cast<double>(tokens) - mean(c) * mean(c));
      };
      std::vector<std::int32_t> order(kDim);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return std::sqrt(sums_of(layer, head, a).query_square) * deviation(a) >
               std::sqrt(sums_of(layer, head, b).query_square) * deviation(b);
      });
      const abi::KeyCode& code = codes->of_layer(layer)[head];
      for (std::size_t i = 0; i < static_cast<std::size_t>(abi::kCodeChannels); ++i) {
        ASSERT_EQ(code.channel[i], order[i]) << "layer " << layer << " head " << head << " place " << i;
        EXPECT_NEAR(code.mean[i], mean(order[i]), 1e-5);
        EXPECT_NEAR(code.step[i], 0.335 * deviation(order[i]), 1e-5);
      }
    }
  }

  // And they survive their file.
  const std::string file = ::testing::TempDir() + "key_profiler_test.json";
  ASSERT_TRUE(write_file_atomic(file, to_json(*codes, "a \"model\"")).ok());
  const Result<KeyCodes> read = read_key_codes(file, model.config());
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->codes.size(), codes->codes.size());
  for (std::size_t i = 0; i < read->codes.size(); ++i) {
    for (std::size_t c = 0; c < static_cast<std::size_t>(abi::kCodeChannels); ++c) {
      EXPECT_EQ(read->codes[i].channel[c], codes->codes[i].channel[c]);
      EXPECT_NEAR(read->codes[i].mean[c], codes->codes[i].mean[c], 1e-4);
      EXPECT_NEAR(read->codes[i].step[c], codes->codes[i].step[c], 1e-4);
    }
  }
}

TEST(KeyCodes, AFileThatNamesAChannelTwiceOrHalfIsRefused) {
  const TwoLayers model;
  KeyCodes codes;
  codes.num_kv_heads = kHeads;
  abi::KeyCode code{};
  for (std::uint8_t i = 0; i < abi::kCodeChannels; ++i) {
    code.channel[i] = i;
    code.step[i] = 1.0f;
  }
  codes.codes.assign(kLayers * kHeads, code);
  const std::string file = ::testing::TempDir() + "key_codes_test.json", text = to_json(codes, "m");
  const auto read = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    EXPECT_TRUE(write_file_atomic(file, changed).ok());
    return read_key_codes(file, model.config()).status();
  };
  EXPECT_TRUE(read("[0, 1", "[0, 1").ok());
  for (const char* wrong : {"[1, 1", "[0.5, 1", "[-1, 1", "[40, 1"}) {
    const Status status = read("[0, 1", wrong);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << wrong;
    EXPECT_NE(status.message().find("layer 0, KV head 0: \"channels\""), std::string::npos) << status.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, KeyProfilerTest, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST(KeyProfiler, RefusesHeadsOfFewerChannels) {
  const TwoLayers model(16);
  auto device = create_device("cpu", {});
  ASSERT_TRUE(device.ok());
  const auto profiler = KeyProfiler::create(**device, model);
  EXPECT_EQ(profiler.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(profiler.status().message().find("16"), std::string::npos);
}

}  // namespace
}  // namespace fovea
