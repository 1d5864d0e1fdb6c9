// The source of the append kernel, run on the host, against the CPU backend's append and rotation: random shapes,
// strides, layouts, types, page lists and slots.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>

#include "cpu/append.h"
#include "cpu/ops/elementwise.h"
#include "cpu/ops/rope.h"
// The kernel comes after what it runs on.
// clang-format off
#include "tests/kernels/host_instructions.h"
#include "kernels/any/append.cuh"
// clang-format on

namespace fovea::kernels {
namespace {

using abi::AppendArgs;
using Random = std::mt19937_64;

int between(Random& random, int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); }

// What e4m3 number `bits` is, by its definition.
float float_of_e4m3(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 3 & 15), fraction = static_cast<int>(bits & 7);
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                   : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return bits & 0x80 ? -size : size;
}

// The nearest e4m3 number by search: ties go to the even one, sizes beyond the largest to that.
std::uint32_t nearest_e4m3(float x) {
  if (std::isnan(x)) return (float_as_bits(x) >> 24 & 0x80) | 0x7f;
  const double size = std::fabs(static_cast<double>(x));
  std::uint32_t best = 0;
  for (std::uint32_t bits = 1; bits < 0x7f; ++bits) {
    const double gap = std::fabs(size - float_of_e4m3(bits)), best_gap = std::fabs(size - float_of_e4m3(best));
    if (gap < best_gap || (gap == best_gap && bits % 2 == 0)) best = bits;
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

TEST(E4M3Test, RoundsToTheNearest) {
  Random random(1);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = bits_as_float(bits << 16);
    ASSERT_EQ(e4m3_bits(x), nearest_e4m3(x)) << x;
  }
  for (std::uint32_t bits = 0; bits < 0x7e; ++bits) {
    const float middle = 0.5f * (float_of_e4m3(bits) + float_of_e4m3(bits + 1));
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f), -middle}) {
      ASSERT_EQ(e4m3_bits(x), nearest_e4m3(x)) << x;
    }
  }
  for (int i = 0; i < 20000; ++i) {
    const float x = bits_as_float(static_cast<std::uint32_t>(random()) & 0xbfffffffu);
    ASSERT_EQ(e4m3_bits(x), nearest_e4m3(x)) << x;
  }
}

TEST(RotaryTest, AnglesArePreciseFarOut) {
  Random random(2);
  std::uniform_real_distribution<float> exponent(-6.0f, 0.0f);
  double worst = 0.0;
  for (int i = 0; i < 300000; ++i) {
    const float position = static_cast<float>(random() % (i % 2 == 0 ? 1000 : 1 << 22));
    const float inv_freq = i % 16 == 0 ? 1.0f : std::pow(10.0f, exponent(random));
    const double angle = static_cast<double>(position * inv_freq);
    const CosSin pair = rotary_cos_sin(position, inv_freq);
    worst = std::max({worst, std::fabs(pair.cosine - std::cos(angle)), std::fabs(pair.sine - std::sin(angle))});
  }
  EXPECT_LT(worst, 1.2e-7);
}

DType dtype_of(KvDType type) { return static_cast<DType>(type); }

// [rows, heads, dim] with gaps, in memory of random numbers of its type.
struct Rows {
  std::vector<std::uint8_t> bytes;
  TensorView view{};

  Rows(Random& random, KvDType type, int rows, int heads, int dim, int gap) {
    view.dtype = dtype_of(type);
    view.rank = 3;
    view.shape[0] = rows, view.shape[1] = heads, view.shape[2] = dim;
    view.strides[2] = 1;
    view.strides[1] = dim + gap * between(random, 0, 2);
    view.strides[0] = view.strides[1] * heads + gap * between(random, 0, 2);
    const std::size_t count = static_cast<std::size_t>(view.strides[0] * std::max(rows, 1));
    bytes.resize((count + 16) * element_bytes(type));
    std::normal_distribution<float> normal(0.0f, 3.0f);
    for (std::size_t i = 0; i < count; ++i) {
      const float x = normal(random);
      const std::uint32_t word = type == KvDType::kF32   ? float_as_bits(x)
                                 : type == KvDType::kF16 ? f16_pair(x, 0.0f)
                                                         : bf16_pair(x, 0.0f);
      std::memcpy(bytes.data() + i * element_bytes(type), &word, element_bytes(type));
    }
    view.data = bytes.data();
  }

