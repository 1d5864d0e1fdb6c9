// Variants as text: the gallery (examples/variants) under NVRTC, the code of docs/variants.md, parameters by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "abi/attention_args.h"
#include "base/status.h"
#include "jit/attention_spec.h"
#include "jit/compiler.h"
#include "jit/gallery_test_util.h"
#include "jit/host_compiler.h"

namespace fovea::jit {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kLimit = std::uint64_t{1} << 30;

TEST(GalleryTest, EveryVariantIsShortAndCompilesForDevices) {
  Compiler compiler("", kLimit);
  const std::vector<GalleryEntry> gallery = read_gallery();
  EXPECT_GE(gallery.size(), 8u);
  for (const GalleryEntry& entry : gallery) {
    EXPECT_LT(entry.lines, 30) << entry.title;
    for (const char* arch : {"sm_80", "sm_90a"}) {
      AttentionKernelSpec spec;
      spec.arch = arch;
      spec.header = "variant/scalar_math.h";
      spec.variant = entry.spec;
      Result<KernelSource> source = attention_source(spec);
      ASSERT_TRUE(source.ok()) << source.status().to_string();
      // Every hook, called as attention kernels call them.
      source->text += R"(
using V = FOVEA_VARIANT;
using M = fovea::variant::ScalarMath;
extern "C" __global__ void hooks(const __grid_constant__ fovea::abi::AttentionArgs args, float* x) {
  const auto& p = *reinterpret_cast<const fovea::variant::ParamsOf<V>::Type*>(args.variant_params);
  const fovea::variant::LogitPlace<float> at{1.0f, 2.0f, 3, 4};
  const fovea::variant::RowPlace row{static_cast<int>(threadIdx.x), 1, FOVEA_HEAD_DIM};
  x[0] = V::template logit<M>(p, x[0], at);
  if (!V::template visible<M>(p, at)) x[1] = 0.0f;
  x[2] = V::template weight<M>(p, x[2]);
  x[3] = V::query(p, x, 1, row);
  x[4] = V::key(p, x, 1, row);
  x[5] = V::value(p, x, 1, row);
  x[6] = V::extra_logit(p, 2);
  x[7] = V::output(p, x[7], 1, row);
}
)";
      source->text = "#include \"abi/attention_args.h\"\n" + source->text;
      const Result<CubinPtr> cubin = compiler.get(*source);
      EXPECT_TRUE(cubin.ok()) << entry.title << ": " << cubin.status().to_string();
    }
  }
}

// The hooks that a user wrote are found, and only those.
TEST(GalleryTest, HooksAreFoundByThemselves) {
  Compiler compiler("", kLimit);
  for (const GalleryEntry& entry : read_gallery()) {
    AttentionKernelSpec spec;
    spec.header = "variant/scalar_math.h";
    spec.variant = entry.spec;
    KernelSource source = *attention_source(spec);
    const auto has = [&](const char* hook) {
      return entry.spec.source.find(std::string(" ") + hook + "(const Params") != std::string::npos ? "true" : "false";
    };
    source.text += fmt::format(
        "using V = FOVEA_VARIANT;\n"
        "static_assert(V::kHasLogit == {} && V::kHasVisible == {} && V::kHasQuery == {} && V::kHasKey == {});\n"
        "static_assert(V::kHasValue == {} && V::kHasExtraLogit == {} && V::kHasOutput == {});\n"
        "__global__ void nothing() {{}}\n",
        has("logit"), has("visible"), has("query"), has("key"), has("value"), has("extra_logit"), has("output"));
    const Result<CubinPtr> cubin = compiler.get(source);
    EXPECT_TRUE(cubin.ok()) << entry.title << ": " << cubin.status().to_string();
  }
}

// The code block of the page behind "<!-- test: NAME -->".
std::string marked_code(const std::string& name) {
  std::string code;
  bool marked = false, in_code = false;
  for (const std::string& line : variants_page()) {
    if (line == "<!-- test: " + name + " -->") marked = true;
    if (line == "```") marked = in_code = false;
    if (in_code) code += line + "\n";
    if (marked && line == "```cpp") in_code = true;
  }
  return code;
}

TEST(GalleryTest, ThePageShowsOneAsItStands) {
  std::string page;
  for (const std::string& line : variants_page()) page += line + "\n";
  const std::vector<GalleryEntry> gallery = read_gallery();
  EXPECT_THAT(page, HasSubstr("```cpp\n" + gallery.front().spec.source + "```\n"));
  for (const GalleryEntry& entry : gallery) EXPECT_THAT(page, HasSubstr("`" + entry.title + "`"));
}

TEST(GalleryTest, TheUseOfMasksAndOptionsCompiles) {
  const std::string masks = marked_code("masks");
  const std::string use = marked_code("use");
  ASSERT_THAT(masks, HasSubstr("kWindow"));
  ASSERT_THAT(use, HasSubstr("variant_values"));
  HostCompiler compiler("", kLimit);
  const Result<SharedObjectPtr> object = compiler.get(
      {"the page",
       "#include \"fovea/attention.h\"\n#include <vector>\nvoid masks(fovea::RequestBatch& batch, "
       "std::vector<std::uint8_t>& bits, std::vector<std::int64_t>& offsets) {\n" +
           masks +
           "}\ninline void use(fovea::AttentionOptions& options, const char* text, fovea::TensorView slopes) {\n" +
           use + "}\n",
       {"-I", FOVEA_SOURCE_DIR "/include", "-fsyntax-only"}});
  EXPECT_THAT(object.status().message(), HasSubstr("object.so")) << "it compiles, and leaves no object";
}

