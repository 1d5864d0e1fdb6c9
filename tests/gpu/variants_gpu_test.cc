// The gallery (examples/variants) on a GPU, each variant through the public API against the oracle. Run by `make
// gpu-test`.
#include <gtest/gtest.h>

#include "base/half.h"
#include "jit/gallery_test_util.h"
#include "tests/gpu/agreement.h"
#include "tests/gpu/gallery_options.h"

namespace fovea::gpu_test {
namespace {

using jit::GalleryCase;

// Keys, values and queries that a hook changed are stored in 16 bits again before they meet: so is what the bar allows.
std::string judge_variant(const testing::AttentionCase& c, const GalleryCase& gallery, DType dtype,
                          std::vector<double> out) {
  testing::OracleVariant oracle = gallery.oracle;
  oracle.sm_scale = 0.125;
  if (!gallery.changes_rows()) {
    return testing::check_error_bar(testing::oracle_attention(c, oracle).out,
                                    testing::float_attention(c, oracle, dtype, true).out, out);
  }
  const auto rounded = [&](double x) {
    const auto y = static_cast<float>(x);
    return dtype == DType::kBF16 ? bf16_to_float(float_to_bf16(y)) : f16_to_float(float_to_f16(y));
  };
  for (std::size_t i = 0; gallery.undo_output && i < out.size(); ++i) {
    out[i] = rounded(gallery.undo_output(out[i], static_cast<int>(i / jit::kGalleryHeadDim) % jit::kGalleryHeads));
  }
  testing::AttentionCase stored = jit::changed_case(c, gallery, dtype);
  for (float& x : stored.q) x = static_cast<float>(rounded(x));
  return testing::check_error_bar(testing::oracle_attention(jit::changed_case(c, gallery, DType::kF32), oracle).out,
                                  testing::float_attention(stored, oracle, dtype, true).out, out);
}

void run_gallery(Place& place) {
  const std::map<std::string, GalleryCase> cases = jit::gallery_cases();
  for (const jit::GalleryEntry& entry : jit::read_gallery()) {
    const GalleryCase& gallery = cases.at(entry.spec.name);
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      std::vector<std::shared_ptr<void>> kept;
      const Result<AttentionOptions> options = options_of(place, entry.spec, gallery, dtype, kept);
      ASSERT_TRUE(options.ok()) << options.status().to_string();
      Configuration config;
      config.options = *options;
      Result<AgreementRunner> runner = AgreementRunner::create(place, config);
      ASSERT_TRUE(runner.ok()) << entry.title << ": " << runner.status().to_string();
      testing::CaseSpec shape = jit::gallery_shape(dtype);
      shape.q_bf16 = true;  // which f16 holds too
      const testing::AttentionCase c = testing::make_case(shape);
      const Result<AgreementRunner::Output> output = runner->run(c);
      ASSERT_TRUE(output.ok()) << entry.title << ": " << output.status().to_string();
      EXPECT_EQ(judge_variant(c, gallery, dtype, output->out), "") << entry.title << ", " << dtype_name(dtype);
    }
  }
}

TEST(VariantsGpuTest, GalleryAgreesWithTheOracle) {
  auto place = Place::open("cuda:0");
  if (!place.ok()) GTEST_SKIP() << place.status().to_string();
  run_gallery(**place);
}

}  // namespace
}  // namespace fovea::gpu_test
