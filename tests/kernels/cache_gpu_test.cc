// The kernels of src/kernels/cache and limits on a GPU: the cases that they also pass on the host, readers that see
// every byte once, and how fast each of them moves its bytes.
#include <cstdio>

#include "base/status.h"
#include "jit/cache_spec.h"
#include "tests/kernels/append_case.h"
#include "tests/kernels/gpu.h"
#include "tests/kernels/merge_case.h"
#include "tests/kernels/move_case.h"

namespace fovea::kernel_test {
namespace {

using cuda::DeviceBuffer;

class AnyGpuTest : public GpuTest {
 protected:
  std::string arch() const { return device_->info().arch(); }

  template <int kHeadDim, KvDType kIn, KvDType kPool, std::uint32_t kVec, bool kRotate>
  void append_cases(int count) {
    const cuda::Function function = kernel(jit::append_source({.arch = arch(),
                                                               .head_dim = kHeadDim,
                                                               .q_dtype = kIn,
                                                               .pool_dtype = kPool,
                                                               .vec = kVec,
                                                               .rotate = kRotate}),
                                           "fovea_append");
    for (int seed = 0; seed < count && !HasFailure(); ++seed, ++cases_) {
      SCOPED_TRACE(seed);
      check_append<kHeadDim, kIn, kPool, kVec, kRotate>(seed, [&](AppendArgs args) {
        enqueue(function, append_ctas(args, kVec, kHeadDim), abi::kAppendThreads, {&args});
        wait();
      });
    }
  }

  template <int kHeadDim, KvDType kIn, KvDType kPool, std::uint32_t kVec, bool kRotated>
  void quantizing_cases(int count) {
    const cuda::Function function = kernel(jit::append_source({.arch = arch(),
                                                               .head_dim = kHeadDim,
                                                               .q_dtype = kIn,
                                                               .pool_dtype = kPool,
                                                               .vec = kVec,
                                                               .token_scales = true,
                                                               .rotated = kRotated}),
                                           "fovea_append");
    for (int seed = 0; seed < count && !HasFailure(); ++seed, ++cases_) {
      SCOPED_TRACE(seed);
      check_quantizing_append<kHeadDim, kIn, kPool, kVec, kRotated>(seed, [&](AppendArgs args) {
        enqueue(function, quantizing_ctas(args), abi::kAppendThreads, {&args});
        wait();
      });
    }
  }

  template <int kHeadDim, KvDType kIn, KvDType kOut, std::uint32_t kVec>
  void merge_cases(int count) {
    const Result<jit::KernelSource> source =
        jit::merge_source({.arch = arch(), .head_dim = kHeadDim, .v_dtype = kIn, .out_dtype = kOut, .vec = kVec});
    const cuda::Function two = kernel(source, "fovea_merge_state"), many = kernel(source, "fovea_merge_states");
    const auto launch = [&](const cuda::Function& function) {
      return [&](MergeArgs args) {
        enqueue(function, merge_ctas(args, kHeadDim, kVec), abi::kMergeThreads, {&args});
        wait();
      };
    };
    for (int seed = 0; seed < count && !HasFailure(); ++seed, cases_ += 2) {
      SCOPED_TRACE(seed);
      check_merge_two<kHeadDim, kIn, kOut, kVec>(seed, launch(two));
      check_merge_many<kHeadDim, kIn, kOut, kVec>(seed, launch(many));
    }
  }

  void TearDown() override {
    if (cases_ > 0) std::printf("%d cases\n", cases_);
    GpuTest::TearDown();
  }

