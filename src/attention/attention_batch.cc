#include "attention/attention_batch.h"

#include <algorithm>

#include "base/status.h"
#include "core/select/policy.h"

namespace fovea {
namespace {

constexpr std::int64_t kRoom = 8;  // pages more of a packed list, so that lengths may grow

}  // namespace

void BatchTranslator::note_pages(std::size_t list, const std::int32_t* entries, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<std::uint32_t>(entries[i]));
  if (count > 0 && (largest_.list < 0 || largest > largest_.page))
    largest_ = {largest, static_cast<std::int64_t>(list)};
}

Status BatchTranslator::check_pages(std::int64_t num_pages) const {
  if (largest_.list < 0 || largest_.page < static_cast<std::uint64_t>(num_pages)) return ok_status();
  return out_of_range("page list {} names page {}, the pool has pages 0..{}", largest_.list,
                      static_cast<std::int32_t>(largest_.page), num_pages - 1);
}

std::int64_t BatchTranslator::list_room(std::size_t request) const {
  const std::int64_t begin = source_begin(request);
  if (given_ends_.empty() || begin < 0) return INT64_MAX;
  return given_ends_[request] > begin ? given_ends_[request] - begin : 0;
}

// Checks that the lists lie in page_indices, and packs them where they are to be packed.
Result<bool> BatchTranslator::read_lists(const std::int32_t* kv_lens) {
  largest_ = {};
  const std::int64_t most = given_begins_.empty() ? std::min<std::int64_t>(page_stride_, options_.max_pages_per_request)
                                                  : options_.max_pages_per_request;
  lists_fit_ = page_indices_ == nullptr;
  std::int64_t longest = given_ends_.empty() ? INT32_MAX : 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_requests_); ++i) {
    const std::int64_t count = std::min(num_pages(kv_lens[i]), most);
    const std::int64_t begin = source_begin(i);
    const std::int64_t room = list_room(i);
    longest = std::max(longest, std::min<std::int64_t>(room, INT32_MAX));
    lists_fit_ = lists_fit_ && room >= most && (num_page_indices_ == 0 || begin <= num_page_indices_ - most);
    if (begin < 0 || (num_page_indices_ > 0 && begin > num_page_indices_ - count)) {
      return out_of_range("request {} has {} pages from entry {} of page_indices on, which has {}", i, count, begin,
                          num_page_indices_);
    }
    if (count > room) {
      return out_of_range("request {} has {} tokens on {} pages, its page list has {}", i, kv_lens[i], count, room);
    }
    if (page_indices_ == nullptr) continue;
    note_pages(i, page_indices_ + begin, count);
    if (!pack_lists_) continue;
    if (packed_begins_[i] + count > packed_begins_[i + 1]) return false;
    std::copy_n(page_indices_ + begin, count, entries_.begin() + packed_begins_[i]);
  }
  most_list_tokens_ = std::min<std::int64_t>(longest * options_.page_tokens, INT32_MAX);
  return true;
}

