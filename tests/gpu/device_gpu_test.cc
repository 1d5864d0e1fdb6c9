// The operators of the engine's CUDA device against those of the CPU's, on random values: every kernel of kernels/model
// and cuBLASLt behind Linear, with widths and strides that allow wide accesses and some that do not. Run by `make
// gpu-test`.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/half.h"
#include "device/device.h"

namespace fovea {
namespace {

// Memory of both devices that holds the same numbers: f32 on the CPU, `dtype` on the GPU.
struct Twin {
  TensorView cpu, gpu;
  std::shared_ptr<void> cpu_memory, gpu_memory;
};

class DeviceGpuTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    DeviceOptions options;
    options.half_dtype = GetParam();
    auto gpu = create_device("cuda:0", options);
    if (gpu.status().code() == StatusCode::kUnavailable) GTEST_SKIP() << gpu.status().to_string();
    ASSERT_TRUE(gpu.ok()) << gpu.status().to_string();
    gpu_ = std::move(*gpu);
    options.bf16_products = false;
    cpu_ = std::move(*create_device("cpu", options));
  }

  // Numbers that the GPU's type holds exactly.
  std::vector<float> values(std::int64_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> all(static_cast<std::size_t>(count));
    for (float& x : all) x = rounded(normal(random_));
    return all;
  }
  float rounded(float x) const {
    return GetParam() == DType::kF16 ? f16_to_float(float_to_f16(x)) : bf16_to_float(float_to_bf16(x));
  }
  // Rounding once is off by that share of a number at most.
  float unit() const { return GetParam() == DType::kF16 ? 0x1p-11f : 0x1p-8f; }

  template <typename... Dims>
  Twin twin(const std::vector<float>& from, Dims... dims) {
    Twin made;
    auto cpu = cpu_->allocate(from.size() * sizeof(float));
    EXPECT_TRUE(cpu.ok());
    made.cpu_memory = *cpu;
    std::memcpy(cpu->get(), from.data(), from.size() * sizeof(float));
    made.cpu = cpu_tensor(cpu->get(), DType::kF32, dims...);
    auto gpu = gpu_->allocate(from.size() * 2);
    EXPECT_TRUE(gpu.ok()) << gpu.status().to_string();
    made.gpu_memory = *gpu;
    // A matrix is held in the activations' type.
    const auto held = gpu_->hold(cpu_tensor(from.data(), DType::kF32, 1, from.size()));
    EXPECT_TRUE(held.ok()) << held.status().to_string();
    EXPECT_TRUE(gpu_->copy(gpu->get(), held->data, from.size() * 2).ok());
    made.gpu = gpu_->tensor(gpu->get(), GetParam(), dims...);
    return made;
  }
  TensorView held(const std::vector<float>& vector) {
    return *gpu_->hold(cpu_tensor(vector.data(), DType::kF32, vector.size()));
  }
  std::vector<float> read_gpu(const TensorView& view) {
    const auto read = gpu_->read(view);
    EXPECT_TRUE(read.ok()) << read.status().to_string();
    std::vector<float> all(static_cast<std::size_t>(view.num_elements()));
    for (std::size_t i = 0; i < all.size() && read.ok(); ++i) {
      all[i] = view.dtype == DType::kF32   ? static_cast<const float*>(*read)[i]
               : view.dtype == DType::kF16 ? f16_to_float(static_cast<const std::uint16_t*>(*read)[i])
                                           : bf16_to_float(static_cast<const std::uint16_t*>(*read)[i]);
    }
    return all;
  }
  // Results may be rounded once, and `sums` roundings of fp32 away before.
  void expect_close(const Twin& twin, const char* what, float sums = 1e-5f) {
    const std::vector<float> gpu = read_gpu(twin.gpu);
    const auto* cpu = static_cast<const float*>(twin.cpu.data);
    for (std::size_t i = 0; i < gpu.size(); ++i) {
      ASSERT_NEAR(gpu[i], cpu[i], std::abs(cpu[i]) * (unit() * 1.02f + sums) + sums) << what << " element " << i;
    }
  }

  std::unique_ptr<Device> gpu_, cpu_;
  std::mt19937 random_{5};
};

