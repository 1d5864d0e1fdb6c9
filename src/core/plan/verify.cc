#include "core/plan/verify.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"

namespace fovea {
namespace {

// Tokens [begin, end) of the run that a row at `position` may see, by the mask of the block row.
struct Range {
  std::int64_t begin;
  std::int64_t end;
};

Range visible(const abi::BlockRow& b, std::int64_t position) {
  Range range{b.first_token, b.num_tokens};
  if (b.positions_begin != abi::kNone) return range;
  if (b.mask == abi::MaskKind::kCausal || b.mask == abi::MaskKind::kWindow) {
    range.end = std::clamp<std::int64_t>(position + 1 - b.position_base, range.begin, range.end);
  }
  if (b.mask == abi::MaskKind::kWindow) {
    range.begin = std::clamp<std::int64_t>(position - b.window_left - b.position_base, range.begin, range.end);
  }
  return range;
}

// One (item, head) that covers a row.
struct Cover {
  std::uint32_t block_row;
  std::uint32_t item;
  std::uint32_t nth;      // row of the block row
  std::uint32_t partial;  // partial row, or kNone
  std::int64_t kv_begin;
  std::int64_t kv_end;
};

class ScheduleVerifier {
 public:
  ScheduleVerifier(const abi::PlanView& plan, std::uint32_t max_partial_rows)
      : plan_(plan), h_(*plan.header), max_partial_rows_(max_partial_rows) {}

  Status verify() {
    covers_.resize(std::size_t{h_.num_rows} * h_.num_kv_heads);
    if (h_.num_partial_rows > max_partial_rows_) {
      return internal_error("{} partial rows, the workspace holds {}", h_.num_partial_rows, max_partial_rows_);
    }
    partial_used_.assign(h_.num_partial_rows, false);
    FOVEA_RETURN_IF_ERROR(verify_queues());
    for (std::uint32_t item = 0; item < h_.num_items; ++item) FOVEA_RETURN_IF_ERROR(verify_flags(item));
    std::vector<std::int64_t> entry_of(covers_.size(), -1);
    for (std::uint32_t m = 0; m < h_.num_merges; ++m) {
      const abi::MergeEntry& merge = plan_.merges[m];
      if (merge.row >= h_.num_rows || merge.head >= h_.num_kv_heads)
        return internal_error("merge {} is out of range", m);
      std::int64_t& entry = entry_of[std::size_t{merge.row} * h_.num_kv_heads + merge.head];
      if (entry >= 0) return internal_error("row {} head {} is merged twice", merge.row, merge.head);
      entry = m;
    }
    for (std::uint32_t row = 0; row < h_.num_rows; ++row) {
      for (std::uint32_t head = 0; head < h_.num_kv_heads; ++head) {
        const std::size_t cell = std::size_t{row} * h_.num_kv_heads + head;
        Status status = verify_row(covers_[cell], entry_of[cell]);
        if (!status.ok()) return internal_error("row {} head {}: {}", row, head, status.message());
      }
    }
    return ok_status();
  }

 private:
  Status verify_queues() {
    std::uint32_t expected = 0;
    for (std::uint32_t l = 0; l < h_.num_launches; ++l) {
      const abi::Launch& launch = plan_.launches[l];
      for (std::uint32_t w = 0; w < launch.num_workers; ++w) {
        const std::uint32_t begin = plan_.queue_begin[launch.first_queue + w];
        const std::uint32_t end = plan_.queue_begin[launch.first_queue + w + 1];
        if (begin != expected || end < begin || end > h_.num_queue_entries) {
          return internal_error("queue of worker {} is [{}, {})", w, begin, end);
        }
        for (std::uint32_t q = begin; q < end; ++q) FOVEA_RETURN_IF_ERROR(add_heads(q));
        expected = end;
      }
    }
    if (expected != h_.num_queue_entries) {
      return internal_error("queues hold {} entries of {}", expected, h_.num_queue_entries);
    }
    if (plan_.queue[expected] != 0) return internal_error("the queue does not end with 0");
    return ok_status();
  }

  Status add_heads(std::uint32_t q) {
    const std::uint32_t index = abi::queue_item(plan_.queue[q]);
    if (index >= h_.num_items) return internal_error("queue entry for item {} of {}", index, h_.num_items);
    const std::uint32_t end = plan_.queue_head_end(q);
    for (std::uint32_t head = abi::queue_head(plan_.queue[q]); head < end; ++head) {
      FOVEA_RETURN_IF_ERROR(add_pair(index, head));
    }
    return ok_status();
  }