Result<AttentionBatch> BatchTranslator::requests(const RequestBatch& batch) {
  if (batch.num_requests < 0 || batch.num_requests > options_.max_requests) {
    return out_of_range("{} requests, declared were 0..{}; raise max_requests", batch.num_requests,
                        options_.max_requests);
  }
  const auto requests = static_cast<std::size_t>(batch.num_requests);
  if (requests != 0 && (batch.q_lens == nullptr || batch.kv_lens == nullptr || batch.page_indices == nullptr)) {
    return invalid_argument("a batch of {} requests needs q_lens, kv_lens and page_indices", requests);
  }
  if (batch.page_stride < 0 || batch.page_stride > INT32_MAX) {
    return invalid_argument("page_stride is {}, expected 0 to 2^31", batch.page_stride);
  }
  page_indices_ = batch.page_indices_device == DeviceKind::kCpu ? batch.page_indices : nullptr;
  num_page_indices_ = batch.num_page_indices;
  page_stride_ = batch.page_stride;
  num_requests_ = batch.num_requests;
  contiguous_tokens_ = -1;
  last_ = batch;
  q_lens_.assign(batch.q_lens, batch.q_lens + requests);
  given_begins_.clear();
  if (batch.list_begins != nullptr) given_begins_.assign(batch.list_begins, batch.list_begins + requests);
  given_ends_.clear();
  if (batch.list_ends != nullptr) given_ends_.assign(batch.list_ends, batch.list_ends + requests);

  AttentionBatch made;
  made.num_requests = batch.num_requests;
  made.q_lens = batch.q_lens;
  made.kv_lens = batch.kv_lens;
  made.mask = static_cast<abi::MaskKind>(batch.mask);
  static_assert(static_cast<int>(abi::MaskKind::kCausal) == static_cast<int>(AttentionMask::kCausal) &&
                static_cast<int>(abi::MaskKind::kWindow) == static_cast<int>(AttentionMask::kWindow) &&
                static_cast<int>(abi::MaskKind::kBits) == static_cast<int>(AttentionMask::kBits));
  made.window_left = batch.window_left;
  entries_.clear();
  if (pack_lists_ && page_indices_ != nullptr) {
    packed_begins_.assign(1, 0);
    for (std::size_t i = 0; i < requests; ++i) {
      const std::int64_t pages = std::min<std::int64_t>(num_pages(batch.kv_lens[i]), options_.max_pages_per_request);
      packed_begins_.push_back(packed_begins_.back() + pages + kRoom);
    }
    entries_.resize(static_cast<std::size_t>(packed_begins_.back()));
    made.page_table = entries_.data();
    made.list_begins = packed_begins_.data();
  } else {
    made.page_table = page_indices_;
    made.page_table_stride = static_cast<std::int32_t>(page_stride_);
    made.list_begins = given_begins_.empty() ? nullptr : given_begins_.data();
  }
  FOVEA_RETURN_IF_ERROR(read_lists(batch.kv_lens).status());
  if (batch.mask == AttentionMask::kBits && requests != 0) FOVEA_RETURN_IF_ERROR(check_mask(batch, made));
  return made;
}

Status BatchTranslator::check_mask(const RequestBatch& batch, AttentionBatch& made) {
  if (batch.mask_bits == nullptr || batch.mask_offsets == nullptr) {
    return invalid_argument("a bit mask needs mask_bits and mask_offsets");
  }
  const auto requests = static_cast<std::size_t>(batch.num_requests);
  mask_offsets_.resize(requests);
  mask_strides_.resize(requests);
  for (std::size_t i = 0; i < requests; ++i) {
    const std::int64_t q_len = std::max(batch.q_lens[i], 0);
    const std::int64_t kv_len = std::max(batch.kv_lens[i], 0);
    if (batch.mask_offsets[i] < 0 || batch.mask_offsets[i] > batch.mask_bytes * 8 - q_len * kv_len) {
      return out_of_range("the mask of request {} is {} x {} bits from bit {} on; mask_bits has {} bytes", i, q_len,
                          kv_len, batch.mask_offsets[i], batch.mask_bytes);
    }
    mask_offsets_[i] = static_cast<std::uint64_t>(batch.mask_offsets[i]);
    mask_strides_[i] = static_cast<std::uint32_t>(kv_len);
  }
  made.mask_offsets = mask_offsets_.data();
  made.mask_strides = mask_strides_.data();
  made.mask_bits = batch.mask_bits;
  return ok_status();
}

// That packed lists of these lengths stay within what was declared.
Status BatchTranslator::check_room(std::span<const std::int32_t> kv_lens) const {
  std::int64_t entries = 0;
  for (const std::int32_t tokens : kv_lens) {
    entries += std::min<std::int64_t>(num_pages(tokens), options_.max_pages_per_request) + kRoom;
  }
  if (options_.max_page_entries == 0 || entries <= options_.max_page_entries) return ok_status();
  return out_of_range("page lists of {} entries, declared were {}; raise max_page_entries", entries,
                      options_.max_page_entries);
}

