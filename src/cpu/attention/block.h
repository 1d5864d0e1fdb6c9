// The scalar parts of an item: its rows, the walk over its blocks of tokens (pages, masks, positions), the state of a
// row, and rows of Q and of the output in their storage types. Called by executor_inl.h; compiled once.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/attention/item.h"

namespace fovea::cpu {

// The rows of a tile, (token, query head of the group) in that order.
class RowTable {
 public:
  explicit RowTable(const ItemArgs& args)
      : count(args.work.item->row_count * args.group),
        group_(args.group),
        head_begin_(args.work.kv_head * args.group),
        row_indices_(args.plan->row_indices + args.work.item->row_begin),
        q_pos_(args.plan->q_pos + args.work.item->row_begin) {}

  int q_head(int i) const { return head_begin_ + i % group_; }
  int64_t q_row(int i) const { return row_indices_[i / group_]; }
  int position(int i) const { return q_pos_[i / group_]; }

  const int count;

 private:
  const int group_;
  const int head_begin_;
  const uint32_t* row_indices_;
  const int32_t* q_pos_;
};

// Steps through the blocks of an item that some row sees. After next(): k_rows and v_rows hold the addresses of the
// block's tokens (tokens that no row sees and those beyond the end repeat one that is seen), scratch.seen the tokens
// that each query token sees, next_k_rows and next_v_rows where the block after this one will probably be read.
class BlockWalk {
 public:
  BlockWalk(const ItemArgs& args, int element_bits);
  bool next();
  // The token at which the next block begins, unless this is the last.
  bool goes_on() const { return next_ < end_; }
  int64_t next_token() const { return next_; }
  int tokens() const { return tokens_; }
  bool masked() const { return masked_; }  // some row does not see some token of the block
  uint64_t seen_by_any() const { return seen_by_any_; }
  const void** k_rows() const { return rows_[0]; }
  const void** v_rows() const { return rows_[1]; }
  const void** next_k_rows() const { return rows_[2]; }
  const void** next_v_rows() const { return rows_[3]; }
  // The KvScale of each token that some row sees, 0 for the others; pools with a scale a token and head.
  void find_scales(uint32_t* k_words, uint32_t* v_words) const;
  // Position of each token in its request.
  void fill_positions(float* positions) const;

 private:
  uint64_t seen_by(int row) const;
  int64_t token_position(int token) const;
  void find_next_rows();

  const ItemArgs& args_;
  const int element_bits_;
  const void** rows_[4];
  int64_t next_;  // token of the run at which the next block begins
  int64_t begin_ = 0;
  int64_t end_;
  int64_t rows_begin_ = -1;  // block whose rows the last find_next_rows() found
  int tokens_ = 0;
  bool masked_ = false;
  uint64_t seen_by_any_ = 0;
};

struct RowState {
  float max;
  float sum;
  float extra = -std::numeric_limits<float>::infinity();  // base-2 logit without a value
};
struct RowResult {
  float divisor;
  float lse;  // base 2
};

// A row that saw nothing keeps output 0 and has log-sum-exp -inf; one that saw NaN has a sum of NaN, and is.
inline RowResult finish_state(const RowState& state) {
  constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
  if (std::isnan(state.sum)) return {state.sum, state.sum};
  if (state.max == kMinusInf) return {1.0f, state.extra};
  if (state.extra == kMinusInf) return {state.sum, state.max + std::log2(state.sum)};
  // The running output is scaled by 2^-state.max; so is the divisor, unless that would overflow.
  const float lse =
      std::max(state.max, state.extra) + std::log2(state.sum * std::exp2(state.max - std::max(state.max, state.extra)) +
                                                   std::exp2(state.extra - std::max(state.max, state.extra)));
  return {state.sum + std::exp2(state.extra - state.max), lse};
}

// One head of one row of Q to fp32, and of the output from fp32; fp32, fp16 and bf16, rounding to nearest even.
void read_row(const TensorView& tensor, int64_t row, int head, int head_dim, float* to);
void write_row(const float* from, int head_dim, const TensorView& tensor, int64_t row, int head);

}  // namespace fovea::cpu