  Status add_pair(std::uint32_t index, std::uint32_t head) {
    const abi::WorkItem& item = plan_.items[index];
    if (item.block_row >= h_.num_block_rows) return internal_error("item {} has block row {}", index, item.block_row);
    const abi::BlockRow& b = plan_.block_rows[item.block_row];
    const std::uint32_t rows = item.row_count * h_.group;
    if (head < b.head_begin || head >= b.head_end)
      return internal_error("item {} is queued under head {}", index, head);
    if (item.row_begin < b.row_begin || item.row_begin + item.row_count > b.row_begin + b.row_count) {
      return internal_error("item {} has rows outside its block row", index);
    }
    if (rows == 0 || item.tile_class >= abi::kMaxTileClasses || rows > h_.tile_rows[item.tile_class]) {
      return internal_error("item {} has {} rows in tile class {}", index, rows, item.tile_class);
    }
    if (item.kv_begin > item.kv_end || item.kv_begin < b.first_token || item.kv_end > b.num_tokens) {
      return internal_error("item {} has tokens [{}, {}) of a run of [{}, {})", index, item.kv_begin, item.kv_end,
                            b.first_token, b.num_tokens);
    }
    if (item.list_begin != b.list_begin) return internal_error("item {} reads another page list", index);
    const bool direct = (item.flags & abi::kItemDirect) != 0;
    if (direct != (item.partial_slot == abi::kNone)) return internal_error("item {}: direct flag and slot", index);
    for (std::uint32_t i = 0; i < item.row_count; ++i) {
      const std::uint32_t row = plan_.row_indices[item.row_begin + i];
      if (row >= h_.num_rows) return internal_error("item {} has row {} of {}", index, row, h_.num_rows);
      std::uint32_t partial = abi::kNone;
      if (!direct) {
        partial = abi::partial_row(item, b, head, h_.group) + i * h_.group;
        for (std::uint32_t g = 0; g < h_.group; ++g) {
          if (partial + g >= h_.num_partial_rows)
            return internal_error("item {} has partial row {}", index, partial + g);
          if (partial_used_[partial + g]) return internal_error("partial row {} is written twice", partial + g);
          partial_used_[partial + g] = true;
        }
      }
      covers_[std::size_t{row} * h_.num_kv_heads + head].push_back(
          {item.block_row, index, item.row_begin + i - b.row_begin, partial, item.kv_begin, item.kv_end});
    }
    return ok_status();
  }

  // kItemMasked stands exactly where the mask hides some pair of the item, as far as positions tell.
  Status verify_flags(std::uint32_t index) const {
    const abi::WorkItem& item = plan_.items[index];
    if (item.block_row >= h_.num_block_rows) return internal_error("item {} has block row {}", index, item.block_row);
    const abi::BlockRow& b = plan_.block_rows[item.block_row];
    bool hidden = false;
    for (std::uint32_t i = 0; i < item.row_count && item.kv_begin < item.kv_end; ++i) {
      const Range range = visible(b, plan_.q_pos[item.row_begin + i]);
      hidden |= range.begin > item.kv_begin || range.end < item.kv_end;
      hidden |= b.mask == abi::MaskKind::kBits || (b.mask != abi::MaskKind::kNone && b.positions_begin != abi::kNone);
    }
    if (hidden == ((item.flags & abi::kItemMasked) != 0)) return ok_status();
    return internal_error("item {} {} hidden pairs but its masked flag says otherwise", index,
                          hidden ? "has" : "has no");
  }

  Status verify_row(std::vector<Cover>& covers, std::int64_t entry) const {
    if (covers.empty()) return internal_error("has no item");
    std::sort(covers.begin(), covers.end(), [](const Cover& a, const Cover& b) {
      return std::tie(a.block_row, a.kv_begin, a.kv_end) < std::tie(b.block_row, b.kv_begin, b.kv_end);
    });
    for (std::size_t i = 0; i < covers.size(); ++i) {
      const Cover& c = covers[i];
      const abi::BlockRow& b = plan_.block_rows[c.block_row];
      const Range range = visible(b, plan_.q_pos[b.row_begin + c.nth]);
      const bool first = i == 0 || covers[i - 1].block_row != c.block_row;
      const bool last = i + 1 == covers.size() || covers[i + 1].block_row != c.block_row;
      if (first && c.kv_begin > range.begin && range.begin < range.end) {
        return internal_error("tokens [{}, {}) of block row {} are missing", range.begin, c.kv_begin, c.block_row);
      }
      if (!first && covers[i - 1].kv_end != c.kv_begin) {
        return internal_error("items {} and {} leave a gap or overlap at token {}", covers[i - 1].item, c.item,
                              c.kv_begin);
      }
      if (last && c.kv_end < range.end) {
        return internal_error("tokens [{}, {}) of block row {} are missing", c.kv_end, range.end, c.block_row);
      }
    }
    return verify_writer(covers, entry);
  }