  float at(long long row, long long head, long long dim) const {
    return value(static_cast<KvDType>(view.dtype), bytes.data(), row * view.strides[0] + head * view.strides[1] + dim);
  }

  static float value(KvDType type, const void* data, long long element) {
    if (type == KvDType::kF32) return static_cast<const float*>(data)[element];
    if (type == KvDType::kF8E4M3) return float_of_e4m3(static_cast<const std::uint8_t*>(data)[element]);
    const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[element];
    return type == KvDType::kF16 ? cpu::float_of_f16(bits) : cpu::float_of_bf16(bits);
  }

  // fp32 and contiguous, rotated if there is a table of angles.
  std::vector<float> floats(const float* cos_sin, int half) const {
    const auto [rows, heads, dim] = std::array{view.shape[0], view.shape[1], view.shape[2]};
    std::vector<float> out(static_cast<std::size_t>(rows * heads * dim));
    for (long long i = 0; i < rows * heads * dim; ++i) out[i] = at(i / dim / heads, i / dim % heads, i % dim);
    ThreadPool threads(1);
    if (cos_sin != nullptr) cpu::rotate({out.data(), heads * dim, dim}, cos_sin, rows, heads, half, threads);
    return out;
  }
};

// A pool with the bytes of every element a marker, in one of the layouts.
struct Pool {
  std::vector<std::uint8_t> k, v;
  abi::KvPoolView view{};
  std::vector<float> scales;

  Pool(Random& random, KvDType type, int heads, int dim, int gap) {
    view.dtype = type;
    view.num_pages = between(random, 1, 12);
    view.entries_per_page = 1 << between(random, 0, 2);
    view.entry_tokens = between(random, 1, 5);
    view.page_tokens = view.entry_tokens * view.entries_per_page;
    const long long inner = dim + gap * between(random, 0, 1);
    const bool heads_first = random() % 2 == 0;
    view.token_stride = heads_first ? inner : inner * heads;
    view.head_stride = heads_first ? inner * view.page_tokens : inner;
    view.page_stride = inner * heads * view.page_tokens + gap * between(random, 0, 2);
    k.assign(static_cast<std::size_t>(view.page_stride * view.num_pages) * element_bytes(type), 0x55);
    v = k;
    if (type == KvDType::kF8E4M3 && random() % 4 != 0) {
      view.granularity = abi::ScaleGranularity::kHead;
      for (int i = 0; i < 2 * heads; ++i) scales.push_back(0.01f * static_cast<float>(between(random, 1, 30)));
    }
    point();
  }
  Pool(const Pool& other) : k(other.k), v(other.v), view(other.view), scales(other.scales) { point(); }

  void point() {
    view.k = k.data(), view.v = v.data();
    view.k_scale = scales.data(), view.v_scale = scales.data() + scales.size() / 2;
  }
};

// Where rows go, told the kernel's way, and as slots (-1: nowhere) for the CPU.
struct Places {
  std::vector<std::int32_t> slots, batch_indices, positions, entries, list_begin, expected;
  std::uint32_t error = 0;

