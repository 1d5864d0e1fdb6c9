// Steps of decode over long contexts on a GPU whose queries read selected pages, with heads that stream among them:
// captured steps give the bits of enqueued ones, and their times stand beside those of dense attention. The model's
// weights and what is in its pages are random; contexts are there without being computed. Run by `make gpu-test`.
// FOVEA_TEST_LAYERS: layers of a Llama-3.1-8B (2), FOVEA_TEST_CONTEXT: tokens of a context (20000), FOVEA_TEST_BATCHES.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/random.h"
#include "base/status.h"
#include "engine/model/head_profile.h"
#include "engine/runner/model_runner.h"

namespace fovea {
namespace {

std::int32_t number_from(const char* name, std::int32_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

const std::int32_t kLayers = number_from("FOVEA_TEST_LAYERS", 2);
const std::int32_t kContext = number_from("FOVEA_TEST_CONTEXT", 20000);
constexpr std::int32_t kKvHeads = 8, kHeadDim = 128, kSteps = 14, kRoom = 64;

std::string llama_8b() {
  return "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 4096, "
         "\"intermediate_size\": 14336, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 128, "
         "\"num_hidden_layers\": " +
         std::to_string(kLayers) +
         ", \"vocab_size\": 128256, \"max_position_embeddings\": 262144, \"rms_norm_eps\": 1e-5, \"rope_theta\": "
         "500000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}";
}

struct Setting {
  const char* name;
  DType kv = DType::kF8E4M3;
  bool selects = false;
  std::int32_t interval = 1;
  bool repeats = true;
};

class SelectionGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = create_device("cuda:0", {});
    if (device.status().code() == StatusCode::kUnavailable) GTEST_SKIP() << device.status().to_string();
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    device_ = std::move(*device);
    path_ = std::filesystem::temp_directory_path() / ("fovea_long_" + std::to_string(getpid()) + "_config.json");
    std::ofstream(path_) << llama_8b();
    // Finite in every format that reads them: bytes below 0x40, sign and exponent of bf16 and f16 numbers near 1.
    PhiloxRng rng(5);
    std::vector<std::uint16_t> block(1 << 21);
    for (std::uint16_t& word : block) {
      const auto bits = static_cast<std::uint16_t>(rng.next_below(1 << 16));
      word = static_cast<std::uint16_t>(0x3e00u | (bits & 0x813fu));
    }
    const auto held = device_->hold(cpu_tensor(block.data(), DType::kF32, block.size() / 2));
    ASSERT_TRUE(held.ok()) << held.status().to_string();
    block_ = *held;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Status load(bool half_streams) {
    ModelLoadOptions load;
    load.format = LoadFormat::kDummy;
    load.max_forward_tokens = 256;
    load.max_logit_rows = 64;
    if (half_streams) {
      HeadProfile profile{"test", 64, 256, 0, {}};
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        for (std::int32_t head = 0; head < kKvHeads / 2; ++head) profile.streaming.push_back({layer, head});
      }
      load.streaming = profile;
    }
    model_.reset();
    FOVEA_ASSIGN_OR_RETURN(model_, load_model(path_, *device_, load));
    return ok_status();
  }

  Status fill(void* to, std::size_t bytes) {
    std::size_t done = std::min<std::size_t>(bytes, static_cast<std::size_t>(block_.num_elements()) * 4);
    FOVEA_RETURN_IF_ERROR(device_->copy(to, block_.data, done));
    while (done < bytes) {
      const std::size_t next = std::min(done, bytes - done);
      FOVEA_RETURN_IF_ERROR(device_->copy(static_cast<std::byte*>(to) + done, to, next));
      done += next;
    }
    return ok_status();
  }