Result<std::optional<AttentionBatch>> BatchTranslator::grow(std::span<const std::int32_t> kv_lens,
                                                            const Planner& planner) {
  if (num_requests_ < 0) return unsupported("grow() follows plan() alone: after other plans, plan again");
  if (kv_lens.size() != static_cast<std::size_t>(num_requests_)) {
    return invalid_argument("{} lengths for {} requests planned", kv_lens.size(), num_requests_);
  }
  if (last_.mask == AttentionMask::kBits) return unsupported("grow() with a bit mask: plan() again, with longer masks");
  if (lists_fit_) return std::optional<AttentionBatch>();
  FOVEA_RETURN_IF_ERROR(planner.check_growth(kv_lens.data()));
  const Largest largest = largest_;
  const Result<bool> fits = read_lists(kv_lens.data());
  Status status = fits.ok() && !*fits ? check_room(kv_lens) : fits.status();
  if (!status.ok()) {
    largest_ = largest;
    return status;
  }
  if (*fits) return std::optional<AttentionBatch>();
  RequestBatch longer = last_;
  longer.kv_lens = kv_lens.data();
  const std::vector<std::int64_t> begins = given_begins_, ends = given_ends_;  // which requests() writes
  const std::vector<std::int32_t> q_lens = q_lens_;
  longer.q_lens = q_lens.data();
  longer.list_begins = begins.empty() ? nullptr : begins.data();
  longer.list_ends = ends.empty() ? nullptr : ends.data();
  FOVEA_ASSIGN_OR_RETURN(AttentionBatch packed, requests(longer));
  packed.q_lens = q_lens_.data();
  return std::optional(packed);
}

namespace {

Status check_selected(const AttentionOptions& o, const SelectedBatch& batch) {
  if (o.alibi_slopes.data != nullptr || !o.variant.name.empty()) {
    return unsupported("plan_selected() with slopes or a variant of your own, which may look at positions");
  }
  if (o.batch_invariant) return unsupported("plan_selected() with batch_invariant");
  if (batch.num_requests < 0 || batch.num_requests > o.max_requests || batch.num_requests > o.max_rows) {
    return out_of_range("{} requests, declared were 0..{}; raise max_requests and max_rows", batch.num_requests,
                        std::min(o.max_requests, o.max_rows));
  }
  if (batch.budget_tokens < o.page_tokens || batch.budget_tokens % o.page_tokens != 0) {
    return invalid_argument("budget_tokens is {}, expected a multiple of page_tokens, {}", batch.budget_tokens,
                            o.page_tokens);
  }
  if (batch.budget_divisor < 0 || batch.budget_divisor == 1) {
    return invalid_argument("budget_divisor is {}, expected 0, or 2 or more", batch.budget_divisor);
  }
  if (batch.selected_stride < 0 || batch.selected_stride > UINT32_MAX || batch.num_page_indices < 0 ||
      batch.num_page_indices > UINT32_MAX) {
    return invalid_argument("selected_stride is {} and num_page_indices {}, expected 0 to 2^32", batch.selected_stride,
                            batch.num_page_indices);
  }
  if (batch.num_requests > 0 && (batch.kv_lens == nullptr || batch.page_indices == nullptr ||
                                 batch.list_begins == nullptr || batch.selected_begins == nullptr)) {
    return invalid_argument("a step of {} requests needs kv_lens, page_indices, list_begins and selected_begins",
                            batch.num_requests);
  }
  return ok_status();
}

}  // namespace