  std::int64_t run_start(const Cover& cover) const {
    const abi::BlockRow& b = plan_.block_rows[cover.block_row];
    return std::int64_t{b.position_base} + b.first_token;
  }

  Status verify_writer(std::vector<Cover>& covers, std::int64_t entry) const {
    if (covers.size() == 1 && covers[0].partial == abi::kNone) {
      return entry < 0 ? ok_status() : internal_error("is written directly and merged");
    }
    for (const Cover& c : covers) {
      if (c.partial == abi::kNone) return internal_error("item {} writes directly but is not the only one", c.item);
    }
    if (entry < 0) return internal_error("has partial states but no merge");
    const abi::MergeEntry& merge = plan_.merges[entry];
    if (merge.num_parts != covers.size() || merge.parts_begin + merge.num_parts > h_.num_parts) {
      return internal_error("merges {} parts of {}", merge.num_parts, covers.size());
    }
    // Run by run in ascending order of where the runs start (runs of one row may interleave: selected pages), and
    // ascending inside each run. covers are sorted by block row and token.
    std::stable_sort(covers.begin(), covers.end(), [&](const Cover& a, const Cover& b) {
      return std::pair(run_start(a), a.block_row) < std::pair(run_start(b), b.block_row);
    });
    for (std::uint32_t i = 0; i < merge.num_parts; ++i) {
      if (plan_.merge_parts[merge.parts_begin + i] != covers[i].partial) {
        return internal_error("part {} is partial row {}, expected {}", i, plan_.merge_parts[merge.parts_begin + i],
                              covers[i].partial);
      }
    }
    return ok_status();
  }

