// Paged KV in the two forms that engines hold: page tables with a fixed stride (what a Planner reads; growing a request
// shifts nothing) and CSR, that is indptr, indices and the length of each last page (what FlashInfer's users hold).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/status.h"

namespace fovea {

// Pages of request i: indices[indptr[i] .. indptr[i + 1]); all are full but the last, which has last_page_len[i] tokens
// (1 .. page_tokens; ignored where a request has no page).
struct PagedCsr {
  std::int32_t page_tokens = 16;
  std::span<const std::int32_t> indptr;         // [num_requests + 1]
  std::span<const std::int32_t> indices;        // pages
  std::span<const std::int32_t> last_page_len;  // [num_requests], tokens
};

// Pages of request i: the first ceil(kv_lens[i] / page_tokens) entries of row i.
struct PageTableView {
  std::int32_t page_tokens = 16;
  std::int32_t stride = 0;                // entries a row
  std::span<const std::int32_t> entries;  // [num_requests, stride]
  std::span<const std::int32_t> kv_lens;  // [num_requests], tokens
};

struct PageTable {
  std::int32_t page_tokens = 16;
  std::int32_t stride = 0;
  std::vector<std::int32_t> entries;
  std::vector<std::int32_t> kv_lens;

  PageTableView view() const { return {page_tokens, stride, entries, kv_lens}; }
};

struct OwnedPagedCsr {
  std::int32_t page_tokens = 16;
  std::vector<std::int32_t> indptr, indices, last_page_len;

  PagedCsr view() const { return {page_tokens, indptr, indices, last_page_len}; }
};

// Shapes, lengths, and that every page named is one of 0 .. num_pages - 1.
Status validate(const PagedCsr& csr, std::int32_t num_pages);
Status validate(const PageTableView& table, std::int32_t num_pages);

// Both check their input first (but for page numbers). Unused entries of the table are 0. min_stride: room to grow.
Result<PageTable> to_page_table(const PagedCsr& csr, std::int32_t min_stride = 0);
Result<OwnedPagedCsr> to_csr(const PageTableView& table);

// The same tokens in pages of `page_tokens`, which must divide the table's: each page becomes adjacent smaller ones, so
// page p, token t of the old pool is page p * f + t / page_tokens of the same memory seen in smaller pages.
Result<PageTable> split_pages(const PageTableView& table, std::int32_t page_tokens);

}  // namespace fovea
