// Batches whose keys and values have no pages, as block rows: RaggedBatch and BlockSparseBatch of fovea/attention.h.
// All tokens are one page of the pool, whose entries name page_tokens of them; see pool_view().
#include <algorithm>
#include <limits>

#include "attention/attention_batch.h"
#include "base/status.h"

namespace fovea {
namespace {

constexpr std::int32_t kMostTokens = std::numeric_limits<std::int32_t>::max();

Status check_contiguous(const AttentionOptions& o, const char* call) {
  if (o.batch_invariant) return unsupported("{} with batch_invariant", call);
  if (o.kv_token_scales || o.kv_dtype == DType::kI8 || o.kv_dtype == DType::kI4) {
    return unsupported("{} with {} KV that has a scale for each token, which lie by pages", call,
                       dtype_name(o.kv_dtype));
  }
  return ok_status();
}

abi::BlockRow block_row_of(std::int64_t row_begin, std::int64_t row_count, std::int64_t list_begin,
                           std::int64_t num_tokens, std::int32_t head_begin, std::int32_t head_end) {
  abi::BlockRow made{};
  made.row_begin = static_cast<std::uint32_t>(row_begin);
  made.row_count = static_cast<std::uint32_t>(row_count);
  made.list_begin = static_cast<std::uint32_t>(list_begin);
  made.num_tokens = static_cast<std::uint32_t>(num_tokens);
  made.positions_begin = abi::kNone;
  made.length_slot = abi::kNone;
  made.window_left = -1;
  made.head_begin = static_cast<std::uint16_t>(head_begin);
  made.head_end = static_cast<std::uint16_t>(head_end);
  made.flags = abi::kRowsContiguous;
  made.num_requests = 1;
  return made;
}

}  // namespace

void BatchTranslator::begin_contiguous(std::int64_t num_rows, std::int64_t num_tokens) {
  given();
  contiguous_tokens_ = num_tokens;
  block_rows_.clear();
  own_mask_.clear();
  const auto rows = static_cast<std::size_t>(num_rows);
  row_indices_.resize(rows);
  for (std::size_t r = 0; r < rows; ++r) row_indices_[r] = static_cast<std::uint32_t>(r);
  q_pos_.resize(rows);
}

BlockRowBatch BatchTranslator::contiguous_rows(std::span<const std::uint8_t> mask_bits) {
  given_mask_ = mask_bits;
  BlockRowBatch made;
  made.num_rows = static_cast<std::int32_t>(row_indices_.size());
  made.block_rows = block_rows_;
  made.row_indices = row_indices_;
  made.q_pos = q_pos_;
  made.page_entries = entries_.data();
  made.mask_bits = mask_bits.data();
  return made;
}

Result<BlockRowBatch> BatchTranslator::ragged(const RaggedBatch& batch) {
  FOVEA_RETURN_IF_ERROR(check_contiguous(options_, "plan_ragged()"));
  if (batch.num_requests < 0 || batch.num_requests > options_.max_requests) {
    return out_of_range("{} requests, declared were 0..{}; raise max_requests", batch.num_requests,
                        options_.max_requests);
  }
  const auto requests = static_cast<std::size_t>(batch.num_requests);
  if (requests != 0 && (batch.q_lens == nullptr || batch.kv_lens == nullptr || batch.kv_begins == nullptr)) {
    return invalid_argument("a batch of {} requests needs q_lens, kv_lens and kv_begins", requests);
  }
  if (batch.mask > AttentionMask::kBits) {
    return invalid_argument("mask is {}, expected one of AttentionMask", static_cast<int>(batch.mask));
  }
  if (batch.mask == AttentionMask::kWindow && batch.window_left < 0) {
    return invalid_argument("a window mask with window_left {}, expected 0 or more", batch.window_left);
  }
  std::int64_t rows = 0, tokens = 0;
  for (std::size_t i = 0; i < requests; ++i) {
    if (batch.q_lens[i] < 0 || batch.kv_lens[i] < 0 || batch.kv_begins[i] < 0) {
      return invalid_argument("request {} has q_len {}, kv_len {} and begins at token {}, expected 0 or more", i,
                              batch.q_lens[i], batch.kv_lens[i], batch.kv_begins[i]);
    }
    rows += batch.q_lens[i];
    if (batch.kv_lens[i] > 0) tokens = std::max(tokens, std::int64_t{batch.kv_begins[i]} + batch.kv_lens[i]);
  }
  if (rows > options_.max_rows) {
    return out_of_range("{} query tokens, declared were {}; raise max_rows", rows, options_.max_rows);
  }
  if (tokens > kMostTokens) return out_of_range("tokens up to {}, expected fewer than 2^31", tokens);
  AttentionBatch mask;  // offsets and strides
  if (batch.mask == AttentionMask::kBits && requests != 0) {
    RequestBatch whole;
    whole.num_requests = batch.num_requests;
    whole.q_lens = batch.q_lens;
    whole.kv_lens = batch.kv_lens;
    whole.mask_bits = batch.mask_bits;
    whole.mask_bytes = batch.mask_bytes;
    whole.mask_offsets = batch.mask_offsets;
    FOVEA_RETURN_IF_ERROR(check_mask(whole, mask));
  }
  begin_contiguous(rows, tokens);
  std::int64_t row = 0;
  for (std::size_t i = 0; i < requests; ++i) {
    const std::int32_t q_len = batch.q_lens[i], kv_len = batch.kv_lens[i];
    if (q_len == 0) continue;
    const std::int32_t unit = batch.kv_begins[i] / options_.page_tokens;
    const std::int32_t first = batch.kv_begins[i] % options_.page_tokens;  // tokens of the first unit before it
    if (first != 0 && !options_.variant.name.empty()) {
      return unsupported(
          "request {} begins at token {}, inside of {} that are read at once: a variant of your own would see its "
          "positions moved",
          i, batch.kv_begins[i], options_.page_tokens);
    }
    const std::int64_t end = kv_len == 0 ? 0 : std::int64_t{first} + kv_len;
    if (num_pages(end) > options_.max_pages_per_request) {
      return out_of_range("request {} has {} tokens on {} units of {}, declared were {}; raise max_pages_per_request",
                          i, kv_len, num_pages(end), options_.page_tokens, options_.max_pages_per_request);
    }
    abi::BlockRow made =
        block_row_of(row, q_len, static_cast<std::int64_t>(entries_.size()), end, 0, options_.num_kv_heads);
    made.first_token = kv_len == 0 ? 0 : static_cast<std::uint32_t>(first);
    made.mask = static_cast<abi::MaskKind>(batch.mask);
    made.window_left = batch.window_left;
    if (batch.mask == AttentionMask::kBits) {
      made.mask_offset = mask_offsets_[i] - made.first_token;
      made.mask_stride = mask_strides_[i];
    }
    block_rows_.push_back(made);
    for (std::int64_t e = 0; e < num_pages(end); ++e) entries_.push_back(static_cast<std::int32_t>(unit + e));
    for (std::int32_t r = 0; r < q_len; ++r) {
      q_pos_[static_cast<std::size_t>(row++)] = static_cast<std::int32_t>(made.first_token) + kv_len - q_len + r;
    }
  }
  if (batch.mask != AttentionMask::kBits) return contiguous_rows({});
  return contiguous_rows({batch.mask_bits, static_cast<std::size_t>(batch.mask_bytes)});
}

namespace {

std::int64_t divided_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

Status check_blocks(const AttentionOptions& o, const BlockSparseBatch& b) {
  FOVEA_RETURN_IF_ERROR(check_contiguous(o, "plan_blocks()"));
  if (o.alibi_slopes.data != nullptr || !o.variant.name.empty()) {
    return unsupported("plan_blocks() with slopes or a variant of your own, which may look at positions");
  }
  if (b.num_rows < 0 || b.num_rows > o.max_rows) {
    return out_of_range("{} query tokens, declared were 0..{}; raise max_rows", b.num_rows, o.max_rows);
  }
  if (b.num_tokens < 0 || b.block_rows < 1 || b.block_tokens < 1) {
    return invalid_argument("{} KV tokens in blocks of {} x {}, expected 0 or more, and blocks of 1 x 1 or more",
                            b.num_tokens, b.block_rows, b.block_tokens);
  }
  if (b.block_tokens % o.page_tokens != 0) {
    return invalid_argument("block_tokens is {}, expected a multiple of page_tokens, {}", b.block_tokens,
                            o.page_tokens);
  }
  if (b.mask != AttentionMask::kNone && b.mask != AttentionMask::kCausal && b.mask != AttentionMask::kBits) {
    return unsupported("plan_blocks() with mask {}; it takes kNone, kCausal and kBits", static_cast<int>(b.mask));
  }
  if (b.num_rows > 0 && b.indptr == nullptr) return invalid_argument("{} query tokens need indptr", b.num_rows);
  return ok_status();
}

// That the columns of all block rows ascend within what there is.
Status check_columns(const BlockSparseBatch& b, std::int64_t lines) {
  const std::int64_t columns = divided_up(b.num_tokens, b.block_tokens);
  if (lines > 0 && b.indptr[0] < 0) return invalid_argument("indptr begins with {}, expected 0 or more", b.indptr[0]);
  for (std::int64_t line = 0; line < lines; ++line) {
    if (b.indptr[line] > b.indptr[line + 1]) {
      return invalid_argument("indptr falls from {} to {} at block row {}", b.indptr[line], b.indptr[line + 1], line);
    }
  }
  if (lines > 0 && b.indptr[lines] > 0 && b.indices == nullptr) return invalid_argument("blocks need indices");
  for (std::int64_t line = 0; line < lines; ++line) {
    const std::int32_t begin = b.indptr[line], end = b.indptr[line + 1];
    for (std::int32_t i = begin; i < end; ++i) {
      if (b.indices[i] < (i == begin ? 0 : b.indices[i - 1] + 1) || b.indices[i] >= columns) {
        return invalid_argument("block row {} names column {} as number {} of its {}; expected ascending ones below {}",
                                line, b.indices[i], i - begin, end - begin, columns);
      }
    }
  }
  return ok_status();
}

void copy_bits(const std::uint8_t* from, std::int64_t first, std::int64_t count, std::vector<std::uint8_t>& to,
               std::int64_t at) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (from[(first + i) >> 3] >> ((first + i) & 7) & 1) {
      to[static_cast<std::size_t>((at + i) >> 3)] |= static_cast<std::uint8_t>(1u << ((at + i) & 7));
    }
  }
}

}  // namespace