TEST_P(DeviceGpuTest, Linear) {
  for (const auto& [rows, in, out] :
       {std::tuple{1, 64, 128}, {3, 56, 96}, {17, 256, 320}, {130, 4096, 512}, {5, 37, 19}}) {
    for (const bool bias : {false, true}) {
      SCOPED_TRACE(::testing::Message() << rows << " " << in << " " << out << " bias " << bias);
      const auto w = values(std::int64_t{in} * out, 1.0f / std::sqrt(static_cast<float>(in)));
      const auto b = values(out);
      // Two parts stacked.
      const int first = out / 3;
      const std::vector<TensorView> weights = {cpu_tensor(w.data(), DType::kF32, first, in),
                                               cpu_tensor(w.data() + first * in, DType::kF32, out - first, in)};
      std::vector<TensorView> biases;
      if (bias) {
        biases = {cpu_tensor(b.data(), DType::kF32, first), cpu_tensor(b.data() + first, DType::kF32, out - first)};
      }
      const Twin x = twin(values(std::int64_t{rows} * in), rows, in);
      const Twin y = twin(std::vector<float>(static_cast<std::size_t>(rows * out)), rows, out);
      auto on_gpu = gpu_->create_linear({.parts = weights, .biases = biases});
      auto on_cpu = cpu_->create_linear({.parts = weights, .biases = biases});
      ASSERT_TRUE(on_gpu.ok() && on_cpu.ok()) << on_gpu.status().to_string();
      const Status status = (*on_gpu)->forward(x.gpu, y.gpu);
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_TRUE((*on_cpu)->forward(x.cpu, y.cpu).ok());
      expect_close(y, "y", 1e-4f);
      if (bias) continue;
      auto wide = gpu_->allocate(static_cast<std::size_t>(rows) * out * 4);
      const TensorView logits = gpu_->tensor(wide->get(), DType::kF32, rows, out);
      ASSERT_TRUE((*on_gpu)->forward(x.gpu, logits).ok());
      const auto read = read_gpu(logits);
      for (std::size_t i = 0; i < read.size(); ++i) {
        ASSERT_NEAR(read[i], static_cast<const float*>(y.cpu.data)[i], 1e-3f) << i;
      }
    }
  }
}

