#include "core/layout/bsr.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"
#include "core/layout/ragged.h"

namespace fovea {
namespace {

Status check_shape(std::int32_t num_rows, std::int32_t num_cols, std::int32_t block_rows, std::int32_t block_cols) {
  if (num_rows < 0 || num_cols < 0 || block_rows < 1 || block_cols < 1) {
    return invalid_argument("a matrix of {} x {} in blocks of {} x {}; expected sizes >= 0 and blocks >= 1", num_rows,
                            num_cols, block_rows, block_cols);
  }
  constexpr std::int32_t kMost = 1 << 30;
  if (num_rows > kMost || num_cols > kMost || block_rows > kMost || block_cols > kMost) {
    return make_status(StatusCode::kOutOfRange, "a matrix of {} x {} in blocks of {} x {}; each may be 2^30 at most",
                       num_rows, num_cols, block_rows, block_cols);
  }
  return ok_status();
}

}  // namespace

Status validate(const BsrMatrix& m) {
  FOVEA_RETURN_IF_ERROR(check_shape(m.num_rows, m.num_cols, m.block_rows, m.block_cols));
  if (m.indptr.size() != static_cast<std::size_t>(m.num_block_rows()) + 1) {
    return invalid_argument("a BSR matrix of {} block rows has an indptr of {} values, expected {}", m.num_block_rows(),
                            m.indptr.size(), m.num_block_rows() + 1);
  }
  FOVEA_RETURN_IF_ERROR(validate_indptr(m.indptr, static_cast<std::int64_t>(m.indices.size()), "BSR indptr"));
  for (std::int32_t row = 0; row < m.num_block_rows(); ++row) {
    std::int32_t before = -1;
    for (std::int32_t i = m.indptr[static_cast<std::size_t>(row)]; i < m.indptr[static_cast<std::size_t>(row) + 1];
         ++i) {
      const std::int32_t column = m.indices[static_cast<std::size_t>(i)];
      if (column <= before || column >= m.num_block_cols()) {
        return invalid_argument("block row {} lists column {} after {}; columns ascend and lie in 0..{}", row, column,
                                before, m.num_block_cols() - 1);
      }
      before = column;
    }
  }
  return ok_status();
}

Result<BsrMatrix> bsr_from_mask(std::span<const std::uint8_t> mask, std::int32_t num_rows, std::int32_t num_cols,
                                std::int32_t block_rows, std::int32_t block_cols) {
  FOVEA_RETURN_IF_ERROR(check_shape(num_rows, num_cols, block_rows, block_cols));
  if (mask.size() != static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(num_cols)) {
    return invalid_argument("a mask of {} elements for {} x {}", mask.size(), num_rows, num_cols);
  }
  BsrMatrix m{num_rows, num_cols, block_rows, block_cols, {0}, {}};
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(m.num_block_cols()));
  for (std::int32_t first = 0; first < num_rows; first += std::min(block_rows, num_rows - first)) {
    std::fill(seen.begin(), seen.end(), std::uint8_t{0});
    for (std::int32_t row = first; row < first + std::min(block_rows, num_rows - first); ++row) {
      const std::uint8_t* elements = mask.data() + static_cast<std::size_t>(row) * static_cast<std::size_t>(num_cols);
      for (std::int32_t column = 0; column < num_cols; ++column) {
        if (elements[column]) seen[static_cast<std::size_t>(column / block_cols)] = 1;
      }
    }
    for (std::size_t column = 0; column < seen.size(); ++column) {
      if (seen[column]) m.indices.push_back(static_cast<std::int32_t>(column));
    }
    m.indptr.push_back(static_cast<std::int32_t>(m.indices.size()));
  }
  return m;
}

Result<std::vector<std::uint8_t>> mask_of(const BsrMatrix& m) {
  FOVEA_RETURN_IF_ERROR(validate(m));
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(m.num_rows) * static_cast<std::size_t>(m.num_cols));
  for (std::int32_t row = 0; row < m.num_rows; ++row) {
    const std::size_t block_row = static_cast<std::size_t>(row / m.block_rows);
    std::uint8_t* elements = mask.data() + static_cast<std::size_t>(row) * static_cast<std::size_t>(m.num_cols);
    for (std::int32_t i = m.indptr[block_row]; i < m.indptr[block_row + 1]; ++i) {
      const std::int64_t begin = std::int64_t{m.indices[static_cast<std::size_t>(i)]} * m.block_cols;
      std::fill(elements + begin, elements + std::min<std::int64_t>(begin + m.block_cols, m.num_cols), std::uint8_t{1});
    }
  }
  return mask;
}

