#include "core/layout/paged.h"

#include <algorithm>
#include <limits>

#include "base/status.h"
#include "core/layout/ragged.h"

namespace fovea {
namespace {

constexpr std::int32_t kAnyPage = std::numeric_limits<std::int32_t>::max();

std::int32_t pages_for(std::int32_t tokens, std::int32_t page_tokens) {
  return static_cast<std::int32_t>((std::int64_t{tokens} + page_tokens - 1) / page_tokens);
}

Status check_page_tokens(std::int32_t page_tokens) {
  if (page_tokens >= 1) return ok_status();
  return invalid_argument("pages of {} tokens, expected 1 or more", page_tokens);
}

}  // namespace

Status validate(const PagedCsr& csr, std::int32_t num_pages) {
  FOVEA_RETURN_IF_ERROR(check_page_tokens(csr.page_tokens));
  FOVEA_RETURN_IF_ERROR(validate_indptr(csr.indptr, static_cast<std::int64_t>(csr.indices.size()), "page indptr"));
  if (csr.last_page_len.size() + 1 != csr.indptr.size()) {
    return invalid_argument("{} last page lengths for {} requests", csr.last_page_len.size(), csr.indptr.size() - 1);
  }
  for (std::size_t i = 0; i + 1 < csr.indptr.size(); ++i) {
    const std::int64_t pages = csr.indptr[i + 1] - csr.indptr[i];
    if (pages == 0) continue;
    if (csr.last_page_len[i] < 1 || csr.last_page_len[i] > csr.page_tokens) {
      return invalid_argument("the last page of request {} has {} tokens, expected 1..{}", i, csr.last_page_len[i],
                              csr.page_tokens);
    }
    if (pages * csr.page_tokens > kAnyPage) {
      return make_status(StatusCode::kOutOfRange, "request {} has {} pages of {} tokens, more than 2^31 - 1 tokens", i,
                         pages, csr.page_tokens);
    }
  }
  for (std::size_t i = 0; i < csr.indices.size(); ++i) {
    if (csr.indices[i] < 0 || csr.indices[i] >= num_pages) {
      return invalid_argument("page index {} is {}, the pool has pages 0..{}", i, csr.indices[i], num_pages - 1);
    }
  }
  return ok_status();
}

Status validate(const PageTableView& table, std::int32_t num_pages) {
  FOVEA_RETURN_IF_ERROR(check_page_tokens(table.page_tokens));
  if (table.stride < 0 || table.entries.size() != table.kv_lens.size() * static_cast<std::size_t>(table.stride)) {
    return invalid_argument("a page table of {} entries for {} requests of stride {}", table.entries.size(),
                            table.kv_lens.size(), table.stride);
  }
  for (std::size_t i = 0; i < table.kv_lens.size(); ++i) {
    const std::int32_t tokens = table.kv_lens[i];
    if (tokens < 0 || pages_for(tokens, table.page_tokens) > table.stride) {
      return invalid_argument("request {} has {} tokens, its {} pages of {} hold 0..{}", i, tokens, table.stride,
                              table.page_tokens, std::int64_t{table.stride} * table.page_tokens);
    }
    const std::int32_t* row = table.entries.data() + i * static_cast<std::size_t>(table.stride);
    for (std::int32_t p = 0; p < pages_for(tokens, table.page_tokens); ++p) {
      if (row[p] < 0 || row[p] >= num_pages) {
        return invalid_argument("page {} of request {} is {}, the pool has pages 0..{}", p, i, row[p], num_pages - 1);
      }
    }
  }
  return ok_status();
}

Result<PageTable> to_page_table(const PagedCsr& csr, std::int32_t min_stride) {
  FOVEA_RETURN_IF_ERROR(validate(csr, kAnyPage));
  PageTable table;
  table.page_tokens = csr.page_tokens;
  table.stride = std::max(min_stride, 0);
  for (std::size_t i = 0; i + 1 < csr.indptr.size(); ++i) {
    const std::int32_t pages = csr.indptr[i + 1] - csr.indptr[i];
    table.stride = std::max(table.stride, pages);
    table.kv_lens.push_back(pages == 0 ? 0 : (pages - 1) * csr.page_tokens + csr.last_page_len[i]);
  }
  table.entries.assign(table.kv_lens.size() * static_cast<std::size_t>(table.stride), 0);
  for (std::size_t i = 0; i + 1 < csr.indptr.size(); ++i) {
    std::copy(csr.indices.begin() + csr.indptr[i], csr.indices.begin() + csr.indptr[i + 1],
              table.entries.begin() + static_cast<std::ptrdiff_t>(i * static_cast<std::size_t>(table.stride)));
  }
  return table;
}

Result<OwnedPagedCsr> to_csr(const PageTableView& table) {
  FOVEA_RETURN_IF_ERROR(validate(table, kAnyPage));
  OwnedPagedCsr csr;
  csr.page_tokens = table.page_tokens;
  csr.indptr.push_back(0);
  for (std::size_t i = 0; i < table.kv_lens.size(); ++i) {
    const std::int32_t pages = pages_for(table.kv_lens[i], table.page_tokens);
    const auto row = table.entries.begin() + static_cast<std::ptrdiff_t>(i * static_cast<std::size_t>(table.stride));
    csr.indices.insert(csr.indices.end(), row, row + pages);
    csr.indptr.push_back(csr.indptr.back() + pages);
    csr.last_page_len.push_back(pages == 0 ? 0 : table.kv_lens[i] - (pages - 1) * table.page_tokens);
  }
  return csr;
}

Result<PageTable> split_pages(const PageTableView& table, std::int32_t page_tokens) {
  FOVEA_RETURN_IF_ERROR(validate(table, kAnyPage));
  FOVEA_RETURN_IF_ERROR(check_page_tokens(page_tokens));
  if (table.page_tokens % page_tokens != 0) {
    return invalid_argument("pages of {} tokens do not split into pages of {}", table.page_tokens, page_tokens);
  }
  const std::int32_t factor = table.page_tokens / page_tokens;
  PageTable out;
  out.page_tokens = page_tokens;
  out.kv_lens.assign(table.kv_lens.begin(), table.kv_lens.end());
  if (std::int64_t{table.stride} * factor > kAnyPage) return invalid_argument("the split table would be too wide");
  out.stride = table.stride * factor;
  out.entries.reserve(table.entries.size() * static_cast<std::size_t>(factor));
  for (const std::int32_t page : table.entries) {
    if (page < 0 || page >= kAnyPage / factor) {
      return make_status(StatusCode::kOutOfRange, "page {} cannot be split into {}", page, factor);
    }
    for (std::int32_t k = 0; k < factor; ++k) out.entries.push_back(page * factor + k);
  }
  return out;
}

}  // namespace fovea