// Rows [begin, end) of a block row whose columns are indices[first .. last), as one block row of the plan. Under a
// causal mask the columns that hold the rows' positions follow each other (rows_alike()): positions count from these,
// and what stands before them in the run is seen whole.
Status BatchTranslator::add_blocks(const BlockSparseBatch& b, std::int32_t begin, std::int32_t end, std::int32_t first,
                                   std::int32_t last, std::int64_t list_begin, std::int32_t head_begin,
                                   std::int32_t head_end) {
  const std::int64_t size = b.block_tokens;
  std::int64_t tokens = (last - first) * size;
  std::int32_t base = 0;
  if (last > first && (b.indices[last - 1] + 1) * size > b.num_tokens) {
    tokens -= (b.indices[last - 1] + 1) * size - b.num_tokens;
  }
  if (b.mask == AttentionMask::kCausal && tokens > 0) {
    const std::int64_t low = std::int64_t{b.num_tokens} - b.num_rows + begin;  // the first row's position
    std::int32_t edge = first;  // the first column that the first row does not see whole
    while (edge < last && (b.indices[edge] + 1) * size - 1 <= low) ++edge;
    if (edge == last || b.indices[edge] * size > low) {
      tokens = (edge - first) * size;  // of the others, no row here sees anything
    } else {
      base = static_cast<std::int32_t>((b.indices[edge] - (edge - first)) * size);
      // Columns behind a gap would stand where rows see the gap, and none of these rows reaches them.
      do ++edge;
      while (edge < last && b.indices[edge] == b.indices[edge - 1] + 1);
      tokens = std::min(tokens, (edge - first) * size);
    }
  }
  if (num_pages(tokens) > options_.max_pages_per_request) {
    return out_of_range(
        "query tokens [{}, {}) see blocks of {} tokens, {} units of {}; declared were {}: raise "
        "max_pages_per_request",
        begin, end, tokens, num_pages(tokens), options_.page_tokens, options_.max_pages_per_request);
  }
  abi::BlockRow made = block_row_of(begin, end - begin, list_begin, tokens, head_begin, head_end);
  made.position_base = base;
  made.mask = static_cast<abi::MaskKind>(b.mask);
  if (b.mask == AttentionMask::kBits) {
    const std::int64_t at = static_cast<std::int64_t>(own_mask_.size()) * 8;
    made.mask_offset = static_cast<std::uint64_t>(at);
    made.mask_stride = static_cast<std::uint32_t>(tokens);
    own_mask_.resize(own_mask_.size() + static_cast<std::size_t>(divided_up((end - begin) * tokens, 8)));
    for (std::int32_t i = first; i < last; ++i) {
      const std::int64_t from = std::min(size, tokens - (i - first) * size);
      for (std::int64_t r = 0; r < end - begin; ++r) {
        copy_bits(b.mask_bits, (std::int64_t{i} * b.block_rows + r) * size, from, own_mask_,
                  at + r * tokens + (i - first) * size);
      }
    }
  }
  block_rows_.push_back(made);
  return ok_status();
}

