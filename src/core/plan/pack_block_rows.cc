// The pack step for block rows made by a caller: checks them, finds which are solo, copies them into the plan.
#include <algorithm>
#include <array>

#include "base/status.h"
#include "core/plan/merge_list.h"
#include "core/plan/pack.h"

namespace fovea {
namespace {

Status check_block_row(const abi::BlockRow& b, std::size_t index, const BlockRowBatch& batch,
                       const PlannerOptions& options) {
  if (std::uint64_t{b.row_begin} + b.row_count > batch.row_indices.size()) {
    return invalid_argument("block row {} has rows [{}, {}) of {} row indices", index, b.row_begin,
                            std::uint64_t{b.row_begin} + b.row_count, batch.row_indices.size());
  }
  if (b.head_begin >= b.head_end || b.head_end > options.num_kv_heads) {
    return invalid_argument("block row {} has KV heads [{}, {}) of {}", index, b.head_begin, b.head_end,
                            options.num_kv_heads);
  }
  if (b.mask > abi::MaskKind::kBits) {
    return invalid_argument("block row {} has mask kind {}, expected 0..3", index, static_cast<int>(b.mask));
  }
  if (b.mask == abi::MaskKind::kWindow && b.window_left < 0) {
    return invalid_argument("block row {} has a window of {}, expected 0 or more", index, b.window_left);
  }
  if (b.mask == abi::MaskKind::kBits && batch.mask_bits == nullptr) {
    return invalid_argument("block row {} has a bit mask but the batch has no mask_bits", index);
  }
  const std::uint64_t most = static_cast<std::uint64_t>(options.limits.max_pages_per_request) *
                             static_cast<std::uint64_t>(options.page_tokens);
  if (b.num_tokens > most) {
    return make_status(StatusCode::kOutOfRange, "block row {} has {} tokens, the planner was made for {}", index,
                       b.num_tokens, most);
  }
  if (b.positions_begin != abi::kNone && batch.kv_positions == nullptr) {
    return invalid_argument("block row {} lists positions but the batch has no kv_positions", index);
  }
  if (b.positions_begin == abi::kNone && b.position_base < 0) {
    return invalid_argument("block row {} starts at position {}, expected 0 or more", index, b.position_base);
  }
  if (b.length_slot != abi::kNone && b.length_slot >= batch.kv_lens.size()) {
    return invalid_argument("block row {} has length slot {} of {}", index, b.length_slot, batch.kv_lens.size());
  }
  if (batch.page_entries == nullptr && b.num_tokens > 0) {
    return invalid_argument("block row {} has tokens but the batch has no page_entries", index);
  }
  return ok_status();
}

constexpr std::size_t kMostHeads = 256;

// How many of a query token's block rows have each KV head: in time of heads and block rows, which where heads differ
// are as many.
class HeadCounts {
 public:
  explicit HeadCounts(std::size_t num_heads) : num_heads_(num_heads) {}
  void clear() { std::fill_n(steps_.begin(), num_heads_ + 1, 0); }
  void add(const abi::BlockRow& b) {
    ++steps_[b.head_begin];
    --steps_[b.head_end];
  }
  // After the last add(): the first head that none has, or num_heads.
  std::size_t count() {
    std::size_t first_without = num_heads_;
    std::int32_t count = 0;
    for (std::size_t head = 0; head < num_heads_; ++head) {
      count += steps_[head];
      if (count == 0) first_without = std::min(first_without, head);
      shared_below_[head + 1] = shared_below_[head] + (count > 1 ? 1 : 0);
    }
    return first_without;
  }
  bool shares(const abi::BlockRow& b) const { return shared_below_[b.head_begin] != shared_below_[b.head_end]; }

