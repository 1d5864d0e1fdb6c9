// The integer cost model of a schedule: what one queue entry (item, KV head) costs a worker, in bytes of memory
// traffic. Used by core/schedule to cut work into equal spans, and by device code that cuts again when lengths grew:
// integers only, so that both give the same schedule, bit for bit. Compiles under g++ and NVRTC.
#pragma once

#include "abi/plan.h"

namespace fovea::abi {

struct CostModel {
  uint32_t item;            // bytes; starting any item: its record, its first page entries, the pipeline's fill
  uint32_t row;             // bytes a (token, query head) row: its query read, its output written
  uint32_t partial_row;     // bytes a row whose state goes through the workspace: written once, read once
  uint32_t token;           // bytes of K and V of one token of one KV head
  uint32_t balance_rows;    // rows of a tile whose arithmetic takes as long as reading one token's K and V
  uint32_t least_part = 0;  // bytes that a part of a divided pair has at least; 0: what dividing costs in traffic
};

// Cost of one KV token under a tile of `rows` (token, query head) rows: reading it or computing on it, whichever is
// longer.
constexpr uint32_t token_cost(const CostModel& model, uint32_t rows) {
  if (rows <= model.balance_rows) return model.token;
  return static_cast<uint32_t>(static_cast<uint64_t>(model.token) * rows / model.balance_rows);
}

// Cost of an item before its first KV token.
constexpr uint32_t fixed_cost(const CostModel& model, uint32_t rows, bool partial) {
  return model.item + rows * (model.row + (partial ? model.partial_row : 0u));
}

// Cost of one item under one KV head.
constexpr uint64_t item_cost(const CostModel& model, uint32_t rows, uint32_t tokens, bool partial) {
  return fixed_cost(model, rows, partial) + static_cast<uint64_t>(token_cost(model, rows)) * tokens;
}

constexpr uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Fewest KV tokens that a part of a split item should have: a multiple of the block, and at least what the split itself
// costs (one more item, and rows that go through the workspace), or model.least_part.
constexpr uint32_t min_part_tokens(const CostModel& model, uint32_t rows, uint32_t block_tokens) {
  const uint32_t split = larger(model.item + rows * (model.row + model.partial_row), model.least_part);
  const uint32_t per_block = token_cost(model, rows) * block_tokens;
  const uint32_t blocks = (split + per_block - 1) / per_block;
  return (blocks == 0 ? 1 : blocks) * block_tokens;
}

}  // namespace fovea::abi