Result<BsrMatrix> refine(const BsrMatrix& m, std::int32_t block_rows, std::int32_t block_cols) {
  FOVEA_RETURN_IF_ERROR(validate(m));
  if (block_rows < 1 || block_cols < 1 || m.block_rows % block_rows != 0 || m.block_cols % block_cols != 0) {
    return invalid_argument("blocks of {} x {} do not split into {} x {}", m.block_rows, m.block_cols, block_rows,
                            block_cols);
  }
  BsrMatrix out{m.num_rows, m.num_cols, block_rows, block_cols, {0}, {}};
  const std::int32_t factor = m.block_cols / block_cols;
  for (std::int32_t row = 0; row < out.num_block_rows(); ++row) {
    const std::size_t old_row = static_cast<std::size_t>(std::int64_t{row} * block_rows / m.block_rows);
    for (std::int32_t i = m.indptr[old_row]; i < m.indptr[old_row + 1]; ++i) {
      const std::int64_t first = std::int64_t{m.indices[static_cast<std::size_t>(i)]} * factor;
      for (std::int64_t column = first; column < std::min<std::int64_t>(first + factor, out.num_block_cols());
           ++column) {
        out.indices.push_back(static_cast<std::int32_t>(column));
      }
    }
    out.indptr.push_back(static_cast<std::int32_t>(out.indices.size()));
  }
  return out;
}

BlockRowBatch BsrBlockRows::view() const {
  BlockRowBatch batch;
  batch.num_rows = static_cast<std::int32_t>(row_indices.size());
  batch.block_rows = block_rows;
  batch.row_indices = row_indices;
  batch.q_pos = q_pos;
  batch.page_entries = entries.data();
  batch.kv_positions = positions.data();
  return batch;
}

Result<BsrBlockRows> bsr_block_rows(const BsrMatrix& m, std::span<const std::int32_t> pages,
                                    const PlannerOptions& options) {
  FOVEA_RETURN_IF_ERROR(validate(m));
  if (m.block_cols != options.page_tokens) {
    return invalid_argument(
        "blocks of {} columns over pages of {} tokens; refine() the matrix or split the pages first", m.block_cols,
        options.page_tokens);
  }
  if (pages.size() != static_cast<std::size_t>(m.num_block_cols())) {
    return invalid_argument("{} pages for {} block columns", pages.size(), m.num_block_cols());
  }
  BsrBlockRows out;
  out.row_indices.resize(static_cast<std::size_t>(m.num_rows));
  std::iota(out.row_indices.begin(), out.row_indices.end(), 0u);
  out.q_pos.resize(out.row_indices.size());
  std::iota(out.q_pos.begin(), out.q_pos.end(), 0);
  for (const std::int32_t column : m.indices) {
    out.entries.push_back(pages[static_cast<std::size_t>(column)]);
    out.positions.push_back(column * m.block_cols);
  }
  // Never empty, so that pointers into them are never null.
  out.entries.push_back(0);
  out.positions.push_back(0);
  for (std::int32_t row = 0; row < m.num_block_rows(); ++row) {
    const std::int32_t begin = m.indptr[static_cast<std::size_t>(row)];
    const std::int32_t end = m.indptr[static_cast<std::size_t>(row) + 1];
    abi::BlockRow b{};
    b.row_begin = static_cast<std::uint32_t>(row) * static_cast<std::uint32_t>(m.block_rows);
    b.row_count = static_cast<std::uint32_t>(std::min(m.block_rows, m.num_rows - row * m.block_rows));
    b.list_begin = b.positions_begin = static_cast<std::uint32_t>(begin);
    std::int64_t tokens = std::int64_t{end - begin} * m.block_cols;
    // The last column of blocks may be cut off, and it comes last in the list.
    if (end > begin && m.indices[static_cast<std::size_t>(end) - 1] + 1 == m.num_block_cols()) {
      tokens -= std::int64_t{m.num_block_cols()} * m.block_cols - m.num_cols;
    }
    b.num_tokens = static_cast<std::uint32_t>(tokens);
    b.length_slot = abi::kNone;
    b.window_left = -1;
    b.head_end = static_cast<std::uint16_t>(options.num_kv_heads);
    b.mask = abi::MaskKind::kNone;
    b.flags = abi::kRowsContiguous;
    b.num_requests = 1;
    out.block_rows.push_back(b);
  }
  return out;
}

}  // namespace fovea
