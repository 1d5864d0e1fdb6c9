// Rows, blocks and masks of a work item.
#include "cpu/attention/block.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/attention/convert.h"

namespace fovea::cpu {
namespace {

// Bits [begin, end) of a word, for any begin and end.
uint64_t bit_range(int64_t begin, int64_t end) {
  begin = std::clamp<int64_t>(begin, 0, 64);
  end = std::clamp<int64_t>(end, 0, 64);
  if (begin >= end) return 0;
  const uint64_t below_end = end == 64 ? ~uint64_t{0} : (uint64_t{1} << end) - 1;
  return below_end & (~uint64_t{0} << begin);
}

uint64_t load_bits(const uint8_t* bits, uint64_t first, int count) {
  uint64_t word = 0;
  for (int i = 0; i < count;) {
    const uint64_t bit = first + static_cast<uint64_t>(i);
    const int offset = static_cast<int>(bit % 8);
    const int taken = std::min(8 - offset, count - i);
    word |= static_cast<uint64_t>((bits[bit / 8] >> offset) & ((1u << taken) - 1)) << i;
    i += taken;
  }
  return word;
}

int64_t item_end(const abi::PlanView& plan, const QueueWork& work) {
  const abi::WorkItem& item = *work.item;
  if (!(item.flags & abi::kItemOpenEnd) || item.length_slot == abi::kNone || plan.kv_lens == nullptr) {
    return item.kv_end;
  }
  return std::max<int64_t>(item.kv_end, int64_t{plan.kv_lens[item.length_slot]} - work.block_row->position_base);
}

// Addresses of the keys and values of tokens [begin, begin + tokens) of the run.
void find_rows(const abi::PlanView& plan, const QueueWork& work, int element_bits, int64_t begin, int tokens,
               const void** k_rows, const void** v_rows) {
  const abi::KvPoolView& pool = *work.pool;
  const int32_t* entries = plan.page_entries + work.item->list_begin;
  const int64_t head_offset = work.kv_head * pool.head_stride;
  const int64_t token_bytes = pool.token_stride * element_bits / 8;
  const uintptr_t k = reinterpret_cast<uintptr_t>(pool.k);
  const uintptr_t v = reinterpret_cast<uintptr_t>(pool.v);
  int64_t entry = begin / pool.entry_tokens;
  int64_t in_entry = begin % pool.entry_tokens;
  for (int t = 0; t < tokens; ++entry, in_entry = 0) {
    int64_t page = entries[entry];
    int64_t in_page = in_entry;
    if (pool.entries_per_page > 1) {
      in_page += page % pool.entries_per_page * pool.entry_tokens;
      page /= pool.entries_per_page;
    }
    int64_t offset = (page * pool.page_stride + in_page * pool.token_stride + head_offset) * element_bits / 8;
    const int stop = static_cast<int>(std::min<int64_t>(tokens, t + pool.entry_tokens - in_entry));
    for (; t < stop; ++t, offset += token_bytes) {
      k_rows[t] = reinterpret_cast<const void*>(k + static_cast<uintptr_t>(offset));
      v_rows[t] = reinterpret_cast<const void*>(v + static_cast<uintptr_t>(offset));
    }
  }
}

}  // namespace

BlockWalk::BlockWalk(const ItemArgs& args, int element_bits)
    : args_(args),
      element_bits_(element_bits),
      rows_{args.scratch.rows[0], args.scratch.rows[1], args.scratch.rows[2], args.scratch.rows[3]},
      next_(args.pause != nullptr && args.place->token != ItemPlace::kStart ? args.place->token
                                                                            : args.work.item->kv_begin),
      end_(item_end(*args.plan, args.work)) {}

bool BlockWalk::next() {
  const int rows = args_.work.item->row_count;
  while (next_ < end_) {
    begin_ = next_;
    tokens_ = static_cast<int>(std::min<int64_t>(kBlockTokens, end_ - begin_));
    next_ = begin_ + tokens_;
    const uint64_t all = bit_range(0, tokens_);
    if (!(args_.work.item->flags & abi::kItemMasked)) {
      masked_ = false;
      seen_by_any_ = all;
      std::fill(args_.scratch.seen, args_.scratch.seen + rows, all);
    } else {
      uint64_t seen_by_all = all;
      seen_by_any_ = 0;
      for (int row = 0; row < rows; ++row) {
        const uint64_t seen = all & seen_by(row);
        args_.scratch.seen[row] = seen;
        seen_by_any_ |= seen;
        seen_by_all &= seen;
      }
      masked_ = seen_by_all != all;
      if (seen_by_any_ == 0) continue;
    }
    if (rows_begin_ == begin_) {
      std::swap(rows_[0], rows_[2]);
      std::swap(rows_[1], rows_[3]);
    } else {
      find_rows(*args_.plan, args_.work, element_bits_, begin_, tokens_, rows_[0], rows_[1]);
    }
    // Unseen tokens may lie in pages that were given away; never touch them.
    const int seen_token = std::countr_zero(seen_by_any_);
    for (uint64_t unseen = ~seen_by_any_; unseen != 0; unseen &= unseen - 1) {
      const int t = std::countr_zero(unseen);
      rows_[0][t] = rows_[0][seen_token];
      rows_[1][t] = rows_[1][seen_token];
    }
    find_next_rows();
    return true;
  }
  return false;
}

void BlockWalk::find_next_rows() {
  int tokens = static_cast<int>(std::min<int64_t>(kBlockTokens, end_ - next_));
  if (tokens > 0) {
    find_rows(*args_.plan, args_.work, element_bits_, next_, tokens, rows_[2], rows_[3]);
    rows_begin_ = next_;
  } else if (args_.next.item != nullptr && args_.next.pool->dtype == args_.work.pool->dtype) {
    const int64_t begin = args_.next.item->kv_begin;
    tokens = static_cast<int>(std::min<int64_t>(kBlockTokens, item_end(*args_.plan, args_.next) - begin));
    find_rows(*args_.plan, args_.next, element_bits_, begin, tokens, rows_[2], rows_[3]);
  }
  for (int t = std::max(tokens, 0); t < kBlockTokens; ++t) {
    rows_[2][t] = rows_[0][t];
    rows_[3][t] = rows_[1][t];
  }
}

void BlockWalk::find_scales(uint32_t* k_words, uint32_t* v_words) const {
  const abi::KvPoolView& pool = *args_.work.pool;
  const int32_t* entries = args_.plan->page_entries + args_.work.item->list_begin;
  const auto* k = static_cast<const uint32_t*>(pool.k_scale);  // two halves of a KvScale
  const auto* v = static_cast<const uint32_t*>(pool.v_scale);
  const auto first_of = [&](int64_t entry) {
    const int64_t page = entries[entry] / pool.entries_per_page;
    const int64_t in_page = entries[entry] % pool.entries_per_page * pool.entry_tokens;
    return page * pool.scale_page_stride + args_.work.kv_head * pool.scale_head_stride + in_page;
  };
  int64_t entry = begin_ / pool.entry_tokens;
  int64_t in_entry = begin_ % pool.entry_tokens;
  for (int t = 0; t < tokens_; ++entry, in_entry = 0) {
    const int64_t first = first_of(entry) + in_entry - t;
    const int stop = static_cast<int>(std::min<int64_t>(tokens_, t + pool.entry_tokens - in_entry));
    for (; t < stop; ++t) {
      const bool seen = seen_by_any_ >> t & 1;
      k_words[t] = seen ? k[first + t] : 0;
      v_words[t] = seen ? v[first + t] : 0;
    }
  }
  for (; entry * pool.entry_tokens < std::min(end_, next_ + kBlockTokens); ++entry) {
    const auto ahead = static_cast<uintptr_t>(first_of(entry)) * sizeof(uint32_t);
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(k) + ahead));
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(v) + ahead));
  }
}

