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

}  // namespace fovea
