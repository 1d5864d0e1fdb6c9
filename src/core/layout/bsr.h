// Block-sparse matrices (BSR) of any block shape: rows are query tokens, columns KV tokens, a block that is listed is
// computed. What sparse masks are described with; bsr_block_rows() makes a planner's input of one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/planner.h"
#include "fovea/status.h"

namespace fovea {

// Blocks of block_rows x block_cols elements; the last row and the last column of blocks may be cut off by the matrix.
// Block row i has the blocks at columns indices[indptr[i] .. indptr[i + 1]), ascending.
struct BsrMatrix {
  std::int32_t num_rows = 0;  // elements
  std::int32_t num_cols = 0;
  std::int32_t block_rows = 1;
  std::int32_t block_cols = 1;
  std::vector<std::int32_t> indptr;  // [ceil(num_rows / block_rows) + 1]
  std::vector<std::int32_t> indices;

  std::int32_t num_block_rows() const { return (num_rows + block_rows - 1) / block_rows; }
  std::int32_t num_block_cols() const { return (num_cols + block_cols - 1) / block_cols; }
};

// Shapes, and that each block row's columns ascend and exist.
Status validate(const BsrMatrix& matrix);

// The smallest BSR of that block shape that covers every true element of mask [num_rows, num_cols]; a block stands
// where any of its elements is true.
Result<BsrMatrix> bsr_from_mask(std::span<const std::uint8_t> mask, std::int32_t num_rows, std::int32_t num_cols,
                                std::int32_t block_rows, std::int32_t block_cols);
// 1 where a block covers the element: [num_rows, num_cols].
Result<std::vector<std::uint8_t>> mask_of(const BsrMatrix& matrix);

// The same elements in smaller blocks, whose shape must divide the matrix's.
Result<BsrMatrix> refine(const BsrMatrix& matrix, std::int32_t block_rows, std::int32_t block_cols);

// Block rows for Planner::plan_block_rows(): one a row of blocks that has blocks or none (its rows then give 0). A
// column block is page entry pages[column] (block_cols must be the planner's page), its tokens stand at their columns.
// Owns what the BlockRowBatch borrows.
struct BsrBlockRows {
  std::vector<abi::BlockRow> block_rows;
  std::vector<std::uint32_t> row_indices;
  std::vector<std::int32_t> q_pos;      // the row itself: no mask but the blocks
  std::vector<std::int32_t> entries;    // page entries, list after list
  std::vector<std::int32_t> positions;  // of each entry's first token

  BlockRowBatch view() const;
};
Result<BsrBlockRows> bsr_block_rows(const BsrMatrix& matrix, std::span<const std::int32_t> pages,
                                    const PlannerOptions& options);

}  // namespace fovea
