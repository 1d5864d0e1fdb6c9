// Variants given as text, on the CPU: the gallery of docs/variants.md against the oracle, and what a wrong one says.
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <map>

#include "cpu/attention/attention_test_util.h"
#include "cpu/attention/variant_compiler.h"
#include "cpu/simd.h"
#include "jit/gallery_test_util.h"

namespace fovea::cpu {
namespace {

namespace fs = std::filesystem;
using jit::VariantArgs;
using ::testing::HasSubstr;

constexpr int kKvHeads = 2;
constexpr int kGroup = 4;
constexpr int kHeadDim = 64;

// A cache folder of the test's own, empty at first.
class UserVariantTest : public ::testing::Test {
 protected:
  UserVariantTest() {
    std::string pattern = ::testing::TempDir() + "fovea-variant-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    compiler_ = std::make_unique<jit::HostCompiler>(folder_, std::uint64_t{1} << 30);
  }
  ~UserVariantTest() override { fs::remove_all(folder_); }

  std::string folder_;
  std::unique_ptr<jit::HostCompiler> compiler_;
};

// A gallery entry, restated for the oracle: logits through its own variant, rows by changing the case beforehand, and
// the output hook by undoing it.
struct Expectation {
  using RowChange = std::function<double(const std::vector<double>& row, int d, int position, int head)>;
  std::function<void(VariantArgs&)> set = [](VariantArgs&) {};
  testing::OracleVariant oracle;
  RowChange query, key, value;
  std::function<double(double o, int head)> undo_output;
  bool changes_rows() const { return query || key || value || undo_output; }
};

std::vector<float> ramp(int size, float first, float step) {
  std::vector<float> values;
  for (int i = 0; i < size; ++i) values.push_back(first + step * static_cast<float>(i));
  return values;
}

// Values that the parameters point at live here, for all tests.
const std::vector<float>& slopes() {
  static const std::vector<float> values = ramp(kKvHeads * kGroup, 0.01f, 0.03f);
  return values;
}
const std::vector<float>& sinks() {
  static const std::vector<float> values = ramp(kKvHeads * kGroup, -1.0f, 0.5f);
  return values;
}
const std::vector<float>& channel_scales(bool keys) {
  static const std::vector<float> k = ramp(kKvHeads * kHeadDim, 0.5f, 0.01f);
  static const std::vector<float> v = ramp(kKvHeads * kHeadDim, 1.5f, -0.005f);
  return keys ? k : v;
}
const std::vector<std::int32_t>& windows() {
  static const std::vector<std::int32_t> values = {3, 10, 30, 60, 100, 150, 1, 1000};
  return values;
}
const std::vector<float>& inv_freq() {
  static const std::vector<float> values = [] {
    std::vector<float> v;
    for (int i = 0; i < kHeadDim / 2; ++i) v.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / kHeadDim));
    return v;
  }();
  return values;
}

double rotated(const std::vector<double>& row, int d, int position, int) {
  const int half = kHeadDim / 2;
  const double angle = position * double{inv_freq()[static_cast<std::size_t>(d % half)]};
  const double other = d < half ? -row[static_cast<std::size_t>(d + half)] : row[static_cast<std::size_t>(d - half)];
  return row[static_cast<std::size_t>(d)] * std::cos(angle) + other * std::sin(angle);
}