  const abi::PlanView& plan_;
  const abi::PlanHeader& h_;
  std::uint32_t max_partial_rows_;
  std::vector<std::vector<Cover>> covers_;  // by row * heads + head
  std::vector<bool> partial_used_;
};

// One block row as a request's row sees it.
struct Run {
  std::uint32_t block_row;
  std::uint32_t nth;
};

Status verify_run(const abi::PlanView& plan, const AttentionBatch& batch, std::int32_t page_tokens,
                  std::uint32_t request, std::uint32_t nth_query, const Run& run) {
  const abi::BlockRow& b = plan.block_rows[run.block_row];
  const std::int32_t kv_len = batch.kv_lens[request];
  const std::int32_t position = kv_len - batch.q_lens[request] + static_cast<std::int32_t>(nth_query);
  if (plan.q_pos[b.row_begin + run.nth] != position) {
    return internal_error("stands at position {}, expected {}", plan.q_pos[b.row_begin + run.nth], position);
  }
  if (b.position_base < 0 || b.position_base % page_tokens != 0 ||
      static_cast<std::int64_t>(b.position_base) + b.num_tokens > kv_len) {
    return internal_error("block row {} has positions [{}, {}) of {} tokens", run.block_row, b.position_base,
                          b.position_base + b.num_tokens, kv_len);
  }
  const std::int32_t* own =
      batch.page_table + (batch.list_begins != nullptr ? batch.list_begins[request]
                                                       : static_cast<std::int64_t>(request) * batch.page_table_stride);
  const std::int32_t first = b.position_base / page_tokens;
  // A plan that shares nothing may be made without the lists, and names the same places in them.
  const std::int32_t* const entries = plan.page_entries != nullptr ? plan.page_entries : batch.page_table;
  for (std::uint32_t page = 0; page * static_cast<std::uint32_t>(page_tokens) < b.num_tokens; ++page) {
    const std::int32_t read = entries[b.list_begin + page], expected = own[first + static_cast<std::int32_t>(page)];
    if (read != expected) {
      return internal_error("block row {} reads page {} at entry {}, the request has {}", run.block_row, read,
                            first + static_cast<std::int32_t>(page), expected);
    }
  }
  return ok_status();
}

// What the mask of the batch lets the row see against what the mask of the block row does, token by token.
bool batch_sees(const AttentionBatch& batch, std::uint32_t request, std::uint32_t nth_query, std::int64_t token) {
  const std::int64_t kv_len = batch.kv_lens[request];
  const std::int64_t position = kv_len - batch.q_lens[request] + nth_query;
  switch (batch.mask) {
    case abi::MaskKind::kNone: return true;
    case abi::MaskKind::kCausal: return token <= position;
    case abi::MaskKind::kWindow: return token <= position && position - token <= batch.window_left;
    case abi::MaskKind::kBits: {
      const std::int64_t tail =
          batch.mask_tails == nullptr ? kv_len : std::min<std::int64_t>(batch.mask_tails[request], kv_len);
      if (token < kv_len - tail) return true;
      const std::uint64_t bit = batch.mask_offsets[request] + std::uint64_t{nth_query} * batch.mask_strides[request] +
                                static_cast<std::uint64_t>(token - (kv_len - tail));
      return (batch.mask_bits[bit / 8] >> (bit % 8)) & 1;
    }
  }
  return false;
}

bool block_row_sees(const abi::PlanView& plan, const abi::BlockRow& b, std::uint32_t nth, std::int64_t token) {
  const Range range = visible(b, plan.q_pos[b.row_begin + nth]);
  if (token < range.begin || token >= range.end) return false;
  if (b.mask != abi::MaskKind::kBits) return true;
  const std::uint64_t bit = b.mask_offset + std::uint64_t{nth} * b.mask_stride + static_cast<std::uint64_t>(token);
  return (plan.mask_bits[bit / 8] >> (bit % 8)) & 1;
}

}  // namespace

Status verify_schedule(const abi::PlanView& plan, std::uint32_t max_partial_rows) {
  return ScheduleVerifier(plan, max_partial_rows).verify();
}

Status verify_packing(const abi::PlanView& plan, const AttentionBatch& batch, std::int32_t page_tokens) {
  const abi::PlanHeader& h = *plan.header;
  std::vector<std::vector<Run>> runs(h.num_rows);
  for (std::uint32_t b = 0; b < h.num_block_rows; ++b) {
    const abi::BlockRow& block_row = plan.block_rows[b];
    if (block_row.head_begin != 0 || block_row.head_end != h.num_kv_heads) {
      return internal_error("block row {} has some heads only", b);
    }
    for (std::uint32_t k = 0; k < block_row.row_count; ++k) {
      const std::uint32_t row = plan.row_indices[block_row.row_begin + k];
      if (row >= h.num_rows) return internal_error("block row {} has row {} of {}", b, row, h.num_rows);
      if ((block_row.flags & abi::kRowsContiguous) && row != plan.row_indices[block_row.row_begin] + k) {
        return internal_error("block row {} says contiguous rows and is not", b);
      }
      runs[row].push_back({b, k});
    }
  }
  std::uint32_t row = 0;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(batch.num_requests); ++i) {
    for (std::uint32_t j = 0; j < static_cast<std::uint32_t>(batch.q_lens[i]); ++j, ++row) {
      if (row >= h.num_rows) return internal_error("the plan has {} rows, the batch more", h.num_rows);
      if (plan.row_indices[row] != row) return internal_error("row index {} is {}", row, plan.row_indices[row]);
      std::vector<std::uint32_t> seen(static_cast<std::size_t>(batch.kv_lens[i]), 0);
      for (const Run& run : runs[row]) {
        Status status = verify_run(plan, batch, page_tokens, i, j, run);
        if (!status.ok()) return internal_error("request {} query {}: {}", i, j, status.message());
        const abi::BlockRow& b = plan.block_rows[run.block_row];
        for (std::uint32_t t = b.first_token; t < b.num_tokens; ++t) {
          if (block_row_sees(plan, b, run.nth, t)) ++seen[static_cast<std::size_t>(b.position_base) + t];
        }
      }
      for (std::size_t t = 0; t < seen.size(); ++t) {
        const std::uint32_t expected = batch_sees(batch, i, j, static_cast<std::int64_t>(t)) ? 1 : 0;
        if (seen[t] != expected) {
          return internal_error("request {} query {} sees token {} {} times, expected {}", i, j, t, seen[t], expected);
        }
      }
    }
  }
  if (row != h.num_rows) return internal_error("the plan has {} rows, the batch {}", h.num_rows, row);
  return ok_status();
}

}  // namespace fovea