int64_t BlockWalk::token_position(int token) const {
  const abi::BlockRow& block_row = *args_.work.block_row;
  const int64_t in_run = begin_ + token;
  if (block_row.positions_begin == abi::kNone) return block_row.position_base + in_run;
  const int entry_tokens = args_.work.pool->entry_tokens;
  return args_.plan->kv_positions[block_row.positions_begin + in_run / entry_tokens] + in_run % entry_tokens;
}

void BlockWalk::fill_positions(float* positions) const {
  for (int t = 0; t < tokens_; ++t) positions[t] = static_cast<float>(token_position(t));
  std::fill(positions + tokens_, positions + kBlockTokens, 0.0f);
}

// Tokens of the block that the row-th query token of the item sees, as bits; bits past the block may be anything.
uint64_t BlockWalk::seen_by(int row) const {
  const abi::BlockRow& block_row = *args_.work.block_row;
  if (block_row.mask == abi::MaskKind::kNone) return ~uint64_t{0};
  if (block_row.mask == abi::MaskKind::kBits) {
    const uint64_t mask_row = args_.work.item->row_begin - block_row.row_begin + static_cast<uint64_t>(row);
    const uint64_t first = block_row.mask_offset + mask_row * block_row.mask_stride + static_cast<uint64_t>(begin_);
    return load_bits(args_.plan->mask_bits, first, tokens_);
  }
  const int64_t q_pos = args_.plan->q_pos[args_.work.item->row_begin + row];
  int64_t lowest = std::numeric_limits<int64_t>::min();
  if (block_row.mask == abi::MaskKind::kWindow && block_row.window_left >= 0) lowest = q_pos - block_row.window_left;
  if (block_row.positions_begin == abi::kNone) {
    const int64_t base = block_row.position_base + begin_;
    return bit_range(lowest < base ? 0 : lowest - base, q_pos - base + 1);
  }
  uint64_t seen = 0;
  for (int t = 0; t < tokens_; ++t) {
    const int64_t position = token_position(t);
    if (position >= lowest && position <= q_pos) seen |= uint64_t{1} << t;
  }
  return seen;
}

namespace {

size_t row_offset(const TensorView& tensor, int64_t row, int head) {
  return static_cast<size_t>(row * tensor.strides[0] + head * tensor.strides[1]);
}

}  // namespace

void read_row(const TensorView& tensor, int64_t row, int head, int head_dim, float* to) {
  const size_t offset = row_offset(tensor, row, head);
  if (tensor.dtype == DType::kF32) {
    std::memcpy(to, static_cast<const float*>(tensor.data) + offset, sizeof(float) * static_cast<size_t>(head_dim));
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(tensor.data) + offset;
  for (int d = 0; d < head_dim; ++d) to[d] = float_of_bf16(from[d]);
}

void write_row(const float* from, int head_dim, const TensorView& tensor, int64_t row, int head) {
  const size_t offset = row_offset(tensor, row, head);
  if (tensor.dtype == DType::kF32) {
    std::memcpy(static_cast<float*>(tensor.data) + offset, from, sizeof(float) * static_cast<size_t>(head_dim));
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(tensor.data) + offset;
  for (int d = 0; d < head_dim; ++d) to[d] = bf16_of(from[d]);
}

}  // namespace fovea::cpu