 private:
  std::size_t num_heads_;
  std::array<std::int32_t, kMostHeads + 1> steps_{}, shared_below_{};
};

// Every (row, KV head) of the plan needs a block row; a block row is solo when none of its rows meets another one under
// a shared head.
Status mark_solo(const PlannerOptions& options, const BlockRowBatch& batch, std::uint32_t num_rows, PlanArrays& p) {
  for (abi::BlockRow& block_row : p.block_rows) block_row.flags &= static_cast<std::uint8_t>(~abi::kRowsSolo);
  place_covers(p, num_rows);
  for (abi::BlockRow& block_row : p.block_rows) block_row.flags |= abi::kRowsSolo;
  const auto heads = static_cast<std::size_t>(options.num_kv_heads);
  HeadCounts counts(heads);
  for (std::uint32_t row = 0; row < num_rows; ++row) {
    const bool any = p.covers.size != 0;
    const std::uint32_t begin = any ? p.cover_begin[row] : 0;
    const std::uint32_t end = any ? p.cover_begin[row + 1] : 0;
    counts.clear();
    for (std::uint32_t i = begin; i < end; ++i) counts.add(p.block_rows[p.covers[i].block_row]);
    const std::size_t without = counts.count();
    for (std::uint32_t i = begin; i < end; ++i) {
      abi::BlockRow& b = p.block_rows[p.covers[i].block_row];
      if (counts.shares(b)) b.flags &= static_cast<std::uint8_t>(~abi::kRowsSolo);
    }
    if (without < heads && !batch.other_plans) {
      return invalid_argument(
          "query token {} has no block row for KV head {}; give it one, with 0 tokens if it sees "
          "nothing",
          row, without);
    }
  }
  return ok_status();
}

// Chunks of batch-invariant mode that the run of a block row lies in, one for an empty run.
std::uint64_t chunks_of(const abi::BlockRow& b, std::uint64_t chunk) {
  const std::uint64_t offset = static_cast<std::uint64_t>(b.position_base) % chunk;
  const std::uint64_t first = std::min(b.first_token, b.num_tokens);
  const std::uint64_t last = std::max<std::uint64_t>(b.num_tokens, first + 1) - 1;
  return (last + offset) / chunk - (first + offset) / chunk + 1;
}

// Partial states that the block rows may need, against what the workspace holds.
Status check_partial_rows(const PlannerOptions& options, const PlanCapacity& capacity, const PlanArrays& p) {
  const std::uint64_t heads = static_cast<std::uint64_t>(options.num_kv_heads);
  std::uint64_t used = 0;
  for (const abi::BlockRow& b : p.block_rows) {
    const std::uint64_t pairs = std::uint64_t{b.row_count} * (b.head_end - b.head_begin);
    if (options.batch_invariant) {
      used += pairs * chunks_of(b, static_cast<std::uint64_t>(options.invariant_chunk));
    } else if ((b.flags & abi::kRowsSolo) == 0) {
      used += pairs;
    }
  }
  const std::uint64_t most = heads * (options.batch_invariant ? capacity.rows * capacity.chunks : capacity.shared_rows);
  if (used <= most) return ok_status();
  return make_status(StatusCode::kOutOfRange,
                     "block rows leave up to {} partial states of (query token, KV head); the planner was made for {}; "
                     "raise limits.{}",
                     used, most, options.batch_invariant ? "max_rows" : "max_shared_rows");
}

}  // namespace

Status pack_block_rows(const BlockRowBatch& batch, const PlannerOptions& options, PlanArrays& p) {
  const std::uint32_t num_rows = static_cast<std::uint32_t>(std::max(batch.num_rows, 0));
  if (batch.num_rows < 0 || batch.num_rows > options.limits.max_rows) {
    return make_status(StatusCode::kOutOfRange, "{} query tokens, the planner was made for 0..{}", batch.num_rows,
                       options.limits.max_rows);
  }
  if (batch.row_indices.size() != batch.q_pos.size() || batch.row_indices.size() < num_rows) {
    return invalid_argument(
        "{} row indices and {} positions for {} query tokens, expected as many of both, and one a "
        "token at least",
        batch.row_indices.size(), batch.q_pos.size(), num_rows);
  }
  if (batch.row_indices.size() > p.row_indices.capacity || batch.block_rows.size() > p.block_rows.capacity ||
      batch.kv_lens.size() > p.kv_lens.capacity) {
    return make_status(
        StatusCode::kOutOfRange,
        "{} row indices, {} block rows and {} lengths, the planner was made for {}, {} and {}; raise its "
        "limits",
        batch.row_indices.size(), batch.block_rows.size(), batch.kv_lens.size(), p.row_indices.capacity,
        p.block_rows.capacity, p.kv_lens.capacity);
  }
  for (std::size_t i = 0; i < batch.row_indices.size(); ++i) {
    if (i < num_rows ? batch.row_indices[i] != i : batch.row_indices[i] >= num_rows) {
      return invalid_argument("row index {} is {}; the first {} are 0, 1, .. and the others below {}", i,
                              batch.row_indices[i], num_rows, num_rows);
    }
  }
  std::uint64_t covered_rows = 0;
  for (std::size_t b = 0; b < batch.block_rows.size(); ++b) {
    FOVEA_RETURN_IF_ERROR(check_block_row(batch.block_rows[b], b, batch, options));
    covered_rows += batch.block_rows[b].row_count;
  }
  if (covered_rows > p.covers.capacity) {
    return make_status(StatusCode::kOutOfRange,
                       "block rows cover {} query tokens, the planner was made for {}; raise limits.max_covered_rows",
                       covered_rows, p.covers.capacity);
  }
  p.row_indices.size = p.q_pos.size = static_cast<std::uint32_t>(batch.row_indices.size());
  std::copy(batch.row_indices.begin(), batch.row_indices.end(), p.row_indices.data);
  std::copy(batch.q_pos.begin(), batch.q_pos.end(), p.q_pos.data);
  p.kv_lens.size = static_cast<std::uint32_t>(batch.kv_lens.size());
  std::copy(batch.kv_lens.begin(), batch.kv_lens.end(), p.kv_lens.data);
  p.block_rows.size = static_cast<std::uint32_t>(batch.block_rows.size());
  std::copy(batch.block_rows.begin(), batch.block_rows.end(), p.block_rows.data);
  FOVEA_RETURN_IF_ERROR(mark_solo(options, batch, num_rows, p));
  list_covers(p, num_rows);
  FOVEA_ASSIGN_OR_RETURN(const PlanCapacity capacity, plan_capacity(options));
  return check_partial_rows(options, capacity, p);
}

}  // namespace fovea
