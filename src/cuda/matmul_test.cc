// Products as cuBLASLt is asked for them: orders, strides, alignments; what is refused, and what failures leave.
#include "cuda/matmul.h"

#include <vector>

#include "base/half.h"
#include "cuda/cublaslt.h"
#include "cuda/fake_test_util.h"

namespace fovea::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kWorkspace = 4096;

MatmulSpec spec_of(std::int64_t rows, std::int64_t in, std::int64_t out, MatmulType type, MatmulType y_type) {
  return {rows, in, out, in + 3, in + 1, out + 2, type, y_type, false};
}

// Small integers, exact in every type.
float x_at(std::int64_t row, std::int64_t k) { return static_cast<float>((row * 3 + k) % 5 - 2); }
float w_at(std::int64_t column, std::int64_t k) { return static_cast<float>((column + 2 * k) % 7 - 3); }

std::uint16_t narrow(MatmulType type, float value) {
  return type == MatmulType::kF16 ? float_to_f16(value) : float_to_bf16(value);
}
float widen(MatmulType type, std::uint16_t bits) {
  return type == MatmulType::kF16 ? f16_to_float(bits) : bf16_to_float(bits);
}

class MatmulTest : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    auto matmul = Matmul::create(*device_, kWorkspace);
    ASSERT_TRUE(matmul.ok()) << matmul.status().to_string();
    matmul_.emplace(std::move(*matmul));
  }
  void TearDown() override {
    fake::state().failures.clear();
    matmul_.reset();
    FakeCudaTest::TearDown();
  }

  // Every element of y is the product's, and what lies between its rows is untouched.
  void expect_product(const MatmulSpec& s) {
    std::vector<std::uint16_t> x(s.rows * s.x_stride, narrow(s.type, 99.0f)), w(s.out * s.w_stride, x[0]);
    for (std::int64_t k = 0; k < s.in; ++k) {
      for (std::int64_t r = 0; r < s.rows; ++r) x[r * s.x_stride + k] = narrow(s.type, x_at(r, k));
      for (std::int64_t c = 0; c < s.out; ++c) w[c * s.w_stride + k] = narrow(s.type, w_at(c, k));
    }
    std::vector<float> y32(s.rows * s.y_stride, 55.0f);
    std::vector<std::uint16_t> y16(s.rows * s.y_stride, narrow(s.type, 55.0f));
    void* const y = s.y_type == MatmulType::kF32 ? static_cast<void*>(y32.data()) : y16.data();
    std::vector<float> bias32(s.out);
    std::vector<std::uint16_t> bias16(s.out);
    for (std::int64_t c = 0; c < s.out; ++c) bias16[c] = narrow(s.type, bias32[c] = static_cast<float>(c % 9 - 4));
    const void* const given = s.y_type == MatmulType::kF32 ? static_cast<void*>(bias32.data()) : bias16.data();
    const Status status = matmul_->run(s, x.data(), w.data(), y, nullptr, s.bias ? given : nullptr);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (std::int64_t r = 0; r < s.rows; ++r) {
      for (std::int64_t c = 0; c < s.y_stride; ++c) {
        float expected = c >= s.out ? 55.0f : s.bias ? bias32[c] : 0.0f;
        for (std::int64_t k = 0; c < s.out && k < s.in; ++k) expected += x_at(r, k) * w_at(c, k);
        const std::int64_t i = r * s.y_stride + c;
        EXPECT_EQ(s.y_type == MatmulType::kF32 ? y32[i] : widen(s.type, y16[i]), expected) << r << ", " << c;
      }
    }
  }

  std::optional<Matmul> matmul_;
};

TEST_F(MatmulTest, RowMajorProductsOfEveryType) {
  for (const MatmulType type : {MatmulType::kF16, MatmulType::kBF16}) {
    for (const MatmulType y_type : {type, MatmulType::kF32}) {
      expect_product(spec_of(3, 8, 5, type, y_type));
      expect_product(spec_of(1, 1, 1, type, y_type));
      MatmulSpec biased = spec_of(3, 8, 5, type, y_type);
      biased.bias = true;
      expect_product(biased);
    }
  }
}

