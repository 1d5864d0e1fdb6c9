// Random cases of the append kernel and what must come out: shapes, strides, layouts, page lists, slots, rotation. The
// expected pool is the CPU backend's. Used by the tests that run the kernel on the host and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <array>

#include "abi/append_args.h"
#include "cpu/append.h"
#include "cpu/ops/elementwise.h"
#include "cpu/ops/rope.h"
#include "tests/kernels/values.h"

namespace fovea::kernel_test {

using abi::AppendArgs;

inline DType dtype_of(KvDType type) { return static_cast<DType>(type); }

// [rows, heads, dim] with gaps, in memory of random numbers of its type.
struct Rows {
  Memory<std::uint8_t> bytes;
  TensorView view{};

  Rows(Random& random, KvDType type, int rows, int heads, int dim, int gap) {
    view.dtype = dtype_of(type);
    view.rank = 3;
    view.shape[0] = rows, view.shape[1] = heads, view.shape[2] = dim;
    view.strides[2] = 1;
    view.strides[1] = dim + gap * between(random, 0, 2);
    view.strides[0] = view.strides[1] * heads + gap * between(random, 0, 2);
    const std::size_t count = static_cast<std::size_t>(view.strides[0] * std::max(rows, 1));
    bytes.resize((count + 16) * type_bytes(type));
    std::normal_distribution<float> normal(0.0f, 3.0f);
    for (std::size_t i = 0; i < count; ++i) set_value(type, bytes.data(), static_cast<long long>(i), normal(random));
    view.data = bytes.data();
  }

  float at(long long row, long long head, long long dim) const {
    return value(static_cast<KvDType>(view.dtype), bytes.data(), row * view.strides[0] + head * view.strides[1] + dim);
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
  Memory<std::uint8_t> k, v;
  abi::KvPoolView view{};
  Memory<float> scales;  // of keys, then of values; none: 1
  bool values_scaled = true;

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
    k.assign(static_cast<std::size_t>(view.page_stride * view.num_pages) * type_bytes(type), 0x55);
    v = k;
    if (type == KvDType::kF8E4M3 && random() % 4 != 0) {
      view.granularity = abi::ScaleGranularity::kHead;
      for (int i = 0; i < 2 * heads; ++i) scales.push_back(0.01f * static_cast<float>(between(random, 1, 30)));
      values_scaled = random() % 4 != 0;
    }
    point();
  }
  Pool(const Pool& other)
      : k(other.k), v(other.v), view(other.view), scales(other.scales), values_scaled(other.values_scaled) {
    point();
  }