VariantSpec spec_with(std::vector<VariantParam> params) {
  return {"Own", "struct Own : Plain {};", "", std::move(params)};
}

TEST(VariantArgsTest, ValuesLieWhereHooksReadThem) {
  const VariantSpec spec = spec_with({{"a", VariantParamType::kFloat},
                                      {"b", VariantParamType::kIntTensor},
                                      {"c", VariantParamType::kInt},
                                      {"d", VariantParamType::kFloat},
                                      {"e", VariantParamType::kFloatTensor},
                                      {"f", VariantParamType::kInt}});
  struct Params : AttentionParams {
    float a;
    const int* b;
    int c;
    float d;
    const float* e;
    int f;
  };
  const std::int32_t b = 5;
  const float e = 6.0f;
  VariantArgs args = *VariantArgs::create(spec);
  EXPECT_THAT(args.check().message(), HasSubstr("a, b, c, d, e, f"));
  EXPECT_TRUE(args.set("a", 0.5).ok());
  EXPECT_TRUE(args.set("b", &b).ok());
  EXPECT_TRUE(args.set("c", -7).ok());
  EXPECT_TRUE(args.set("d", 2).ok());
  EXPECT_TRUE(args.set("e", &e).ok());
  EXPECT_THAT(args.check().message(), HasSubstr("never set: f"));
  EXPECT_TRUE(args.set("f", 9).ok());
  EXPECT_TRUE(args.check().ok());
  args.shipped().sm_scale = 0.25f;
  ASSERT_EQ(args.bytes().size(), sizeof(Params));
  const auto& params = static_cast<const Params&>(args.shipped());
  EXPECT_EQ(params.sm_scale, 0.25f);
  EXPECT_EQ(params.a, 0.5f);
  EXPECT_EQ(params.b, &b);
  EXPECT_EQ(params.c, -7);
  EXPECT_EQ(params.d, 2.0f);
  EXPECT_EQ(params.e, &e);
  EXPECT_EQ(params.f, 9);
}

TEST(VariantArgsTest, WrongNamesAndTypesAreRefused) {
  VariantArgs args = *VariantArgs::create(spec_with(
      {{"scale", VariantParamType::kFloat}, {"count", VariantParamType::kInt}, {"t", VariantParamType::kFloatTensor}}));
  EXPECT_EQ(args.set("scales", 1.0).code(), StatusCode::kNotFound);
  EXPECT_THAT(args.set("scales", 1.0).message(), HasSubstr("scale, count, t"));
  EXPECT_EQ(args.set("count", 1.5).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(args.set("count", 1.5).message(), HasSubstr("is float, expected int"));
  const std::int32_t one = 1;
  EXPECT_EQ(args.set("t", &one).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(args.set("scale", &one).code(), StatusCode::kInvalidArgument);
}

TEST(VariantSpecTest, TellsWhichTransformKeysOrValues) {
  for (const GalleryEntry& entry : read_gallery()) {
    const bool expected = entry.spec.name == "FusedRope" || entry.spec.name == "ChannelScales";
    EXPECT_EQ(may_transform_kv(entry.spec), expected) << entry.title;
  }
  EXPECT_FALSE(may_transform_kv(shipped_variant(VariantId::kAlibi)));
  EXPECT_TRUE(may_transform_kv({"Own", "static float value (const Params&", "", {}}));
  EXPECT_FALSE(may_transform_kv({"Own", "float my_key(int); int key; // value", "", {}}));
}

TEST(VariantSpecTest, WrongSpecsAreRefused) {
  const auto code = [](const VariantSpec& spec) { return VariantArgs::create(spec).status().code(); };
  EXPECT_EQ(code(spec_with({})), StatusCode::kOk);
  EXPECT_EQ(code(spec_with({{"2x", VariantParamType::kInt}})), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(spec_with({{"", VariantParamType::kInt}})), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(spec_with({{"softcap", VariantParamType::kFloat}})), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(spec_with({{"x", VariantParamType::kFloat}, {"x", VariantParamType::kInt}})),
            StatusCode::kInvalidArgument);
  std::vector<VariantParam> many;
  for (int i = 0; i < 56; ++i) many.push_back({"x" + std::to_string(i), VariantParamType::kFloat});
  EXPECT_EQ(code(spec_with(many)), StatusCode::kOk);
  many.push_back({"last", VariantParamType::kFloat});
  EXPECT_EQ(code(spec_with(many)), StatusCode::kOutOfRange);
  VariantSpec spec = spec_with({});
  spec.name = "Own; int x";
  EXPECT_EQ(code(spec), StatusCode::kInvalidArgument);
  spec = spec_with({{"x", VariantParamType::kFloat}});
  spec.source.clear();
  EXPECT_EQ(code(spec), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_variant("/nowhere.h", "Own", {}).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(read_variant(FOVEA_SOURCE_DIR "/examples/variants/alibi.h", "LinearBias", {}).ok());
}

}  // namespace
}  // namespace fovea::jit