std::map<std::string, Expectation> expectations() {
  std::map<std::string, Expectation> all;
  all["SoftCapped"].set = [](VariantArgs& a) { a.shipped().softcap = 2.0f; };
  all["SoftCapped"].oracle.softcap = 2.0;
  all["LinearBias"].set = [](VariantArgs& a) { EXPECT_TRUE(a.set("slopes", slopes().data()).ok()); };
  all["LinearBias"].oracle.alibi_slopes = slopes();
  all["LearnedSinks"].set = [](VariantArgs& a) { a.shipped().sinks = sinks().data(); };
  all["LearnedSinks"].oracle.sinks = sinks();
  all["SigmoidWeights"].set = [](VariantArgs& a) { a.shipped().sigmoid_bias = -3.0f; };
  all["SigmoidWeights"].oracle.sigmoid = true;
  all["SigmoidWeights"].oracle.sigmoid_bias = -3.0;
  all["FusedRope"].set = [](VariantArgs& a) { EXPECT_TRUE(a.set("inv_freq", inv_freq().data()).ok()); };
  all["FusedRope"].query = all["FusedRope"].key = rotated;
  all["HeadWindows"].set = [](VariantArgs& a) { EXPECT_TRUE(a.set("window", windows().data()).ok()); };
  all["HeadWindows"].oracle.custom = [](double logit, int q_pos, int kv_pos, int head) {
    return q_pos - kv_pos < windows()[static_cast<std::size_t>(head)] ? logit
                                                                      : -std::numeric_limits<double>::infinity();
  };
  all["ChannelScales"].set = [](VariantArgs& a) {
    EXPECT_TRUE(a.set("k_scale", channel_scales(true).data()).ok());
    EXPECT_TRUE(a.set("v_scale", channel_scales(false).data()).ok());
  };
  const auto scaled = [](bool keys) {
    return [keys](const std::vector<double>& row, int d, int, int head) {
      return row[static_cast<std::size_t>(d)] * channel_scales(keys)[static_cast<std::size_t>(head * kHeadDim + d)];
    };
  };
  all["ChannelScales"].key = scaled(true);
  all["ChannelScales"].value = scaled(false);
  all["LogScaledGated"].set = [](VariantArgs& a) {
    EXPECT_TRUE(a.set("trained_tokens", 64).ok());
    EXPECT_TRUE(a.set("floor", 0.75).ok());
    EXPECT_TRUE(a.set("gates", slopes().data()).ok());
  };
  all["LogScaledGated"].query = [](const std::vector<double>& row, int d, int position, int) {
    return row[static_cast<std::size_t>(d)] * std::max(0.75, std::log(position + 1.0) / std::log(64.0));
  };
  all["LogScaledGated"].undo_output = [](double o, int head) { return o / slopes()[static_cast<std::size_t>(head)]; };
  return all;
}

// The same case with queries, keys and values already changed, its KV in fp32.
testing::AttentionCase changed_case(const testing::AttentionCase& c, const Expectation& expect) {
  testing::CaseSpec spec = c.spec;
  spec.kv_dtype = DType::kF32;
  testing::AttentionCase changed = testing::make_case(spec);
  std::vector<double> row(kHeadDim);
  const auto change = [&](const Expectation::RowChange& f, int position, int head, float* to) {
    for (int d = 0; d < kHeadDim; ++d) {
      to[d] = static_cast<float>(f ? f(row, d, position, head) : row[static_cast<std::size_t>(d)]);
    }
  };
  std::size_t q_row = 0;
  for (int r = 0; r < c.num_requests(); ++r) {
    const auto request = static_cast<std::size_t>(r);
    for (int i = 0; i < spec.q_lens[request]; ++i) {
      for (int h = 0; h < kKvHeads * kGroup; ++h, ++q_row) {
        for (int d = 0; d < kHeadDim; ++d) row[static_cast<std::size_t>(d)] = c.q[q_row * kHeadDim + d];
        change(expect.query, spec.kv_lens[request] - spec.q_lens[request] + i, h, changed.q.data() + q_row * kHeadDim);
      }
    }
    for (int t = 0; t < spec.kv_lens[request]; ++t) {
      const std::int64_t page =
          c.page_table[request * static_cast<std::size_t>(c.page_table_stride) + t / spec.page_tokens];
      for (int h = 0; h < kKvHeads; ++h) {
        const std::int64_t at = page * changed.pool.page_stride + t % spec.page_tokens * changed.pool.token_stride +
                                h * changed.pool.head_stride;
        for (const bool key : {true, false}) {
          for (int d = 0; d < kHeadDim; ++d) row[static_cast<std::size_t>(d)] = c.element(key, r, t, h, d);
          change(key ? expect.key : expect.value, t, h,
                 reinterpret_cast<float*>((key ? changed.k : changed.v).data()) + at);
        }
      }
    }
  }
  return changed;
}