TEST_F(MatmulTest, Fp8WithScalesOfRowsAndWithout) {
  const std::int64_t rows = 3, in = 32, out = 16;
  constexpr std::uint8_t kCodes[] = {0xc0, 0xb8, 0x00, 0x38, 0x40};  // -2 to 2
  std::vector<std::uint8_t> x(rows * in), w(out * in);
  for (std::int64_t i = 0; i < rows * in; ++i) x[i] = kCodes[i % 5];
  for (std::int64_t i = 0; i < out * in; ++i) w[i] = kCodes[i * 3 % 5];
  const std::vector<float> by_x = {1.0f, 2.0f, 4.0f};
  std::vector<float> by_w(out);
  for (std::int64_t c = 0; c < out; ++c) by_w[c] = static_cast<float>(1 + c % 4);
  for (const bool scaled : {false, true}) {
    MatmulSpec spec = {rows, in, out, in, in, out, MatmulType::kE4M3, MatmulType::kBF16};
    spec.row_scales = scaled;
    MatmulScales scales;
    if (scaled) scales = {by_x.data(), by_w.data()};
    std::vector<std::uint16_t> y(rows * out);
    const Status status = matmul_->run(spec, x.data(), w.data(), y.data(), nullptr, nullptr, scales);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < out; ++c) {
        float sum = 0.0f;
        for (std::int64_t k = 0; k < in; ++k) {
          sum += static_cast<float>((r * in + k) % 5 - 2) * static_cast<float>((c * in + k) * 3 % 5 - 2);
        }
        EXPECT_EQ(bf16_to_float(y[r * out + c]),
                  bf16_to_float(float_to_bf16(sum * (scaled ? by_x[r] * by_w[c] : 1.0f))));
      }
    }
    // Scales where none are asked for, and the other way round.
    MatmulScales other;
    if (!scaled) other = {by_x.data(), by_w.data()};
    EXPECT_EQ(matmul_->run(spec, x.data(), w.data(), y.data(), nullptr, nullptr, other).code(),
              StatusCode::kInvalidArgument);
  }
  const MatmulSpec odd = {rows, 24, out, 24, 24, out, MatmulType::kE4M3, MatmulType::kBF16};
  EXPECT_EQ(matmul_->run(odd, x.data(), w.data(), w.data(), nullptr).code(), StatusCode::kUnsupported);
}

TEST_F(MatmulTest, AnAlgorithmIsAskedForOnceASpecAndAlignment) {
  const MatmulSpec spec = {2, 4, 2, 4, 4, 2, MatmulType::kBF16, MatmulType::kBF16};
  alignas(256) std::uint16_t x[256] = {}, w[256] = {}, y[256] = {};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(matmul_->run(spec, x, w, y, nullptr).ok());
  EXPECT_EQ(fake::state().calls["cublasLtMatmulAlgoGetHeuristic"], 1);
  ASSERT_TRUE(matmul_->run(spec, x + 1, w + 4, y + 8, nullptr).ok());  // the fake refuses what it was not promised
  EXPECT_EQ(fake::state().calls["cublasLtMatmulAlgoGetHeuristic"], 2);
}

// That of products of one number of rows, asked for once.
TEST_F(MatmulTest, FixedProductsHaveOneAlgorithmForAllNumbersOfRows) {
  alignas(256) static std::uint16_t x[256] = {}, w[256] = {}, y[256] = {};
  MatmulSpec spec = {1, 4, 2, 4, 4, 2, MatmulType::kBF16, MatmulType::kBF16};
  spec.fixed = true;
  std::uint64_t algorithm = 0;
  for (const std::int64_t rows : {1, 7, 50}) {
    spec.rows = rows;
    ASSERT_TRUE(matmul_->run(spec, x, w, y, nullptr).ok());
    if (rows == 1) algorithm = fake::state().algorithm;
    EXPECT_EQ(fake::state().algorithm, algorithm) << rows;
  }
  spec.fixed = false;
  ASSERT_TRUE(matmul_->run(spec, x, w, y, nullptr).ok());
  EXPECT_NE(fake::state().algorithm, algorithm);
}