  // Logits of every step, and ms of the steps in *times.
  Result<std::vector<std::vector<float>>> decode(const Setting& setting, std::int32_t batch,
                                                 std::vector<double>* times) {
    const std::vector<KvGroupSpec>& groups = model_->kv_groups();
    const std::int32_t pages_each = (kContext + kRoom + 15) / 16;
    KvPoolOptions pool_options;
    pool_options.format = {setting.kv, false};
    pool_options.max_running = batch;
    pool_options.max_forward_tokens = 256;
    std::int64_t token_bytes = 0;
    for (const KvGroupSpec& group : groups) {
      if (group.window_tokens > 0) {
        pool_options.bytes += std::int64_t{1} << 28;
        continue;
      }
      for (std::size_t i = 0; i < group.layers.size(); ++i) {
        token_bytes += group.heads_of(i) * kv_token_bytes(pool_options.format, kHeadDim);
      }
    }
    pool_options.bytes += (std::int64_t{batch} * pages_each + 2) * 16 * token_bytes;
    FOVEA_ASSIGN_OR_RETURN(std::unique_ptr<KvPool> pool,
                           KvPool::create(*device_, groups, model_->attention_groups(), pool_options));
    ReqToTokenPool rows(batch, static_cast<std::int32_t>(groups.size()), pages_each);
    ModelRunnerOptions options;
    options.max_requests = batch;
    options.max_forward_tokens = 256;
    options.max_logit_rows = 64;
    options.kv_format = pool_options.format;
    options.repeats_steps = setting.repeats;
    if (setting.selects) {
      SelectionOptions& s = options.selection.emplace();
      s.stat = abi::StatKind::kCodes;
      s.reuse = {setting.interval, 4};
      s.list_units = 4096 / 16;
      s.rotary_dim = kHeadDim;
      for (std::int32_t layer = 0; layer < kLayers; ++layer) s.layers.push_back(layer);
      PhiloxRng rng(7);
      s.codes.num_kv_heads = kKvHeads;
      s.codes.codes.resize(static_cast<std::size_t>(kLayers * kKvHeads));
      for (abi::KeyCode& code : s.codes.codes) {
        for (std::int32_t i = 0; i < abi::kCodeChannels; ++i) {
          code.channel[i] = static_cast<std::uint8_t>(4 * i + 3);
          code.mean[i] = 0.1f * rng.next_normal();
          code.step[i] = 0.3f;
        }
      }
    }
    FOVEA_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner,
                           ModelRunner::create(*device_, *model_, *pool, rows, options));
    for (std::size_t layer = 0; layer < pool->layer_views().size(); ++layer) {
      for (std::size_t range = 0; range < pool->layer_views()[layer].size(); ++range) {
        const HeadRange& heads = model_->attention_groups()[0].ranges[range];
        const abi::KvPoolView view = abi::shift_heads(pool->layer_views()[layer][range], -heads.head_begin);
        const auto bytes = static_cast<std::size_t>(view.page_stride) * static_cast<std::size_t>(view.num_pages) *
                           static_cast<std::size_t>(dtype_bits(static_cast<DType>(view.dtype))) / 8;
        FOVEA_RETURN_IF_ERROR(fill(view.k, bytes));
        FOVEA_RETURN_IF_ERROR(fill(view.v, bytes));
        if (view.granularity == abi::ScaleGranularity::kTokenHead) {
          const auto scales = static_cast<std::size_t>(view.scale_page_stride) *
                              static_cast<std::size_t>(view.num_pages) * sizeof(abi::KvScale);
          FOVEA_RETURN_IF_ERROR(fill(const_cast<void*>(static_cast<const void*>(view.k_scale)), scales));
          FOVEA_RETURN_IF_ERROR(fill(const_cast<void*>(static_cast<const void*>(view.v_scale)), scales));
        }
        if (runner->selection() == nullptr) continue;
        const abi::PageStatsView stats = runner->selection()->statistics(static_cast<std::int32_t>(layer), range);
        if (stats.data == nullptr) continue;
        FOVEA_RETURN_IF_ERROR(fill(stats.data, static_cast<std::size_t>(stats.page_stride * stats.num_pages)));
      }
    }
    static const SelectPolicy* const policy = *find_select_policy("fovea");
    std::vector<Sequence> sequences(static_cast<std::size_t>(batch));
    PhiloxRng rng(11);
    for (std::int32_t r = 0; r < batch; ++r) {
      Sequence& sequence = sequences[static_cast<std::size_t>(r)];
      sequence.id = sequence.arrival = static_cast<std::uint64_t>(r) + 1;
      sequence.slot = rows.allocate();
      sequence.prompt_length = kContext - 8;
      sequence.greedy = setting.repeats && times != nullptr;
      for (std::int32_t t = 0; t < kContext + kSteps; ++t) {
        sequence.tokens.push_back(static_cast<std::int32_t>(rng.next_below(128256)));
      }
      if (setting.selects) {
        sequence.sparse.policy = policy;
        sequence.sparse.budget = {4096, 0};
        sequence.sparse.phase = static_cast<std::uint64_t>(r);
        sequence.sparse.first_position = sequence.prompt_length;
      }
    }
    for (std::int32_t p = 0; p < pages_each; ++p) {
      for (Sequence& sequence : sequences) {
        for (std::size_t g = 0; g < groups.size(); ++g) {
          const KvGroupSpec& group = groups[g];
          const bool kept =
              group.window_tokens == 0 || p * 16 < group.sink_tokens || (p + 2) * 16 > kContext - group.window_tokens;
          rows.push(sequence.slot, static_cast<std::int32_t>(g), kept ? pool->pages(g).allocate() : 0);
        }
      }
    }
    std::vector<std::vector<float>> logits;
    for (std::int32_t i = 0; i < kSteps; ++i) {
      Step step;
      for (Sequence& sequence : sequences) {
        StepItem item;
        item.sequence = &sequence;
        item.begin = kContext + i;
        item.count = 1;
        item.sample = true;
        step.items.push_back(item);
      }
      step.num_tokens = batch;
      const auto begin = std::chrono::steady_clock::now();
      FOVEA_RETURN_IF_ERROR(runner->run(step));
      if (times != nullptr) {
        times->push_back(1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        continue;
      }
      std::vector<float>& all = logits.emplace_back();
      for (std::int32_t r = 0; r < batch; ++r) {
        const std::span<const float> row = runner->logits(static_cast<std::size_t>(r));
        all.insert(all.end(), row.begin(), row.end());
      }
    }
    if (setting.selects) {
      const SelectionCounts counts = runner->selection_counts();
      const bool half = model_->kv_groups().size() > 1;
      const auto lists = static_cast<std::uint64_t>(kLayers) * (half ? kKvHeads / 2 : kKvHeads) * kSteps *
                         static_cast<std::uint64_t>(batch);
      EXPECT_EQ(counts.queries, lists) << setting.name;
      EXPECT_EQ(counts.pages_read, lists * 256) << setting.name;
      EXPECT_EQ(counts.rescorings > 0, setting.interval > 1) << setting.name;
    }
    return logits;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Model> model_;
  std::filesystem::path path_;
  TensorView block_;
};

TEST_F(SelectionGpuTest, CapturedStepsHaveTheBitsOfEnqueuedOnes) {
  for (const bool half : {false, true}) {
    const Status loaded = load(half);
    ASSERT_TRUE(loaded.ok()) << loaded.to_string();
    for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
      for (const std::int32_t interval : {1, 4}) {
        for (const std::int32_t batch : {1, 3}) {
          const auto captured = decode({"captured", kv, true, interval, true}, batch, nullptr);
          const auto enqueued = decode({"enqueued", kv, true, interval, false}, batch, nullptr);
          ASSERT_TRUE(captured.ok()) << captured.status().to_string();
          ASSERT_TRUE(enqueued.ok()) << enqueued.status().to_string();
          int equal = 0;
          for (std::int32_t i = 0; i < kSteps; ++i) {
            const auto& a = (*captured)[static_cast<std::size_t>(i)];
            const auto& b = (*enqueued)[static_cast<std::size_t>(i)];
            equal += std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0 && std::isfinite(a[0]) ? 1 : 0;
          }
          printf("%s, %s KV, a scan every %d steps, %d requests: %d of %d steps equal\n",
                 half ? "half streams" : "all keep", kv == DType::kBF16 ? "bf16" : "fp8", interval, batch, equal,
                 kSteps);
          EXPECT_EQ(equal, kSteps);
        }
      }
    }
  }
}

TEST_F(SelectionGpuTest, TimesBesideDenseAttention) {
  std::vector<std::int32_t> batches = {1};
  if (const char* const more = std::getenv("FOVEA_TEST_BATCHES")) batches = {1, std::atoi(more)};
  printf("%d layers of an 8B, %d tokens: ms of a step\n", kLayers, kContext);
  for (const bool half : {false, true}) {
    const Status loaded = load(half);
    ASSERT_TRUE(loaded.ok()) << loaded.to_string();
    for (const std::int32_t batch : batches) {
      for (const Setting& setting : {Setting{"dense bf16", DType::kBF16}, Setting{"dense fp8"},
                                     Setting{"4096 selected, fp8", DType::kF8E4M3, true, 1},
                                     Setting{"4096 selected every 4, fp8", DType::kF8E4M3, true, 4}}) {
        if (setting.kv == DType::kBF16 && (batch > 1 || half)) continue;
        std::vector<double> times;
        const auto done = decode(setting, batch, &times);
        ASSERT_TRUE(done.ok()) << done.status().to_string();
        std::vector<double> late(times.begin() + 6, times.end());  // two periods of scans
        const double mean = std::accumulate(late.begin(), late.end(), 0.0) / static_cast<double>(late.size());
        std::sort(late.begin(), late.end());
        printf("  batch %d, %-28s%s: mean %.3f, least %.3f, most %.3f\n", batch, setting.name,
               half ? ", half streams" : "", mean, late.front(), late.back());
      }
    }
  }
}

}  // namespace
}  // namespace fovea