void compare_with_oracle(const VariantSpec& spec, const AttentionKernels& kernels, const Expectation& expect) {
  Result<VariantArgs> args = VariantArgs::create(spec);
  ASSERT_TRUE(args.ok()) << args.status().to_string();
  expect.set(*args);
  ASSERT_TRUE(args->check().ok()) << args->check().to_string();
  args->shipped().sm_scale = 0.125f;
  testing::OracleVariant oracle = expect.oracle;
  oracle.sm_scale = 0.125;
  Judge judge;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    testing::CaseSpec shape;
    shape.q_lens = {1, 30, 1, 1, 3};
    shape.kv_lens = {180, 150, 5, 190, 64};
    shape.kv_heads = kKvHeads;
    shape.group = kGroup;
    shape.head_dim = kHeadDim;
    shape.shared_tokens = 64;
    shape.kv_dtype = dtype;
    const testing::AttentionCase c = testing::make_case(shape);
    RunSpec run;
    run.num_workers = 3;
    const Planner planner = make_planner(c, run);
    RunResult result = run_plan(c, planner.view(), args->shipped(), kernels, DType::kF32, test_threads());
    const std::string where = spec.name + ", " + std::string(simd_target()) + ", " + c.describe();
    if (!expect.changes_rows()) {
      judge.judge(c, oracle, DType::kF32, result, where);
      continue;
    }
    // What the row hooks did in fp32 is exact enough for the bar of bf16.
    for (std::size_t i = 0; i < result.out.size(); ++i) {
      const int head = static_cast<int>(i / kHeadDim) % (kKvHeads * kGroup);
      const double x = expect.undo_output ? expect.undo_output(result.out[i], head) : result.out[i];
      result.out[i] = testing::float_of_bf16(testing::bf16_of(static_cast<float>(x)));
    }
    judge.judge(changed_case(c, expect), oracle, DType::kBF16, result, where);
  }
}

TEST_F(UserVariantTest, GalleryAgreesWithTheOracle) {
  std::map<std::string, Expectation> expected = expectations();
  for (const jit::GalleryEntry& entry : jit::read_gallery()) {
    const auto expect = expected.find(entry.spec.name);
    ASSERT_NE(expect, expected.end()) << entry.title << " is not compared with the oracle";
    const Result<AttentionKernels> variant = compile_variant(entry.spec, *compiler_);
    ASSERT_TRUE(variant.ok()) << variant.status().to_string();
    compare_with_oracle(entry.spec, *variant, expect->second);
    expected.erase(expect);
  }
  EXPECT_TRUE(expected.empty()) << expected.begin()->first << " is not in docs/variants.md";
}

TEST_F(UserVariantTest, EveryInstructionSetAndTheCache) {
  VariantSpec spec = jit::read_gallery()[1].spec;
  ASSERT_EQ(spec.name, "LinearBias");
  const Expectation expect = expectations()["LinearBias"];
  for (const std::string_view target : simd_targets()) {
    ASSERT_TRUE(set_simd_cap(target).ok());
    jit::Origin origin;
    const Result<AttentionKernels> variant = compile_variant(spec, *compiler_, &origin);
    ASSERT_TRUE(variant.ok()) << variant.status().to_string();
    EXPECT_EQ(origin, jit::Origin::kCompiled);
    compare_with_oracle(spec, *variant, expect);
    ASSERT_TRUE(compile_variant(spec, *compiler_, &origin).ok());
    EXPECT_EQ(origin, jit::Origin::kMemory);
    jit::HostCompiler another(folder_, std::uint64_t{1} << 30);
    const Result<AttentionKernels> again = compile_variant(spec, another, &origin);
    EXPECT_EQ(origin, jit::Origin::kDisk);
    compare_with_oracle(spec, *again, expect);
  }
  ASSERT_TRUE(set_simd_cap("").ok());
}

TEST_F(UserVariantTest, WrongVariantsPointAtTheirLine) {
  VariantSpec spec;
  spec.name = "Wrong";
  spec.file = "my variant.h";
  spec.source = R"(struct Wrong : Plain {

  static float extra_logit(const Params& p, int head) { return p.temperature * head; }
};)";
  const Status status = compile_variant(spec, *compiler_).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("my variant.h:3:"));
  EXPECT_THAT(status.message(), HasSubstr("temperature"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(UserVariantTest, WithoutACompilerItSaysSo) {
  VariantSpec spec;
  spec.name = "Own";
  spec.source = "struct Own : Plain {};";
  ::setenv("FOVEA_CXX", "no-such-compiler", 1);
  const Status status = compile_variant(spec, *compiler_).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("FOVEA_CXX is no-such-compiler"));
  ::setenv("FOVEA_CXX", "/bin/false", 1);
  EXPECT_EQ(compile_variant(spec, *compiler_).status().code(), StatusCode::kInvalidArgument);
  ::unsetenv("FOVEA_CXX");
}

}  // namespace
}  // namespace fovea::cpu