  Places(Random& random, const abi::KvPoolView& pool, int rows, AppendArgs& args) {
    const int tokens = pool.num_pages * pool.page_tokens;
    std::vector<std::int32_t> free(tokens);  // tokens of the pool nobody writes yet
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random);
    const auto refuse = [&](int row) {
      if (error == 0) error = ~static_cast<std::uint32_t>(row);
      expected.push_back(-1);
    };
    if (random() % 2 == 0) {
      for (int row = 0; row < rows; ++row) {
        if (random() % 5 == 0 || row >= tokens) {
          const bool outside = random() % 2 == 0;
          slots.push_back(outside ? tokens + between(random, 0, 1000) : -between(random, 1, 1000));
          outside ? refuse(row) : expected.push_back(-1);
        } else {
          slots.push_back(free[row]);
          expected.push_back(free[row]);
        }
      }
      args.slots = slots.data();
      return;
    }
    // Lists of random entries, all different, of which some are no entries of the pool.
    const int num_lists = between(random, 1, 4), total = pool.num_pages * pool.entries_per_page;
    const bool compressed = random() % 2 == 0;
    const int stride = std::max(1, total / num_lists);
    std::vector<std::int32_t> order(total);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    list_begin.push_back(0);
    for (int list = 0; list < num_lists; ++list) {
      const int count = compressed ? between(random, 0, stride) : stride;
      for (int i = 0; i < count; ++i) {
        const std::size_t nth = entries.size();
        const bool wrong = random() % 8 == 0 || nth >= order.size();
        entries.push_back(wrong ? (random() % 2 == 0 ? -3 : total + 7) : order[nth]);
      }
      list_begin.push_back(static_cast<std::int32_t>(entries.size()));
    }
    std::vector<std::vector<bool>> taken(num_lists, std::vector<bool>(1 << 16));
    for (int row = 0; row < rows; ++row) {
      const int list = between(random, -1, num_lists);
      const int length = list >= 0 && list < num_lists ? list_begin[list + 1] - list_begin[list] : 0;
      int position = between(random, -1, (length + 1) * pool.entry_tokens);
      if (length > 0 && position >= 0 && taken[list][position]) position = -1;  // two rows to one place: undefined
      batch_indices.push_back(list);
      positions.push_back(position);
      if (list < 0 || position < 0) {
        expected.push_back(-1);
        continue;
      }
      if (list >= num_lists || position / pool.entry_tokens >= length) {
        refuse(row);
        continue;
      }
      taken[list][position] = true;
      const int entry = entries[list_begin[list] + position / pool.entry_tokens];
      if (entry < 0 || entry >= total) {
        refuse(row);
      } else {
        expected.push_back(entry * pool.entry_tokens + position % pool.entry_tokens);
      }
    }
    args.batch_indices = batch_indices.data();
    args.positions = positions.data();
    args.page_entries = entries.data();
    args.list_begin = compressed ? list_begin.data() : nullptr;
    args.list_stride = static_cast<std::uint32_t>(stride);
    args.num_lists = static_cast<std::uint32_t>(num_lists);
  }
};

cpu::RopeParams rope_params(Random& random, int rotary_dim) {
  cpu::RopeParams p;
  p.scaling = static_cast<cpu::RopeScaling>(random() % 4);
  p.theta = random() % 2 == 0 ? 10000.0 : 500000.0;
  p.rotary_dim = rotary_dim;
  p.factor = 4.0;
  return p;
}

// Numbers whose conversion may have gone the other way: the kernel's angles are as precise as the CPU's, not the same.
testing::AssertionResult close(KvDType type, double expected, double actual, double size) {
  const double step = type == KvDType::kF32    ? 0.0
                      : type == KvDType::kF16  ? 0x1p-10
                      : type == KvDType::kBF16 ? 0x1p-7
                                               : 0.125;
  const double floor = type == KvDType::kF8E4M3 ? 0x1p-9 : 0.0;
  const double allowed = std::max(step * std::fabs(expected), floor) + 2e-6 * size;
  if (std::fabs(expected - actual) <= allowed) return testing::AssertionSuccess();
  return testing::AssertionFailure() << actual << ", expected " << expected;
}