// Few rows are exact in the weights; many are e4m3 with a scale a row on both sides, or of weights expanded (a bias,
// odd sizes). Either as stored, or made e4m3 as they are loaded.
TEST_P(DeviceGpuTest, Fp8Linear) {
  for (const auto& [rows, in, out] : {std::tuple{1, 64, 128},
                                      {8, 512, 96},
                                      {7, 4096, 512},
                                      {9, 256, 320},
                                      {130, 1024, 512},
                                      {2100, 256, 64},
                                      {5, 37, 19},
                                      {33, 56, 24}}) {
    for (const bool bias : {false, true}) {
      for (const bool stored : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << rows << " " << in << " " << out << " bias " << bias << " stored " << stored);
        const auto w = values(std::int64_t{in} * out, 1.0f / std::sqrt(static_cast<float>(in)));
        const auto b = values(out);
        std::vector<std::uint8_t> codes(w.size());
        std::vector<float> scales;
        for (std::size_t i = 0; i < w.size(); ++i)
          codes[i] = static_cast<std::uint8_t>(random_() % 120 | random_() % 2 << 7);
        for (int i = 0; i < out; ++i)
          scales.push_back(0.02f / std::sqrt(static_cast<float>(in)) * static_cast<float>(1 + i % 3));
        const int first = out / 3;
        const TensorView whole[] = {cpu_tensor(w.data(), DType::kF32, first, in),
                                    cpu_tensor(w.data() + first * in, DType::kF32, out - first, in)};
        const TensorView narrow[] = {cpu_tensor(codes.data(), DType::kF8E4M3, first, in),
                                     cpu_tensor(codes.data() + first * in, DType::kF8E4M3, out - first, in)};
        const TensorView by[] = {cpu_tensor(scales.data(), DType::kF32, first),
                                 cpu_tensor(scales.data() + first, DType::kF32, out - first)};
        const TensorView biases[] = {cpu_tensor(b.data(), DType::kF32, first),
                                     cpu_tensor(b.data() + first, DType::kF32, out - first)};
        LinearWeights weights;
        weights.parts = stored ? narrow : whole;
        if (stored) weights.scales = by;
        if (bias) weights.biases = biases;
        weights.to_fp8 = !stored;
        const Twin x = twin(values(std::int64_t{rows} * in), rows, in);
        const Twin y = twin(std::vector<float>(static_cast<std::size_t>(rows * out)), rows, out);
        auto on_gpu = gpu_->create_linear(weights);
        auto on_cpu = cpu_->create_linear(weights);
        ASSERT_TRUE(on_gpu.ok() && on_cpu.ok()) << on_gpu.status().to_string() << on_cpu.status().to_string();
        const Status status = (*on_gpu)->forward(x.gpu, y.gpu);
        ASSERT_TRUE(status.ok()) << status.to_string();
        ASSERT_TRUE((*on_cpu)->forward(x.cpu, y.cpu).ok());
        const std::vector<float> gpu = read_gpu(y.gpu);
        const auto* const cpu = static_cast<const float*>(y.cpu.data);
        double error = 0.0, square = 0.0;
        for (std::size_t i = 0; i < gpu.size(); ++i) {
          error += (gpu[i] - cpu[i]) * (gpu[i] - cpu[i]);
          square += cpu[i] * cpu[i];
        }
        // Of weights: in 16 bits before they are e4m3 here, but not there, so that some are rounded the other way. Of
        // activations: 3 bits of fraction are off by 2^-5 on average at most.
        const bool rounds_x = rows > 8 && in % 16 == 0 && out % 16 == 0;
        EXPECT_LT(std::sqrt(error / square), rounds_x ? 0.04 : stored ? 0.004 : 0.012);
        EXPECT_GT(std::sqrt(error / square), rounds_x ? 0.01 : 0.0) << "activations were not rounded";
      }
    }
  }
}

TEST_P(DeviceGpuTest, NormsWithAndWithoutAResidual) {
  for (const auto& [rows, dim] :
       {std::pair{1, 64}, {7, 56}, {33, 4096}, {600, 4096}, {2, 16384}, {3, 100}, {3, 37}, {2, 3000}}) {
    for (const bool residual : {false, true}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << dim << " residual " << residual);
      const Twin x = twin(values(std::int64_t{rows} * dim), rows, dim);
      const Twin r = twin(values(std::int64_t{rows} * dim), rows, dim);
      const Twin out = twin(std::vector<float>(static_cast<std::size_t>(rows * dim)), rows, dim);
      const auto weight = values(dim);
      const TensorView none;
      Status status = gpu_->rms_norm(x.gpu, held(weight), 1.0f, 1e-5f, residual ? r.gpu : none, out.gpu);
      ASSERT_TRUE(status.ok()) << status.to_string();
      status = cpu_->rms_norm(x.cpu, cpu_tensor(weight.data(), DType::kF32, dim), 1.0f, 1e-5f, residual ? r.cpu : none,
                              out.cpu);
      ASSERT_TRUE(status.ok()) << status.to_string();
      expect_close(out, "out");
      if (residual) expect_close(r, "residual");
      ASSERT_TRUE(gpu_->rms_norm(x.gpu, held(weight), 0.0f, 1e-5f, {}, x.gpu).ok());  // in place
      ASSERT_TRUE(cpu_->rms_norm(x.cpu, cpu_tensor(weight.data(), DType::kF32, dim), 0.0f, 1e-5f, {}, x.cpu).ok());
      expect_close(x, "in place");
    }
  }
}

