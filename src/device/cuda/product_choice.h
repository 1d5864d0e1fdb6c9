// Which kernel multiplies: the one for few rows of x, the one for batches, or cuBLASLt. The one place that decides.
#pragma once

#include <cstdint>

namespace fovea {

enum class ProductKernel : std::uint8_t { kSkinny, kBatch, kCublasLt };

struct ProductFacts {
  std::int64_t rows = 0;    // of x
  std::int64_t in = 0;      // numbers of a row
  bool has_skinny = false;  // the kernel takes such weights, and tensors that lie so
  bool has_batch = false;
};

struct ProductChoice {
  ProductKernel kernel = ProductKernel::kCublasLt;
  const char* reason = "";
};

// Rows of x up to which the kernel for few is taken, and that for batches, where x has many numbers a row and where
// not; docs/kernels/linear.md has the figures.
inline constexpr std::int64_t kManyNumbers = 4096;
inline constexpr std::int64_t kMostSkinnyRows = 8, kMostSkinnyRowsOfMany = 4;
inline constexpr std::int64_t kMostBatchRows = 64, kMostBatchRowsOfFew = 32;

ProductChoice choose_product(const ProductFacts& facts);

// Rows of x for which the batch kernel is chosen where there is one: [least, most].
struct ProductRows {
  std::int64_t least = 0;
  std::int64_t most = 0;
};
ProductRows batch_rows(std::int64_t in, bool has_skinny);

}  // namespace fovea