template <std::uint32_t kHeadDim, KvDType kIn, KvDType kPool, std::uint32_t kVec, bool kRotate>
void check_case(std::uint64_t seed) {
  Random random(seed);
  constexpr int kGap = kVec;
  const int rows = between(random, 0, 9), heads = between(random, 1, 9), qo_heads = kRotate ? between(random, 0, 9) : 0;
  Rows k(random, kIn, rows, heads, kHeadDim, kGap), v(random, kIn, rows, heads, kHeadDim, kGap);
  Rows q(random, kIn, rows, qo_heads, kHeadDim, kGap), q_out(random, kIn, rows, qo_heads, kHeadDim, kGap);
  const Rows q_before = q, kept = q_out;
  const bool in_place = random() % 2 == 0;
  Rows& q_to = in_place ? q : q_out;
  Pool pool(random, kPool, heads, kHeadDim, kGap);
  const Pool before = pool;

  AppendArgs args{};
  args.k = k.view.data, args.v = v.view.data;
  args.q = q.bytes.data(), args.q_out = q_to.bytes.data();
  args.k_row_stride = k.view.strides[0], args.k_head_stride = k.view.strides[1];
  args.v_row_stride = v.view.strides[0], args.v_head_stride = v.view.strides[1];
  args.q_row_stride = q.view.strides[0], args.q_head_stride = q.view.strides[1];
  args.q_out_row_stride = q_to.view.strides[0], args.q_out_head_stride = q_to.view.strides[1];
  args.rows = static_cast<std::uint32_t>(rows);
  args.num_kv_heads = static_cast<std::uint32_t>(heads);
  args.num_qo_heads = static_cast<std::uint32_t>(qo_heads);
  args.pool = pool.view;
  const Places places(random, pool.view, rows, args);
  std::uint32_t error = 0;
  args.error = random() % 2 == 0 ? &error : nullptr;

  ThreadPool threads(1);
  cpu::RopeCache cache;
  std::vector<std::int32_t> positions(rows);
  for (std::int32_t& position : positions) position = between(random, 0, random() % 2 == 0 ? 1000 : 200000);
  const int rotary_dim = 2 * kVec * between(random, 1, kHeadDim / (2 * kVec));
  const cpu::RopeParams rope = rope_params(random, rotary_dim);
  const std::vector<float> inv_freq = cpu::rope_frequencies(rope);
  const float* cos_sin = kRotate ? cache.prepare(positions.data(), rows, rope, threads) : nullptr;
  args.rope_positions = positions.data();
  args.inv_freq = inv_freq.data();
  args.attention_factor = cpu::rope_attention_factor(rope);
  args.rotary_dim = kRotate ? static_cast<std::uint32_t>(rotary_dim) : 0;
  ASSERT_GE(append_vec(args, kHeadDim, element_bytes(kIn), element_bytes(kPool)), kVec);

  launch_on_host(append_ctas(args, kVec, kHeadDim), abi::kAppendThreads, random,
                 [&](std::uint32_t thread) { Append<kHeadDim, kIn, kPool, kVec, kRotate>::run(args, thread); });

  EXPECT_EQ(error, args.error != nullptr ? places.error : 0u);
  // The CPU appends the rotated rows, to a pool of the same type, or of fp32 for what it does not store.
  constexpr bool kQuantized = kPool == KvDType::kF8E4M3;
  Pool expected = before;
  if (kQuantized) {
    for (auto* bytes : {&expected.k, &expected.v}) bytes->assign(bytes->size() * 4, 0x55);
    expected.view.dtype = KvDType::kF32;
    expected.point();
  }
  const std::vector<float> k_rows = k.floats(cos_sin, rotary_dim / 2), v_rows = v.floats(nullptr, 0);
  const auto tensor = [&](const std::vector<float>& data) {
    TensorView view{};
    view.data = const_cast<float*>(data.data());
    view.rank = 3;
    view.shape[0] = rows, view.shape[1] = heads, view.shape[2] = kHeadDim;
    view.strides[0] = heads * kHeadDim, view.strides[1] = kHeadDim, view.strides[2] = 1;
    return view;
  };
  const Status status = cpu::append_kv(tensor(k_rows), tensor(v_rows), places.expected.data(), expected.view, threads);
  ASSERT_TRUE(status.ok()) << status.to_string();
  if (!kRotate && !kQuantized) {
    EXPECT_EQ(pool.k, expected.k);
    EXPECT_EQ(pool.v, expected.v);
    return;
  }
  // Elements that nobody writes keep their bytes; the others are close, and quantized ones exact where nothing rotated.
  for (const bool keys : {true, false}) {
    std::vector<std::uint8_t> marked = keys ? pool.k : pool.v;
    const std::vector<std::uint8_t>& actual = keys ? pool.k : pool.v;
    const std::vector<std::uint8_t>& wanted = keys ? expected.k : expected.v;
    for (int row = 0; row < rows; ++row) {
      if (places.expected[row] < 0) continue;
      for (int i = 0; i < heads * static_cast<int>(kHeadDim); ++i) {
        const int head = i / static_cast<int>(kHeadDim), dim = i % static_cast<int>(kHeadDim);
        const int page = places.expected[row] / pool.view.page_tokens,
                  token = places.expected[row] % pool.view.page_tokens;
        const long long element =
            page * pool.view.page_stride + token * pool.view.token_stride + head * pool.view.head_stride + dim;
        std::memset(marked.data() + element * element_bytes(kPool), 0x55, element_bytes(kPool));
        double want = Rows::value(expected.view.dtype, wanted.data(), element);
        if (kQuantized) {
          const bool scaled = pool.view.granularity == abi::ScaleGranularity::kHead;
          const float scale = scaled ? pool.scales[head + (keys ? 0 : heads)] : 1.0f;
          const std::uint32_t bits = nearest_e4m3(static_cast<float>(want) * (1.0f / scale));
          if (!kRotate || !keys) {
            ASSERT_EQ(actual[element], bits);
          }
          want = float_of_e4m3(bits);
        }
        ASSERT_TRUE(close(kPool, want, Rows::value(kPool, actual.data(), element), 10.0)) << row << " " << i;
      }
    }
    EXPECT_EQ(marked, keys ? before.k : before.v);
  }
  const std::vector<float> q_rows = q_before.floats(cos_sin, rotary_dim / 2);
  for (std::size_t i = 0; i < q_rows.size(); ++i) {
    const long long dim = static_cast<long long>(i % kHeadDim), head = static_cast<long long>(i / kHeadDim % qo_heads);
    const long long row = static_cast<long long>(i / kHeadDim / qo_heads);
    ASSERT_TRUE(close(kIn, q_rows[i], q_to.at(row, head, dim), 10.0)) << i;
  }
  if (in_place) {
    EXPECT_EQ(q_out.bytes, kept.bytes);
  } else {
    EXPECT_EQ(q.bytes, q_before.bytes);
  }
}