Result<BlockRowBatch> BatchTranslator::blocks(const BlockSparseBatch& b) {
  contiguous_tokens_ = -1;
  FOVEA_RETURN_IF_ERROR(check_blocks(options_, b));
  const std::int64_t rows_of_blocks = divided_up(b.num_rows, b.block_rows);
  const std::int32_t kinds = b.heads_differ ? options_.num_kv_heads : 1;
  FOVEA_RETURN_IF_ERROR(check_columns(b, rows_of_blocks * kinds));
  if (b.mask == AttentionMask::kBits && rows_of_blocks > 0) {
    const std::int64_t bits = std::int64_t{b.indptr[rows_of_blocks * kinds]} * b.block_rows * b.block_tokens;
    if ((b.mask_bits == nullptr && bits > 0) || b.mask_bytes < divided_up(bits, 8)) {
      return invalid_argument("mask_bits has {} bytes, expected {} for all blocks", b.mask_bytes, divided_up(bits, 8));
    }
  }
  begin_contiguous(b.num_rows, b.num_tokens);
  for (std::int32_t r = 0; r < b.num_rows; ++r) q_pos_[static_cast<std::size_t>(r)] = b.num_tokens - b.num_rows + r;
  const std::int32_t units = b.block_tokens / options_.page_tokens;
  for (std::int32_t kind = 0; kind < kinds; ++kind) {
    const std::int32_t head_end = b.heads_differ ? kind + 1 : options_.num_kv_heads;
    for (std::int64_t i = 0; i < rows_of_blocks; ++i) {
      const std::int32_t first = b.indptr[kind * rows_of_blocks + i], last = b.indptr[kind * rows_of_blocks + i + 1];
      const auto list_begin = static_cast<std::int64_t>(entries_.size());
      for (std::int32_t at = first; at < last; ++at) {
        for (std::int32_t unit = 0; unit < units; ++unit) {
          const std::int64_t entry = std::int64_t{b.indices[at]} * units + unit;
          if (entry * options_.page_tokens < b.num_tokens) entries_.push_back(static_cast<std::int32_t>(entry));
        }
      }
      const auto begin = static_cast<std::int32_t>(i * b.block_rows);
      const auto end =
          static_cast<std::int32_t>(std::min<std::int64_t>(std::int64_t{begin} + b.block_rows, b.num_rows));
      for (std::int32_t row = begin; row < end;) {
        const std::int32_t stop = b.mask == AttentionMask::kCausal ? rows_alike(b, row, end, first, last) : end;
        FOVEA_RETURN_IF_ERROR(add_blocks(b, row, stop, first, last, list_begin, kind, head_end));
        row = stop;
      }
    }
  }
  const auto most = static_cast<std::size_t>(std::max(options_.max_block_rows, 3 * options_.max_requests));
  if (block_rows_.size() > most) {
    return out_of_range("{} block rows, declared were {}; raise max_block_rows", block_rows_.size(),
                        options_.max_block_rows);
  }
  if (b.mask == AttentionMask::kBits && own_mask_.empty()) own_mask_.push_back(0);
  return contiguous_rows(own_mask_);
}

// Of rows [begin, end) the end of those that one block row of the plan can have: listed columns that hold their
// positions follow each other.
std::int32_t BatchTranslator::rows_alike(const BlockSparseBatch& b, std::int32_t begin, std::int32_t end,
                                         std::int32_t first, std::int32_t last) {
  const std::int64_t low = std::int64_t{b.num_tokens} - b.num_rows + begin;
  const std::int32_t* const columns_end = b.indices + last;
  const std::int32_t* edge = b.indices + first;
  while (edge != columns_end && (std::int64_t{*edge} + 1) * b.block_tokens - 1 <= low) ++edge;
  if (edge == columns_end) return end;
  if (std::int64_t{*edge} * b.block_tokens <= low) {
    do ++edge;
    while (edge != columns_end && edge[0] == edge[-1] + 1);
    if (edge == columns_end) return end;
  }
  // Rows before that column's first token do not see it.
  const std::int64_t next = std::int64_t{*edge} * b.block_tokens - (std::int64_t{b.num_tokens} - b.num_rows);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(next, begin + 1, end));
}

}  // namespace fovea