TEST_P(DeviceGpuTest, RowsReadOnce) {
  for (const auto& [rows, width] : {std::pair{1, 64}, {7, 96}, {300, 1024}, {5, 37}, {3, 100}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << width);
    for (const Activation kind : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu}) {
      const Twin both = twin(values(std::int64_t{rows} * width * 2, 2.0f), rows, 2 * width);
      const Twin out = twin(std::vector<float>(static_cast<std::size_t>(rows * width)), rows, width);
      const Status status = gpu_->gated_activation(kind, both.gpu, out.gpu);
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_TRUE(cpu_->gated_activation(kind, both.cpu, out.cpu).ok());
      expect_close(out, "gate");
    }
    const Twin x = twin(values(std::int64_t{rows} * width), rows, width);
    const Twin y = twin(values(std::int64_t{rows} * width), rows, width);
    ASSERT_TRUE(gpu_->add(x.gpu, y.gpu).ok());
    ASSERT_TRUE(cpu_->add(x.cpu, y.cpu).ok());
    expect_close(x, "add");
    const Twin table = twin(values(std::int64_t{50} * width), 50, width);
    std::vector<std::int32_t> ids;
    for (int i = 0; i < rows; ++i) ids.push_back(i * 7 % 50);
    std::vector<const std::int32_t*> places;
    const std::vector<std::int32_t> none;
    ASSERT_TRUE(gpu_->upload(std::vector<std::span<const std::int32_t>>{none, ids}, places).ok());
    ASSERT_TRUE(gpu_->embed(table.gpu, places[1], 3.5f, x.gpu).ok());
    ASSERT_TRUE(cpu_->embed(table.cpu, ids.data(), 3.5f, x.cpu).ok());
    expect_close(x, "embed");
    const auto logits = values(std::int64_t{rows} * width, 30.0f);
    auto memory = gpu_->allocate(logits.size() * 4);
    const TensorView on_gpu = gpu_->tensor(memory->get(), DType::kF32, rows, width);
    ASSERT_TRUE(gpu_->copy(memory->get(), held(logits).data, logits.size() * 4).ok());
    ASSERT_TRUE(gpu_->softcap(on_gpu, 30.0f).ok());
    const auto read = read_gpu(on_gpu);
    for (std::size_t i = 0; i < read.size(); ++i) ASSERT_NEAR(read[i], 30.0f * std::tanh(logits[i] / 30.0f), 1e-4f);
  }
}

struct Pool {
  std::shared_ptr<void> memory;
  std::size_t bytes = 0;
  abi::KvPoolView view{};
};

Pool make_pool(Device& device, DType dtype, bool rotated, int heads, int head_dim) {
  constexpr int kPages = 9, kTokens = 16;
  const bool quantized = dtype == DType::kF8E4M3 || dtype == DType::kI8 || dtype == DType::kI4;
  const std::int64_t rows = std::int64_t{kPages} * kTokens * heads;
  const std::int64_t side = rows * head_dim * dtype_bits(dtype) / 8;
  Pool pool;
  pool.bytes = static_cast<std::size_t>(2 * side + (quantized ? 8 * rows : 0));
  pool.memory = *device.allocate(pool.bytes);
  auto* const at = static_cast<std::byte*>(pool.memory.get());
  abi::KvPoolView& v = pool.view;
  v.k = at;
  v.v = at + side;
  v.page_stride = std::int64_t{kTokens} * heads * head_dim;
  v.token_stride = head_dim;
  v.head_stride = std::int64_t{kTokens} * head_dim;
  v.num_pages = kPages;
  v.page_tokens = v.entry_tokens = kTokens;
  v.entries_per_page = 1;
  v.dtype = static_cast<abi::KvDType>(dtype);
  v.rotated = rotated;
  if (quantized) {
    v.granularity = abi::ScaleGranularity::kTokenHead;
    v.k_scale = at + 2 * side;
    v.v_scale = at + 2 * side + 4 * rows;
    v.scale_page_stride = std::int64_t{kTokens} * heads;
    v.scale_head_stride = kTokens;
  }
  return pool;
}