constexpr KvDType kF32 = KvDType::kF32, kF16 = KvDType::kF16, kBF16 = KvDType::kBF16, kE4M3 = KvDType::kF8E4M3;

template <std::uint32_t kHeadDim, KvDType kIn, KvDType kPool, std::uint32_t kVec>
void check_cases(int count) {
  for (int seed = 0; seed < count && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    check_case<kHeadDim, kIn, kPool, kVec, false>(seed);
    check_case<kHeadDim, kIn, kPool, kVec, true>(seed);
  }
}

TEST(AppendKernelTest, Bf16) {
  check_cases<128, kBF16, kBF16, 8>(200);
  check_cases<64, kBF16, kBF16, 4>(200);
  check_cases<96, kBF16, kF16, 2>(200);
  check_cases<80, kBF16, kF32, 8>(200);
  check_cases<256, kBF16, kBF16, 1>(50);
}

TEST(AppendKernelTest, F16AndF32) {
  check_cases<32, kF16, kF16, 8>(200);
  check_cases<112, kF16, kBF16, 1>(100);
  check_cases<128, kF32, kBF16, 8>(200);
  check_cases<48, kF32, kF16, 4>(200);
  check_cases<64, kF32, kF32, 2>(200);
}

TEST(AppendKernelTest, E4M3) {
  check_cases<128, kBF16, kE4M3, 8>(100);
  check_cases<64, kF16, kE4M3, 4>(100);
  check_cases<48, kF32, kE4M3, 2>(100);
  check_cases<32, kBF16, kE4M3, 1>(100);
}

TEST(AppendKernelTest, RunLengthFollowsAlignment) {
  alignas(16) static std::uint8_t memory[64];
  AppendArgs args{};
  args.k = args.v = memory;
  args.k_row_stride = args.v_row_stride = 256;
  args.k_head_stride = args.v_head_stride = 128;
  args.pool.k = args.pool.v = memory;
  args.pool.page_stride = 4096, args.pool.token_stride = 128, args.pool.head_stride = 1024;
  EXPECT_EQ(append_vec(args, 128, 2, 2), 8u);
  EXPECT_EQ(append_vec(args, 128, 4, 2), 8u);
  args.k_head_stride = 132;  // 8 bytes of 16-bit elements, 16 of fp32
  EXPECT_EQ(append_vec(args, 128, 2, 2), 4u);
  EXPECT_EQ(append_vec(args, 128, 4, 2), 8u);
  args.pool.token_stride = 129;
  EXPECT_EQ(append_vec(args, 128, 4, 2), 1u);
  args.pool.token_stride = 128;
  args.k_head_stride = 128;
  args.rotary_dim = 24;  // pairs are 12 elements apart
  EXPECT_EQ(append_vec(args, 96, 2, 2), 4u);
  args.rotary_dim = 0;
  args.v = memory + 2;
  EXPECT_EQ(append_vec(args, 128, 2, 2), 1u);
}

}  // namespace
}  // namespace fovea::kernels
