// From the public batch records (fovea/attention.h) to what the planner takes: checks, page lists, and cascades as
// block rows. Held by each implementation of PagedAttention; allocates only when a batch is larger than any before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/plan/planner.h"
#include "fovea/attention.h"

namespace fovea {

class BatchTranslator {
 public:
  // pack_lists: host lists are laid one behind the other in page_entries(), to be copied to a device; else the plan
  // points into the caller's.
  BatchTranslator(const AttentionOptions& options, bool pack_lists) : options_(options), pack_lists_(pack_lists) {}

  // Both are valid until the next call; the lists and masks that they name are the caller's.
  Result<AttentionBatch> requests(const RequestBatch& batch);
  // Lists of all levels lie one behind the other in page_entries(); of levels whose lists are on a device, room for
  // them.
  Result<BlockRowBatch> cascade(std::int32_t num_rows, std::span<const CascadeLevel> levels);
  // Plans into the caller's lists, on the host as on a device.
  Result<BlockRowBatch> selected(const SelectedBatch& batch);
  // Without pages (contiguous_batch.cc): entries are units of page_tokens of the only page that the tokens are; they
  // stand in page_entries().
  Result<BlockRowBatch> ragged(const RaggedBatch& batch);
  Result<BlockRowBatch> blocks(const BlockSparseBatch& batch);
  // Block rows of the pool `pool` of `num_pools`, as a device takes them: their lists packed in page_entries(). Lengths
  // are those of now. Where there are several pools, heads of others are left to their plans.
  Result<BlockRowBatch> block_rows(const BlockRowBatch& batch, std::size_t pool, std::size_t num_pools);
  // The plan was made of block rows as given.
  void given();
  // Reads the page lists of the last requests() again, for lengths that grew: those of `planner`'s plan. The batch to
  // plan anew where packed lists had no room for the new pages, else nothing: the planner may grow. kUnsupported after
  // plans of block rows, and for bit masks. A failure changes nothing.
  Result<std::optional<AttentionBatch>> grow(std::span<const std::int32_t> kv_lens, const Planner& planner);

  // Tokens that the longest list of the last requests() holds, where their ends are known; else 2^31 - 1.
  std::int64_t most_list_tokens() const { return most_list_tokens_; }
  // Tokens that k and v need after ragged() and blocks(); -1 after the others, which read pages.
  std::int64_t contiguous_tokens() const { return contiguous_tokens_; }
  // Bits of ragged(), blocks() and block_rows() that have such masks; else empty.
  std::span<const std::uint8_t> given_mask() const { return given_mask_; }
  // Of the last requests(); -1 after plans of block rows.
  std::int32_t num_requests() const { return num_requests_; }
  // The packed entries; empty where the plan points into the caller's.
  std::span<const std::int32_t> page_entries() const { return entries_; }
  // kOutOfRange when the last batch reads a page outside of [0, num_pages). Known for host lists.
  Status check_pages(std::int64_t num_pages) const;

 private:
  // tokens: 0 or more, below 2^31.
  std::int64_t num_pages(std::int64_t tokens) const {
    const auto page = static_cast<std::uint32_t>(options_.page_tokens);  // 32 bits: a fourth of the time of 64
    return (static_cast<std::uint32_t>(std::max<std::int64_t>(tokens, 0)) + page - 1) / page;
  }
  std::int64_t source_begin(std::size_t request) const {
    return given_begins_.empty() ? static_cast<std::int64_t>(request) * page_stride_ : given_begins_[request];
  }
  // False when packed lists have no room.
  Result<bool> read_lists(const std::int32_t* kv_lens);
  // Entries that list i may have.
  std::int64_t list_room(std::size_t request) const;
  Status check_room(std::span<const std::int32_t> kv_lens) const;
  Status check_mask(const RequestBatch& batch, AttentionBatch& made);
  void begin_contiguous(std::int64_t num_rows, std::int64_t num_tokens);
  BlockRowBatch contiguous_rows(std::span<const std::uint8_t> mask_bits);
  Status add_blocks(const BlockSparseBatch& batch, std::int32_t begin, std::int32_t end, std::int32_t first,
                    std::int32_t last, std::int64_t list_begin, std::int32_t head_begin, std::int32_t head_end);
  static std::int32_t rows_alike(const BlockSparseBatch& batch, std::int32_t begin, std::int32_t end,
                                 std::int32_t first, std::int32_t last);
  void note_pages(std::size_t list, const std::int32_t* entries, std::int64_t count);

  AttentionOptions options_;
  bool pack_lists_;
  // The last requests().
  RequestBatch last_;  // without lengths
  std::vector<std::int32_t> q_lens_;
  const std::int32_t* page_indices_ = nullptr;  // null: on a device
  std::int64_t num_page_indices_ = 0;
  std::int64_t page_stride_ = 0;
  std::int32_t num_requests_ = 0;           // -1 after the others
  bool lists_fit_ = false;                  // on a device, and within num_page_indices_ whatever the lengths
  std::vector<std::int64_t> given_begins_;  // empty: a table of page_stride_
  std::vector<std::int64_t> given_ends_;    // empty: not known
  std::int64_t most_list_tokens_ = INT32_MAX;
  std::int64_t contiguous_tokens_ = -1;
  std::span<const std::uint8_t> given_mask_;

  std::vector<std::int32_t> entries_;
  std::vector<std::int64_t> packed_begins_;  // one more than requests
  std::vector<std::uint64_t> mask_offsets_;
  std::vector<std::uint32_t> mask_strides_;
  std::vector<abi::BlockRow> block_rows_;
  // What block rows read of the entries given: [begin, end), and where `begin` is packed.
  struct ListPart {
    std::uint32_t begin, end, packed;
  };
  std::vector<ListPart> list_parts_;
  std::vector<std::uint32_t> row_indices_;
  std::vector<std::int32_t> q_pos_;
  std::vector<std::int32_t> seen_tokens_;
  std::vector<std::int32_t> list_tokens_;  // of the last selected(), by request
  std::vector<std::uint8_t> own_mask_;     // of the last blocks()

  // The largest page that the last batch reads, and whose it is; negative ones are larger than all others.
  struct Largest {
    std::uint32_t page = 0;
    std::int64_t list = -1;
  };
  Largest largest_;
};

// Whether grow_on_device() may be called.
Status check_growth(const AttentionOptions& options, bool planned, const BatchTranslator& translator);

}  // namespace fovea