// What each stored element stands for, K then V; of rotated pools before they are rotated back.
std::vector<float> stored(const Pool& pool, const std::byte* memory, int heads, int head_dim) {
  const abi::KvPoolView& v = pool.view;
  const std::int64_t rows = std::int64_t{v.num_pages} * v.page_tokens * heads;
  const std::int64_t side = rows * head_dim * abi::kv_bits(v.dtype) / 8;
  std::vector<float> all;
  for (int part = 0; part < 2; ++part) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(memory + part * side);
    const auto* scales = reinterpret_cast<const abi::KvScale*>(memory + 2 * side + part * 4 * rows);
    for (std::int64_t i = 0; i < rows * head_dim; ++i) {
      const auto word = [&](auto type) {
        decltype(type) x;
        std::memcpy(&x, bytes + i * static_cast<std::int64_t>(sizeof x), sizeof x);
        return x;
      };
      float x = 0.0f;
      switch (v.dtype) {
        case abi::KvDType::kF32: x = word(0.0f); break;
        case abi::KvDType::kF16: x = f16_to_float(word(std::uint16_t{})); break;
        case abi::KvDType::kBF16: x = bf16_to_float(word(std::uint16_t{})); break;
        case abi::KvDType::kF8E4M3: {
          const std::uint8_t b = bytes[i];
          const int exponent = b >> 3 & 15;
          x = (exponent == 0 ? std::ldexp(b & 7, -9) : std::ldexp(8 + (b & 7), exponent - 10)) * (b >= 128 ? -1 : 1);
          break;
        }
        case abi::KvDType::kI8: x = static_cast<float>(bytes[i] - abi::kI8Bias); break;
        case abi::KvDType::kI4: x = static_cast<float>((bytes[i / 2] >> (i % 2 * 4) & 15) - abi::kI4Bias); break;
      }
      if (v.granularity == abi::ScaleGranularity::kTokenHead) {
        const abi::KvScale& s = scales[i / head_dim];
        x = f16_to_float(s.scale) * x + f16_to_float(s.zero);
      }
      all.push_back(x);
    }
  }
  return all;
}

