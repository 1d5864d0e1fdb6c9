// Variants given as text, on the CPU: the gallery (examples/variants) against the oracle, and what a wrong one says.
#include <gmock/gmock.h>

#include <filesystem>
#include <map>

#include "cpu/attention/attention_test_util.h"
#include "cpu/attention/variant_compiler.h"
#include "cpu/simd.h"
#include "jit/gallery_cases_test_util.h"
#include "jit/gallery_test_util.h"

namespace fovea::cpu {
namespace {

namespace fs = std::filesystem;
using jit::VariantArgs;
using ::testing::HasSubstr;

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

void compare_with_oracle(const VariantSpec& spec, const AttentionKernels& kernels, const jit::GalleryCase& expect) {
  Result<VariantArgs> args = VariantArgs::create(spec);
  ASSERT_TRUE(args.ok()) << args.status().to_string();
  for (const auto& [name, value] : expect.numbers) {
    const bool whole = name == "trained_tokens";
    ASSERT_TRUE((whole ? args->set(name, static_cast<int>(value)) : args->set(name, value)).ok()) << name;
  }
  for (const auto& [name, values] : expect.floats) ASSERT_TRUE(args->set(name, values.data()).ok()) << name;
  for (const auto& [name, values] : expect.ints) ASSERT_TRUE(args->set(name, values.data()).ok()) << name;
  ASSERT_TRUE(args->check().ok()) << args->check().to_string();
  AttentionParams& params = args->shipped();
  params.sm_scale = 0.125f;
  params.softcap = expect.softcap;
  params.sigmoid_bias = expect.sigmoid_bias;
  params.sinks = expect.sinks.data();
  testing::OracleVariant oracle = expect.oracle;
  oracle.sm_scale = 0.125;
  Judge judge;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const testing::AttentionCase c = testing::make_case(jit::gallery_shape(dtype));
    RunSpec run;
    run.num_workers = 3;
    const Planner planner = make_planner(c, run);
    RunResult result = run_plan(c, planner.view(), params, kernels, DType::kF32, test_threads());
    const std::string where = spec.name + ", " + std::string(simd_target()) + ", " + c.describe();
    if (!expect.changes_rows()) {
      judge.judge(c, oracle, DType::kF32, result, where);
      continue;
    }
    // What the row hooks did in fp32 is exact enough for the bar of bf16.
    for (std::size_t i = 0; i < result.out.size(); ++i) {
      const int head = static_cast<int>(i / jit::kGalleryHeadDim) % jit::kGalleryHeads;
      const double x = expect.undo_output ? expect.undo_output(result.out[i], head) : result.out[i];
      result.out[i] = testing::float_of_bf16(testing::bf16_of(static_cast<float>(x)));
    }
    judge.judge(jit::changed_case(c, expect, DType::kF32), oracle, DType::kBF16, result, where);
  }
}

TEST_F(UserVariantTest, GalleryAgreesWithTheOracle) {
  std::map<std::string, jit::GalleryCase> expected = jit::gallery_cases();
  for (const jit::GalleryEntry& entry : jit::read_gallery()) {
    const auto expect = expected.find(entry.spec.name);
    ASSERT_NE(expect, expected.end()) << entry.title << " is not compared with the oracle";
    const Result<AttentionKernels> variant = compile_variant(entry.spec, *compiler_);
    ASSERT_TRUE(variant.ok()) << variant.status().to_string();
    compare_with_oracle(entry.spec, *variant, expect->second);
    expected.erase(expect);
  }
  EXPECT_TRUE(expected.empty()) << expected.begin()->first << " is not in examples/variants";
}

TEST_F(UserVariantTest, EveryInstructionSetAndTheCache) {
  VariantSpec spec = jit::read_gallery()[0].spec;
  ASSERT_EQ(spec.name, "LinearBias");
  const jit::GalleryCase expect = jit::gallery_cases()["LinearBias"];
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