TEST_F(MatmulTest, NoRowsAreNoWork) {
  const MatmulSpec spec = {0, 4, 2, 4, 4, 2, MatmulType::kBF16, MatmulType::kBF16};
  EXPECT_TRUE(matmul_->run(spec, nullptr, nullptr, nullptr, nullptr).ok());
  EXPECT_EQ(fake::state().calls["cublasLtMatmul"], 0);
}

TEST_F(MatmulTest, WhatIsRefused) {
  const MatmulSpec good = {2, 4, 2, 4, 4, 2, MatmulType::kBF16, MatmulType::kBF16};
  alignas(256) std::uint16_t memory[256] = {};
  const auto expect = [&](const char* text, auto change, const void* x) {
    MatmulSpec spec = good;
    change(spec);
    const Status status = matmul_->run(spec, x, memory, memory, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  expect(
      "-1 rows", [](MatmulSpec& s) { s.rows = -1; }, memory);
  expect(
      "0 in", [](MatmulSpec& s) { s.in = 0; }, memory);
  expect(
      "strides x 3", [](MatmulSpec& s) { s.x_stride = 3; }, memory);
  expect(
      "y 1, expected at least 4, 4, 2", [](MatmulSpec& s) { s.y_stride = 1; }, memory);
  expect(
      "takes f16 or bf16", [](MatmulSpec& s) { s.type = MatmulType::kF32; }, memory);
  expect(
      "makes the same", [](MatmulSpec& s) { s.y_type = MatmulType::kF16; }, memory);
  expect(
      "with a bias was given none", [](MatmulSpec& s) { s.bias = true; }, memory);
  expect(
      "no x", [](MatmulSpec&) {}, nullptr);
  expect(
      "aligned to 1,", [](MatmulSpec&) {}, reinterpret_cast<const char*>(memory) + 1);
}

TEST_F(MatmulTest, FailuresAtAnyCallLeaveNothing) {
  const MatmulSpec spec = {2, 4, 2, 4, 4, 2, MatmulType::kBF16, MatmulType::kBF16};
  alignas(256) std::uint16_t memory[256] = {};
  const int before = fake::state().alive.cublas_handles;
  for (const char* function :
       {"cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate",
        "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic"}) {
    fake::state().failures = {{function, 3}};
    const Status status = matmul_->run(spec, memory, memory, memory, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << function;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(function), HasSubstr("cuBLASLt 13.1.0")));
    EXPECT_EQ(fake::state().alive.cublas_handles, before) << function;
  }
  fake::state().failures = {{"cublasLtMatmulAlgoGetHeuristic", 15}};
  EXPECT_EQ(matmul_->run(spec, memory, memory, memory, nullptr).code(), StatusCode::kUnsupported);
  fake::state().failures = {{"cublasLtMatmul", 13}};
  EXPECT_EQ(matmul_->run(spec, memory, memory, memory, nullptr).code(), StatusCode::kInternal);
  fake::state().failures = {{"cublasLtCreate", 1}};
  EXPECT_EQ(Matmul::create(*device_, kWorkspace).status().code(), StatusCode::kUnavailable);
  fake::state().failures.clear();
  EXPECT_EQ(Matmul::create(*device_, std::size_t{1} << 40).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(MatmulTest, TheLibraryIsTheOneThatIsNamed) {
  const auto library = CublasLt::load();
  ASSERT_TRUE(library.ok());
  EXPECT_EQ((*library)->path(), fake::library_path());
  EXPECT_EQ((*library)->version(), "13.1.0");
}

}  // namespace
}  // namespace fovea::cuda