Result<BlockRowBatch> BatchTranslator::cascade(std::int32_t num_rows, std::span<const CascadeLevel> levels) {
  if (num_rows < 0 || num_rows > options_.max_rows) {
    return out_of_range("{} rows, declared were 0..{}; raise max_rows", num_rows, options_.max_rows);
  }
  const auto rows = static_cast<std::size_t>(num_rows);
  largest_ = {};
  num_requests_ = -1;
  contiguous_tokens_ = -1;
  entries_.clear();
  block_rows_.clear();
  row_indices_.resize(rows);
  for (std::size_t r = 0; r < rows; ++r) row_indices_[r] = static_cast<std::uint32_t>(r);
  q_pos_.assign(rows, 0);
  seen_tokens_.assign(rows, 0);
  for (std::size_t l = 0; l < levels.size(); ++l) {
    const CascadeLevel& level = levels[l];
    if (level.num_groups < 0 ||
        (level.num_groups > 0 && (level.row_begins == nullptr || level.kv_lens == nullptr ||
                                  level.page_indices == nullptr || level.list_begins == nullptr))) {
      return invalid_argument("level {} needs row_begins, kv_lens, page_indices and list_begins for its {} groups", l,
                              level.num_groups);
    }
    const auto base = static_cast<std::int64_t>(entries_.size());
    const std::int64_t num_entries = std::max<std::int64_t>(level.num_page_indices, 0);
    const bool host = level.page_indices_device == DeviceKind::kCpu;
    entries_.resize(entries_.size() + static_cast<std::size_t>(num_entries));
    if (host) std::copy_n(level.page_indices, num_entries, entries_.begin() + base);
    const bool last = l + 1 == levels.size();
    if (level.causal && !last)
      return invalid_argument("level {} of {} is causal; only the last one may be", l, levels.size());
    for (std::int32_t g = 0; g < level.num_groups; ++g) {
      const std::int32_t begin = level.row_begins[g];
      const std::int32_t end = level.row_begins[g + 1];
      const std::int32_t kv_len = level.kv_lens[g];
      if (begin < 0 || begin > end || end > num_rows) {
        return invalid_argument("group {} of level {} has rows [{}, {}) of {}", g, l, begin, end, num_rows);
      }
      const std::int64_t pages = num_pages(kv_len);
      if (kv_len < 0 || level.list_begins[g] < 0 || level.list_begins[g] > level.num_page_indices - pages) {
        return out_of_range("group {} of level {} has {} tokens from entry {} of page_indices on, which has {}", g, l,
                            kv_len, level.list_begins[g], level.num_page_indices);
      }
      if (begin == end || (kv_len == 0 && !last)) continue;
      if (host) note_pages(static_cast<std::size_t>(g), level.page_indices + level.list_begins[g], pages);
      abi::BlockRow block_row{};
      block_row.row_begin = static_cast<std::uint32_t>(begin);
      block_row.row_count = static_cast<std::uint32_t>(end - begin);
      block_row.list_begin = static_cast<std::uint32_t>(base + level.list_begins[g]);
      block_row.num_tokens = static_cast<std::uint32_t>(kv_len);
      block_row.position_base = seen_tokens_[static_cast<std::size_t>(begin)];
      block_row.positions_begin = abi::kNone;
      block_row.length_slot = abi::kNone;
      block_row.window_left = -1;
      block_row.head_end = static_cast<std::uint16_t>(options_.num_kv_heads);
      block_row.mask = level.causal ? abi::MaskKind::kCausal : abi::MaskKind::kNone;
      block_row.flags = abi::kRowsContiguous;
      block_row.num_requests = static_cast<std::uint32_t>(end - begin);
      block_rows_.push_back(block_row);
      for (std::int32_t r = begin; r < end; ++r) {
        seen_tokens_[static_cast<std::size_t>(r)] = block_row.position_base + kv_len;
        q_pos_[static_cast<std::size_t>(r)] = block_row.position_base + kv_len - end + r;
      }
    }
  }
  BlockRowBatch made;
  made.num_rows = num_rows;
  made.block_rows = block_rows_;
  made.row_indices = row_indices_;
  made.q_pos = q_pos_;
  made.page_entries = entries_.data();
  return made;
}

