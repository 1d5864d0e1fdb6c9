// The choice; see product_choice.h.
#include "device/cuda/product_choice.h"

namespace fovea {

ProductChoice choose_product(const ProductFacts& f) {
  const bool is_long = f.in >= kManyNumbers;
  if (f.rows < 1) return {ProductKernel::kCublasLt, "no rows"};
  if (f.has_skinny && f.rows <= (f.has_batch && is_long ? kMostSkinnyRowsOfMany : kMostSkinnyRows)) {
    return {ProductKernel::kSkinny, "few rows: time is reading weights, x lies in registers"};
  }
  if (f.rows > kMostBatchRows) return {ProductKernel::kCublasLt, "many rows: time is multiplying"};
  if (!f.has_batch) return {ProductKernel::kCublasLt, "no kernel takes such weights or tensors"};
  if (f.rows > kMostBatchRowsOfFew && !is_long) {
    return {ProductKernel::kCublasLt, "many rows of few numbers: weights are read before x is brought"};
  }
  return {ProductKernel::kBatch, "a batch: time is reading weights, x lies in shared memory"};
}

ProductRows batch_rows(std::int64_t in, bool has_skinny) {
  const auto is_chosen = [&](std::int64_t rows) {
    return choose_product({.rows = rows, .in = in, .has_skinny = has_skinny, .has_batch = true}).kernel ==
           ProductKernel::kBatch;
  };
  ProductRows rows{1, kMostBatchRows};
  while (rows.least < rows.most && !is_chosen(rows.least)) ++rows.least;
  while (rows.most > rows.least && !is_chosen(rows.most)) --rows.most;
  return rows;
}

}  // namespace fovea