  void point() {
    view.k = k.data(), view.v = v.data();
    const auto half = static_cast<std::ptrdiff_t>(scales.size() / 2);
    view.k_scale = half > 0 ? scales.data() : nullptr;
    view.v_scale = half > 0 && values_scaled ? scales.data() + half : nullptr;
  }
};

// Where rows go, told the kernel's way, and as slots (-1: nowhere) for the CPU.
struct Places {
  Memory<std::int32_t> slots, batch_indices, positions, entries, list_begin;
  std::vector<std::int32_t> expected;
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
    const int known =
        random() % 4 == 0 && !entries.empty() ? between(random, 1, static_cast<int>(entries.size())) : 0x7fffffff;
    args.num_page_entries = known == 0x7fffffff ? 0 : static_cast<std::uint32_t>(known);
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
      const int nth = list < num_lists ? list_begin[list] + position / pool.entry_tokens : 0;
      if (list >= num_lists || position / pool.entry_tokens >= length || nth >= known) {
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

inline RopeConfig rope_config(Random& random, int rotary_dim) {
  constexpr RopeKind kKinds[] = {RopeKind::kPlain, RopeKind::kLinear, RopeKind::kLlama3, RopeKind::kYarn,
                                 RopeKind::kLongRope};
  RopeConfig p;
  p.kind = kKinds[random() % std::size(kKinds)];
  if (p.kind == RopeKind::kLongRope) {
    for (int i = 0; i < rotary_dim / 2; ++i) p.frequency_divisors.push_back(between(random, 1, 20));
  }
  p.theta = random() % 2 == 0 ? 10000.0 : 500000.0;
  p.rotary_dim = rotary_dim;
  p.factor = 4.0;
  return p;
}

// Numbers whose conversion may have gone the other way: the kernel's angles are as precise as the CPU's, not the same.
inline ::testing::AssertionResult close(KvDType type, double expected, double actual, double size) {
  const double step = type == KvDType::kF32    ? 0.0
                      : type == KvDType::kF16  ? 0x1p-10
                      : type == KvDType::kBF16 ? 0x1p-7
                                               : 0.125;
  const double floor = type == KvDType::kF8E4M3 ? 0x1p-9 : 0.0;
  const double allowed = std::max(step * std::fabs(expected), floor) + 2e-6 * size;
  if (std::fabs(expected - actual) <= allowed) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << actual << ", expected " << expected;
}

// One random case. run(args) launches the kernel and waits for it.
template <std::uint32_t kHeadDim, KvDType kIn, KvDType kPool, std::uint32_t kVec, bool kRotate, typename Run>
void check_append(std::uint64_t seed, Run&& run) {
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
  Memory<std::uint32_t> error(1);
  args.error = random() % 2 == 0 ? error.data() : nullptr;

  ThreadPool threads(1);
  cpu::RopeCache cache;
  Memory<std::int32_t> positions(rows);
  for (std::int32_t& position : positions) position = between(random, 0, random() % 2 == 0 ? 1000 : 200000);
  const int rotary_dim = 2 * kVec * between(random, 1, kHeadDim / (2 * kVec));
  const RopeConfig rope = rope_config(random, rotary_dim);
  const std::vector<float> frequencies = rope_frequencies(rope);
  const Memory<float> inv_freq(frequencies.begin(), frequencies.end());
  const float* cos_sin = kRotate ? cache.prepare(positions.data(), rows, rope, threads) : nullptr;
  args.rope_positions = positions.data();
  args.inv_freq = inv_freq.data();
  args.attention_factor = rope_attention_factor(rope);
  args.rotary_dim = kRotate ? static_cast<std::uint32_t>(rotary_dim) : 0;
  ASSERT_GE(append_vec(args, kHeadDim, type_bytes(kIn), type_bytes(kPool)), kVec);

  run(args);

  EXPECT_EQ(error[0], args.error != nullptr ? places.error : 0u);
  // The CPU appends the rotated rows, to a pool of the same type, or of fp32 for what it does not store.
  constexpr bool kQuantized = kPool == KvDType::kF8E4M3;
  Pool expected = before;
  if (kQuantized) {
    for (auto* bytes : {&expected.k, &expected.v}) bytes->assign(bytes->size() * 4, 0x55);
    expected.view.dtype = KvDType::kF32;
    expected.view.granularity = abi::ScaleGranularity::kNone;
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
    Memory<std::uint8_t> marked = keys ? pool.k : pool.v;
    const Memory<std::uint8_t>& actual = keys ? pool.k : pool.v;
    const Memory<std::uint8_t>& wanted = keys ? expected.k : expected.v;
    for (int row = 0; row < rows; ++row) {
      if (places.expected[row] < 0) continue;
      for (int i = 0; i < heads * static_cast<int>(kHeadDim); ++i) {
        const int head = i / static_cast<int>(kHeadDim), dim = i % static_cast<int>(kHeadDim);
        const int page = places.expected[row] / pool.view.page_tokens,
                  token = places.expected[row] % pool.view.page_tokens;
        const long long element =
            page * pool.view.page_stride + token * pool.view.token_stride + head * pool.view.head_stride + dim;
        std::memset(marked.data() + element * type_bytes(kPool), 0x55, type_bytes(kPool));
        double want = value(expected.view.dtype, wanted.data(), element);
        if (kQuantized) {
          const bool scaled = (keys ? pool.view.k_scale : pool.view.v_scale) != nullptr;
          const float scale = scaled ? pool.scales[head + (keys ? 0 : heads)] : 1.0f;
          const std::uint32_t bits = nearest_e4m3(static_cast<float>(want) * (1.0f / scale));
          if (!kRotate || !keys) {
            ASSERT_EQ(actual[element], bits);
          }
          want = float_of_e4m3(bits);
        }
        ASSERT_TRUE(close(kPool, want, value(kPool, actual.data(), element), 10.0)) << row << " " << i;
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

// The same for pools with a scale for each token and head: bit for bit what the CPU backend writes, scales too.
template <std::uint32_t kHeadDim, KvDType kIn, KvDType kPool, std::uint32_t kVec, bool kRotated, typename Run>
void check_quantizing_append(std::uint64_t seed, Run&& run) {
  Random random(seed);
  const int rows = between(random, 0, 9), heads = between(random, 1, 9);
  Rows k(random, kIn, rows, heads, kHeadDim, kVec), v(random, kIn, rows, heads, kHeadDim, kVec);
  for (Rows* tensor : {&k, &v}) {
    if (rows == 0) continue;
    const float odd[] = {std::nanf(""), 1e30f, -std::numeric_limits<float>::infinity(), 0.0f, 1e-7f};
    for (int i = 0; i < 3; ++i) {
      set_value(kIn, tensor->bytes.data(), between(random, 0, static_cast<int>(kHeadDim) - 1), odd[random() % 5]);
    }
  }
  abi::KvPoolView view{};
  view.dtype = kPool;
  view.granularity = abi::ScaleGranularity::kTokenHead;
  view.rotated = kRotated;
  view.num_pages = between(random, 1, 12);
  view.entries_per_page = 1 << between(random, 0, 2);
  view.entry_tokens = between(random, 1, 5);
  view.page_tokens = view.entry_tokens * view.entries_per_page;
  const bool heads_first = random() % 2 == 0;
  view.token_stride = heads_first ? kHeadDim : kHeadDim * heads;
  view.head_stride = heads_first ? kHeadDim * view.page_tokens : kHeadDim;
  view.page_stride = static_cast<long long>(kHeadDim) * heads * view.page_tokens + 2 * kVec * between(random, 0, 2);
  view.scale_head_stride = view.page_tokens;
  view.scale_page_stride = view.page_tokens * heads;
  struct Arrays {
    Memory<std::uint8_t> k, v;
    Memory<std::uint32_t> k_scale, v_scale;
    void point(abi::KvPoolView& view) {
      view.k = k.data(), view.v = v.data();
      view.k_scale = k_scale.data(), view.v_scale = v_scale.data();
    }
  } actual;
  actual.k.assign(static_cast<std::size_t>(view.page_stride * view.num_pages), 0x55);
  actual.k_scale.assign(static_cast<std::size_t>(view.scale_page_stride * view.num_pages), 0x55555555);
  actual.v = actual.k;
  actual.v_scale = actual.k_scale;
  Arrays expected = actual;
  actual.point(view);

  AppendArgs args{};
  args.k = k.view.data, args.v = v.view.data;
  args.k_row_stride = k.view.strides[0], args.k_head_stride = k.view.strides[1];
  args.v_row_stride = v.view.strides[0], args.v_head_stride = v.view.strides[1];
  args.rows = static_cast<std::uint32_t>(rows);
  args.num_kv_heads = static_cast<std::uint32_t>(heads);
  args.pool = view;
  const Places places(random, view, rows, args);
  Memory<std::uint32_t> error(1);
  args.error = error.data();
  ASSERT_GE(append_vec(args, kHeadDim, type_bytes(kIn), 1), kVec);

  run(args);

  EXPECT_EQ(error[0], places.error);
  expected.point(view);
  ThreadPool threads(1);
  const Status status = cpu::append_kv(k.view, v.view, places.expected.data(), view, threads);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(actual.k, expected.k);
  EXPECT_EQ(actual.v, expected.v);
  EXPECT_EQ(actual.k_scale, expected.k_scale);
  EXPECT_EQ(actual.v_scale, expected.v_scale);
}

}  // namespace fovea::kernel_test