Result<BlockRowBatch> BatchTranslator::selected(const SelectedBatch& batch) {
  FOVEA_RETURN_IF_ERROR(check_selected(options_, batch));
  const auto requests = static_cast<std::size_t>(batch.num_requests);
  const auto heads = static_cast<std::uint16_t>(options_.num_kv_heads);
  largest_ = {};
  num_requests_ = -1;
  contiguous_tokens_ = -1;
  entries_.clear();
  block_rows_.clear();
  row_indices_.resize(requests);
  q_pos_.resize(requests);
  list_tokens_.resize(requests);
  std::int32_t num_chosen = 0;
  for (std::size_t i = 0; i < requests; ++i) {
    const std::int32_t tokens = batch.kv_lens[i];
    const std::int64_t pages = num_pages(tokens);
    const std::int32_t budget =
        std::min(batch.budget_tokens, KvBudget{batch.budget_tokens, batch.budget_divisor}.at(tokens));
    const std::int64_t budget_pages = budget / options_.page_tokens;
    const bool chosen = batch.selected_begins[i] >= 0 && pages > budget_pages;
    if (chosen && ++num_chosen > options_.max_selected) {
      return out_of_range("more than {} requests read chosen pages; raise max_selected", options_.max_selected);
    }
    const std::int64_t listed = chosen ? budget_pages : pages;
    const std::int64_t begin = chosen ? batch.selected_begins[i] : batch.list_begins[i];
    // Not begin + read: that could overflow.
    const std::int64_t read = listed + (chosen ? batch.selected_stride * (heads - 1) : 0);
    if (tokens < 1 || pages > options_.max_pages_per_request || begin < 0 || begin > batch.num_page_indices - read) {
      return out_of_range(
          "request {} has {} tokens and reads {} entries from {} on of page_indices, which has {}; at most {} pages a "
          "request",
          i, tokens, read, begin, batch.num_page_indices, options_.max_pages_per_request);
    }
    const std::int64_t left = tokens - (pages - 1) * options_.page_tokens;  // on the newest page
    const std::int64_t newest = chosen && batch.list_tokens != nullptr ? 1 : left;
    list_tokens_[i] = static_cast<std::int32_t>((listed - 1) * options_.page_tokens + newest);
    row_indices_[i] = static_cast<std::uint32_t>(i);
    q_pos_[i] = list_tokens_[i] - 1;
    abi::BlockRow block_row{};
    block_row.row_begin = static_cast<std::uint32_t>(i);
    block_row.row_count = 1;
    block_row.num_tokens = static_cast<std::uint32_t>(list_tokens_[i]);
    block_row.positions_begin = abi::kNone;
    block_row.length_slot = batch.list_tokens != nullptr ? static_cast<std::uint32_t>(i) : abi::kNone;
    block_row.window_left = -1;
    block_row.mask = abi::MaskKind::kNone;  // lists end with the query's own token
    block_row.flags = abi::kRowsContiguous;
    block_row.num_requests = 1;
    for (std::uint16_t head = 0; head < (chosen ? heads : std::uint16_t{1}); ++head) {
      block_row.list_begin = static_cast<std::uint32_t>(begin + head * batch.selected_stride);
      block_row.head_begin = head;
      block_row.head_end = chosen ? static_cast<std::uint16_t>(head + 1) : heads;
      if (!pack_lists_) note_pages(i, batch.page_indices + block_row.list_begin, listed);
      block_rows_.push_back(block_row);
    }
  }
  BlockRowBatch made;
  made.num_rows = batch.num_requests;
  made.block_rows = block_rows_;
  made.row_indices = row_indices_;
  made.q_pos = q_pos_;
  made.page_entries = batch.page_indices;
  made.kv_lens = list_tokens_;
  return made;
}

void BatchTranslator::given() {
  largest_ = {};
  num_requests_ = -1;
  contiguous_tokens_ = -1;
  entries_.clear();
  given_mask_ = {};
}

namespace {

// That the bits of a block row lie in the batch's mask. mask_offset may be "before" it, for tokens before the first.
Status check_bits(const abi::BlockRow& row, std::size_t index, const BlockRowBatch& batch) {
  if (row.row_count == 0 || row.num_tokens <= row.first_token) return ok_status();
  const std::uint64_t bits = std::uint64_t{batch.mask_bytes} * 8;
  const std::uint64_t begin = row.mask_offset + row.first_token;
  const std::uint64_t last = std::uint64_t{row.row_count - 1} * row.mask_stride + row.num_tokens - 1 - row.first_token;
  if (begin < bits && last < bits - begin) return ok_status();
  return out_of_range("the mask of block row {} is {} rows of {} bits from bit {} on, {} apart; mask_bits has {} bytes",
                      index, row.row_count, row.num_tokens - row.first_token, begin, row.mask_stride, batch.mask_bytes);
}

}  // namespace