  int cases_ = 0;
};

TEST_F(AnyGpuTest, MovesOfTokens) {
  const cuda::Function function = kernel(jit::move_tokens_source(arch()), "fovea_move_tokens");
  for (std::uint32_t seed = 1; seed <= 200 && !HasFailure(); ++seed, ++cases_) {
    SCOPED_TRACE(seed);
    MoveCase c(seed);
    abi::MoveTokensArgs args = c.args();
    enqueue(function, args.num_planes, abi::kMoveThreads, {&args});
    wait();
    c.check();
  }
}

TEST_F(AnyGpuTest, Append) {
  constexpr int kCases = 100;
  append_cases<128, kBF16, kBF16, 8, false>(kCases);
  append_cases<128, kBF16, kBF16, 8, true>(kCases);
  append_cases<64, kBF16, kBF16, 4, true>(kCases);
  append_cases<96, kBF16, kF16, 2, true>(kCases);
  append_cases<80, kBF16, kF32, 8, true>(kCases);
  append_cases<256, kBF16, kBF16, 1, true>(kCases);
  append_cases<32, kF16, kF16, 8, false>(kCases);
  append_cases<112, kF16, kBF16, 1, true>(kCases);
  append_cases<128, kF32, kBF16, 8, false>(kCases);
  append_cases<48, kF32, kF16, 4, true>(kCases);
  append_cases<64, kF32, kF32, 2, true>(kCases);
}

TEST_F(AnyGpuTest, AppendE4M3) {
  constexpr int kCases = 100;
  append_cases<128, kBF16, kE4M3, 8, false>(kCases);
  append_cases<128, kBF16, kE4M3, 8, true>(kCases);
  append_cases<64, kF16, kE4M3, 4, false>(kCases);
  append_cases<48, kF32, kE4M3, 2, true>(kCases);
  append_cases<32, kBF16, kE4M3, 1, false>(kCases);
}

TEST_F(AnyGpuTest, AppendQuantized) {
  constexpr int kCases = 60;
  quantizing_cases<128, kBF16, KvDType::kI8, 8, false>(kCases);
  quantizing_cases<96, kF16, KvDType::kI4, 2, false>(kCases);
  quantizing_cases<128, kBF16, KvDType::kI8, 8, true>(kCases);
  quantizing_cases<128, kBF16, KvDType::kI4, 8, true>(kCases);
  quantizing_cases<256, kF32, KvDType::kI4, 1, true>(kCases);
  quantizing_cases<128, kBF16, kE4M3, 8, false>(kCases);
  quantizing_cases<48, kF32, kE4M3, 1, false>(kCases);
}

TEST_F(AnyGpuTest, Merge) {
  constexpr int kCases = 100;
  merge_cases<128, kBF16, kBF16, 8>(kCases);
  merge_cases<64, kF16, kF16, 8>(kCases);
  merge_cases<128, kF32, kF32, 4>(kCases);
  merge_cases<80, kBF16, kBF16, 2>(kCases);
  merge_cases<96, kF32, kF32, 8>(kCases);
  merge_cases<256, kF16, kF16, 1>(kCases);
  merge_cases<128, kF32, kBF16, 8>(kCases);
}

// Every reader combines all words of the buffer by xor; a tile skipped or read twice changes the result.
TEST_F(AnyGpuTest, ReadersSeeEveryByteOnce) {
  constexpr std::size_t kBytes = std::size_t{3} << 20;
  std::vector<std::uint32_t> words(kBytes / 4);
  Random random(3);
  std::uint32_t expected = 0;
  for (std::uint32_t& word : words) expected ^= word = static_cast<std::uint32_t>(random());
  const Result<DeviceBuffer> data = DeviceBuffer::create(*device_, kBytes);
  ASSERT_TRUE(data.ok());
  ASSERT_TRUE(cuda::copy_to_device(*device_, data->data(), words.data(), kBytes, stream_.handle()).ok());
  std::vector<jit::ReadKernelSpec> specs = {
      {.threads = 512, .unroll = 8}, {.threads = 256, .unroll = 16, .slabs = true}, {.threads = 1024, .unroll = 4}};
  if (arch() == "sm_90a") specs.push_back({.threads = 256, .stages = 6, .tile_bytes = 16384});
  for (jit::ReadKernelSpec spec : specs) {
    spec.arch = arch();
    const bool bulk = spec.stages > 0;
    const cuda::Function function = kernel(jit::read_source(spec), bulk ? "fovea_read_bulk" : "fovea_read_loads");
    const std::uint32_t smem = bulk ? static_cast<std::uint32_t>(spec.stages * spec.tile_bytes) : 0;
    ASSERT_TRUE(function.set_max_smem(smem).ok());
    const int tile = bulk ? spec.tile_bytes : spec.threads * spec.unroll * 16;
    for (const std::uint64_t ctas : {1, 7, 64}) {
      Memory<std::uint32_t> out(1);
      const void* from = data->data();
      unsigned long long tiles = kBytes / static_cast<std::size_t>(tile);
      std::uint32_t* to = out.data();
      enqueue(function, ctas, static_cast<std::uint32_t>(spec.threads + (bulk ? 32 : 0)), {&from, &tiles, &to}, smem);
      wait();
      EXPECT_EQ(out[0], expected) << spec.threads << " threads, " << spec.stages << " stages, " << ctas << " CTAs";
    }
  }
}

// Prints what each kernel reaches on a prefill's worth of rows, and holds it above a third of what a copy of the same
// bytes on this device reaches.
TEST_F(AnyGpuTest, MovesBytesAtTheSpeedOfMemory) {
  constexpr std::uint32_t kRows = 8192, kHeads = 8, kQueryHeads = 32, kDim = 128, kPageTokens = 16;
  constexpr std::size_t kRowBytes = std::size_t{kDim} * 2;
  constexpr std::size_t kKvBytes = kRows * kHeads * kRowBytes, kQBytes = kRows * kQueryHeads * kRowBytes;
  const auto buffer = [&](std::size_t bytes) {
    Result<DeviceBuffer> made = DeviceBuffer::create(*device_, bytes, true);
    EXPECT_TRUE(made.ok());
    return std::move(*made);
  };
  const DeviceBuffer k = buffer(kKvBytes), v = buffer(kKvBytes), q = buffer(kQBytes), q_out = buffer(kQBytes);
  const DeviceBuffer pool_k = buffer(kKvBytes), pool_v = buffer(kKvBytes), tables = buffer(kRows * 8 + kDim * 2);
  Random random(4);
  std::vector<std::int32_t> pages(kRows / kPageTokens), words(2 * kRows);
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int32_t>(i);
  std::shuffle(pages.begin(), pages.end(), random);
  for (std::uint32_t i = 0; i < kRows; ++i) {
    words[i] = pages[i / kPageTokens] * static_cast<int>(kPageTokens) + static_cast<int>(i % kPageTokens);  // slots
    words[kRows + i] = static_cast<std::int32_t>(i);                                                        // positions
  }
  ASSERT_TRUE(cuda::copy_to_device(*device_, tables.data(), words.data(), kRows * 8, stream_.handle()).ok());

  const double copied = microseconds(
      20, [&] { EXPECT_TRUE(cuda::copy_on_device(*device_, q_out.data(), q.data(), kQBytes, stream_.handle()).ok()); });
  const double limit = 2.0 * kQBytes / copied;  // bytes a microsecond
  std::printf("copy: %.2f TB/s\n", limit / 1e6);
  const auto report = [&](const char* name, double bytes, double us) {
    std::printf("%s: %.1f us, %.2f TB/s\n", name, us, bytes / us / 1e6);
    EXPECT_GT(bytes / us, limit / 3.0) << name;
  };

  AppendArgs args{};
  args.k = k.data(), args.v = v.data(), args.q = q.data(), args.q_out = q_out.data();
  args.k_row_stride = args.v_row_stride = kHeads * kDim;
  args.q_row_stride = args.q_out_row_stride = kQueryHeads * kDim;
  args.k_head_stride = args.v_head_stride = args.q_head_stride = args.q_out_head_stride = kDim;
  args.slots = tables.as<std::int32_t>();
  args.rope_positions = args.slots + kRows;
  args.inv_freq = reinterpret_cast<const float*>(args.slots + 2 * kRows);
  args.attention_factor = 1.0f;
  args.rows = kRows;
  args.num_kv_heads = kHeads;
  args.pool.k = pool_k.data(), args.pool.v = pool_v.data();
  args.pool.num_pages = static_cast<std::int32_t>(pages.size());
  args.pool.page_tokens = args.pool.entry_tokens = kPageTokens;
  args.pool.entries_per_page = 1;
  args.pool.page_stride = kPageTokens * kHeads * kDim;
  args.pool.token_stride = kDim;
  args.pool.head_stride = kPageTokens * kDim;
  args.pool.dtype = kBF16;
  for (const bool rotate : {false, true}) {
    const cuda::Function function = kernel(jit::append_source({.arch = arch(), .rotate = rotate}), "fovea_append");
    args.rotary_dim = rotate ? kDim : 0;
    args.num_qo_heads = rotate ? kQueryHeads : 0;
    const double bytes = 4.0 * kKvBytes + (rotate ? 2.0 * kQBytes : 0.0);
    report(rotate ? "append, K and 32 query heads rotated" : "append", bytes,
           microseconds(20, [&] { enqueue(function, append_ctas(args, 8, kDim), abi::kAppendThreads, {&args}); }));
  }

  // Four states of a quarter of the rows.
  const DeviceBuffer s = buffer(kRows * kQueryHeads * 4), s_out = buffer(kRows * kQueryHeads);
  constexpr std::uint32_t kStates = 4;
  MergeArgs merge{};
  merge.a = {q.data(), s.as<float>(), kStates * kQueryHeads * kDim, kDim, kStates * kQueryHeads, 1};
  merge.v_out = q_out.data(), merge.s_out = s_out.as<float>();
  merge.v_out_row_stride = kQueryHeads * kDim, merge.v_out_head_stride = kDim;
  merge.s_out_row_stride = kQueryHeads, merge.s_out_head_stride = 1;
  merge.v_state_stride = kQueryHeads * kDim, merge.s_state_stride = kQueryHeads;
  merge.rows = kRows / kStates, merge.heads = kQueryHeads, merge.num_states = kStates;
  const cuda::Function function = kernel(jit::merge_source({.arch = arch()}), "fovea_merge_states");
  report("merge of 4 states", 1.25 * kQBytes,
         microseconds(20, [&] { enqueue(function, merge_ctas(merge, kDim, 8), abi::kMergeThreads, {&merge}); }));
}

}  // namespace
}  // namespace fovea::kernel_test
