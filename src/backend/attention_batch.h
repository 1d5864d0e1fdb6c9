// From the public batch records (fovea/attention.h) to what the planner takes: checks, page lists as one table, and
// cascades as block rows. Held by each implementation of Attention; allocates only when a batch is larger than any
// before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/plan/planner.h"
#include "fovea/attention.h"

namespace fovea {

class BatchTranslator {
 public:
  explicit BatchTranslator(const AttentionOptions& options) : options_(options) {}

  // Both are valid until the next call; the lists and masks that they name are the caller's.
  Result<AttentionBatch> requests(const RequestBatch& batch);
  // Page lists of all levels lie one behind the other in page_entries().
  Result<BlockRowBatch> cascade(std::int32_t num_rows, std::span<const CascadeLevel> levels);
  // Reads the page lists of the last requests() again, for lengths that grew. kUnsupported after cascade().
  Status grow(std::span<const std::int32_t> kv_lens);

  // Host entries that the last batch points into.
  std::span<const std::int32_t> page_entries() const { return entries_; }
  // kOutOfRange when the last batch reads a page outside of [0, num_pages). Known in checked mode, for host lists.
  Status check_pages(std::int64_t num_pages) const;

 private:
  std::int64_t num_pages(std::int64_t tokens) const {
    return (tokens + options_.page_tokens - 1) / options_.page_tokens;
  }
  Status read_lists(const std::int32_t* kv_lens);
  void note_pages(std::int32_t list, const std::int32_t* entries, std::int64_t count);

  AttentionOptions options_;
  // Lists of the last requests().
  const std::int32_t* page_indices_ = nullptr;
  std::int64_t num_page_indices_ = 0;
  std::int64_t page_stride_ = 0;
  std::int32_t num_requests_ = 0;          // -1 after cascade()
  std::vector<std::int64_t> list_begins_;  // empty: page_indices_ is a table already

  std::int64_t table_stride_ = 0;
  std::vector<std::int32_t> table_;
  std::span<const std::int32_t> entries_;
  std::vector<std::uint64_t> mask_offsets_;
  std::vector<std::uint32_t> mask_strides_;
  std::vector<abi::BlockRow> block_rows_;
  std::vector<std::uint32_t> row_indices_;
  std::vector<std::int32_t> q_pos_;
  std::vector<std::int32_t> seen_tokens_;

  // Smallest and largest page that the last batch reads, and whose they are.
  struct Extreme {
    std::int32_t page = 0;
    std::int32_t list = -1;
  };
  Extreme smallest_, largest_;
};

}  // namespace fovea