Result<BlockRowBatch> BatchTranslator::block_rows(const BlockRowBatch& batch, std::size_t pool, std::size_t num_pools) {
  given();
  block_rows_.clear();
  list_parts_.clear();
  const bool looks_at_positions = options_.alibi_slopes.data != nullptr || !options_.variant.name.empty();
  for (std::size_t i = 0; i < batch.block_rows.size(); ++i) {
    abi::BlockRow row = batch.block_rows[i];
    if (row.pool >= num_pools) {
      return invalid_argument("block row {} reads KV pool {}, declared were {}", i, row.pool, num_pools);
    }
    if (row.pool != pool) continue;
    if (row.mask == abi::MaskKind::kBits) {
      FOVEA_RETURN_IF_ERROR(check_bits(row, i, batch));
      given_mask_ = {batch.mask_bits, batch.mask_bytes};
    }
    if (row.positions_begin != abi::kNone && (row.mask != abi::MaskKind::kNone || looks_at_positions)) {
      return unsupported("block row {} lists positions, which its mask or the variant looks at", i);
    }
    if (batch.page_entries == nullptr && row.num_tokens > 0) {
      return invalid_argument("block row {} has tokens but the batch has no page_entries", i);
    }
    row.positions_begin = row.length_slot = abi::kNone;
    row.pool = 0;
    if (batch.entries_on_device) {
      block_rows_.push_back(row);
      continue;
    }
    const std::int64_t pages = std::min<std::int64_t>(num_pages(row.num_tokens), options_.max_pages_per_request);
    list_parts_.push_back({row.list_begin, row.list_begin + static_cast<std::uint32_t>(pages), 0});
    block_rows_.push_back(row);
  }
  // Parts that meet become one.
  const auto before = [](const ListPart& a, const ListPart& b) { return a.begin < b.begin; };
  std::sort(list_parts_.begin(), list_parts_.end(), before);
  std::size_t count = 0;
  for (const ListPart& part : list_parts_) {
    if (count > 0 && part.begin <= list_parts_[count - 1].end) {
      list_parts_[count - 1].end = std::max(list_parts_[count - 1].end, part.end);
    } else {
      list_parts_[count++] = part;
    }
  }
  list_parts_.resize(count);
  for (ListPart& part : list_parts_) {
    part.packed = static_cast<std::uint32_t>(entries_.size());
    if (part.begin == part.end) continue;
    entries_.insert(entries_.end(), batch.page_entries + part.begin, batch.page_entries + part.end);
  }
  note_pages(0, entries_.data(), static_cast<std::int64_t>(entries_.size()));
  for (abi::BlockRow& row : block_rows_) {
    const ListPart key{row.list_begin, 0, 0};
    if (batch.entries_on_device) break;  // nothing was packed
    const ListPart& part = *std::prev(std::upper_bound(list_parts_.begin(), list_parts_.end(), key, before));
    row.list_begin = part.packed + (row.list_begin - part.begin);
  }
  BlockRowBatch made = batch;
  made.block_rows = block_rows_;
  if (!batch.entries_on_device) made.page_entries = entries_.data();
  made.kv_positions = nullptr;
  made.kv_lens = {};
  if (!batch.pool_token_bytes.empty()) made.pool_token_bytes = batch.pool_token_bytes.subspan(pool, 1);
  made.kv_bytes_saved = pool == 0 ? batch.kv_bytes_saved : 0;
  made.other_plans = num_pools > 1;
  return made;
}

Status check_growth(const AttentionOptions& options, bool planned, const BatchTranslator& translator) {
  if (!options.device_growth) return invalid_argument("grow_on_device() needs AttentionOptions::device_growth");
  if (options.batch_invariant) return unsupported("grow_on_device() with batch_invariant: plan() or grow() instead");
  if (!planned) return invalid_argument("grow_on_device() needs a plan; call plan() first");
  if (translator.num_requests() < 0)
    return unsupported("grow_on_device() after plan_cascade() or plan_selected(): plan again");
  return ok_status();
}

}  // namespace fovea