TEST_P(DeviceGpuTest, RopeAppendWritesWhatTheCpuWrites) {
  struct Case {
    int q_heads, kv_heads, head_dim, rotary;
    int norm;  // 0: none, 1: of each head, 2: of all
    RopeKind rope;
    DType pool;
    bool rotated;
    bool parts;  // heads in pools of their own
  };
  const DType half = GetParam();
  const std::vector<Case> cases = {{32, 8, 128, 128, 0, RopeKind::kPlain, half, false, false},
                                   {4, 2, 32, 32, 1, RopeKind::kPlain, half, false, false},
                                   {8, 4, 256, 256, 1, RopeKind::kPlain, half, false, true},
                                   {2, 1, 32, 32, 2, RopeKind::kYarn, half, false, false},
                                   {4, 4, 64, 64, 2, RopeKind::kPlain, half, false, false},
                                   {6, 3, 96, 72, 0, RopeKind::kPlain, half, false, true},
                                   {4, 2, 80, 32, 0, RopeKind::kPlain, half, false, false},
                                   {4, 2, 64, 0, 1, RopeKind::kNone, half, false, false},
                                   {8, 2, 128, 128, 0, RopeKind::kLlama3, DType::kF8E4M3, false, false},
                                   {8, 2, 128, 128, 1, RopeKind::kPlain, DType::kI8, false, true},
                                   {8, 2, 80, 80, 0, RopeKind::kPlain, DType::kI4, false, false},
                                   {8, 2, 128, 128, 0, RopeKind::kPlain, DType::kI4, true, false},
                                   {4, 2, 64, 64, 0, RopeKind::kPlain, DType::kI8, true, false},
                                   {24, 24, 64, 64, 0, RopeKind::kPlain, half, false, true}};
  // Of many rows a warp takes several heads; the last rows have a place each in the pool.
  for (std::size_t n = 0; n < 2 * cases.size(); ++n) {
    const Case& c = cases[n / 2];
    SCOPED_TRACE(::testing::Message() << "case " << n);
    const int rows = n % 2 == 0 ? 37 : 1500;
    const int heads = c.q_heads + 2 * c.kv_heads;
    const Twin qkv = twin(values(std::int64_t{rows} * heads * c.head_dim), rows, heads, c.head_dim);
    std::vector<std::int32_t> positions, slots;
    for (int i = 0; i < rows; ++i) {
      positions.push_back(i * i * 71 % 100000);
      slots.push_back(i % 11 == 3 || i < rows - 9 * 16 ? -1 : i * 29 % (9 * 16));
    }
    std::vector<const std::int32_t*> places;
    ASSERT_TRUE(gpu_->upload(std::vector<std::span<const std::int32_t>>{positions, slots}, places).ok());
    RopeConfig rope;
    rope.kind = c.rope;
    rope.rotary_dim = c.rotary;
    rope.factor = 4.0;
    QkvHeads on_gpu, on_cpu;
    on_gpu.num_qo_heads = on_cpu.num_qo_heads = c.q_heads;
    on_gpu.num_kv_heads = on_cpu.num_kv_heads = c.kv_heads;
    on_gpu.qkv = qkv.gpu;
    on_cpu.qkv = qkv.cpu;
    const auto q_norm = values(c.norm == 2 ? c.q_heads * c.head_dim : c.head_dim);
    const auto k_norm = values(c.norm == 2 ? c.kv_heads * c.head_dim : c.head_dim);
    if (c.norm != 0) {
      on_gpu.q_norm = held(q_norm);
      on_gpu.k_norm = held(k_norm);
      on_cpu.q_norm = cpu_tensor(q_norm.data(), DType::kF32, q_norm.size());
      on_cpu.k_norm = cpu_tensor(k_norm.data(), DType::kF32, k_norm.size());
    }
    on_gpu.norm_eps = on_cpu.norm_eps = 1e-6f;
    on_gpu.positions = places[0];
    on_cpu.positions = positions.data();
    on_gpu.rope = on_cpu.rope = &rope;
    std::vector<Pool> gpu_pools, cpu_pools;
    std::vector<KvTarget> gpu_targets, cpu_targets;
    const int ranges = c.parts ? c.kv_heads : 1;
    const int each = c.kv_heads / ranges;
    for (int r = 0; r < ranges; ++r) {
      for (const bool gpu : {true, false}) {
        Pool pool = make_pool(gpu ? *gpu_ : *cpu_, c.pool, c.rotated, each, c.head_dim);
        (gpu ? gpu_targets : cpu_targets)
            .push_back(
                {r * each, (r + 1) * each, gpu ? places[1] : slots.data(), abi::shift_heads(pool.view, r * each)});
        (gpu ? gpu_pools : cpu_pools).push_back(std::move(pool));
      }
    }
    const Status status = gpu_->rope_append(on_gpu, gpu_targets);
    ASSERT_TRUE(status.ok()) << status.to_string();
    const Status expected = cpu_->rope_append(on_cpu, cpu_targets);
    ASSERT_TRUE(expected.ok()) << expected.to_string();
    const auto gpu = read_gpu(qkv.gpu);
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < c.q_heads * c.head_dim; ++i) {
        const std::size_t at = static_cast<std::size_t>(row * heads * c.head_dim + i);
        const float x = static_cast<const float*>(qkv.cpu.data)[at];
        ASSERT_NEAR(gpu[at], x, std::abs(x) * unit() * 1.02f + 1e-4f) << "q of row " << row << " element " << i;
      }
    }
    for (int r = 0; r < ranges; ++r) {
      const auto read = gpu_->read(gpu_->tensor(gpu_pools[r].memory.get(), DType::kI8, gpu_pools[r].bytes));
      ASSERT_TRUE(read.ok());
      const auto a = stored(gpu_pools[r], static_cast<const std::byte*>(*read), each, c.head_dim);
      const auto b = stored(cpu_pools[r], static_cast<const std::byte*>(cpu_pools[r].memory.get()), each, c.head_dim);
      ASSERT_EQ(a.size(), b.size());
      int different = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        // Numbers that fall between two steps may go either way.
        const float step = c.pool == DType::kI4 ? 0.75f : c.pool == DType::kI8 ? 0.08f : std::abs(b[i]) * 0.13f + 1e-3f;
        ASSERT_NEAR(a[i], b[i], step) << "element " << i << " of range " << r;
        different += std::abs(a[i] - b[i]) > 1e-5f + std::abs(b[i]) * 1e-5f ? 1 : 0;
      }
      EXPECT_LT(different, static_cast<int>(a.size() / 100 + 4));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DeviceGpuTest, ::testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace fovea
